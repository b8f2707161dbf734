"""What the docs name exists: classes and their members, modules, settings, files."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from textwrap import dedent, indent

import pytest
from typer.main import get_group

from sacglam.cli import app
from sacglam.config import Config
from sacglam.config.section import Named, Section

ROOT = Path(__file__).parents[2]
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "results" not in page.parts),
]
FOLDERS = ("sacglam", "tests", "launch", "configs", "docs", "benchmarks")


def members() -> Mapping[str, set[str]]:
    """Names in the body of each class of the package, and of its bases there."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    bases: dict[str, list[str]] = {}
    for file in (ROOT / "sacglam").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                for each in node.body:
                    if isinstance(each, ast.FunctionDef):
                        found[node.name].add(each.name)
                    elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        found[node.name].add(each.target.id)

    def whole(name: str) -> set[str]:
        return found[name].union(*(whole(base) for base in bases.get(name, [])))

    return {name: whole(name) for name in bases}


def settings(section: type[Section] = Config, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings and sections."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for kind in kinds(field.annotation):
            yield from settings(kind, f"{prefix}{name}.")


def kinds(annotation: object) -> list[type[Section]]:
    """The section that a field holds, or all the kinds of it that come with sacglam."""
    if not (isinstance(annotation, type) and issubclass(annotation, Section)):
        return []
    return [annotation.kind(name) for name in annotation.shipped] if issubclass(annotation, Named) else [annotation]


MEMBERS, SETTINGS = members(), set(settings())
PYTHON = [file for folder in ("sacglam", "tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
CODE = "".join(file.read_text() for file in PYTHON)


def wrong(text: str) -> Iterator[str]:
    """The names in backticks that look like ours and are not there."""
    for quoted in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        name = re.split(r"[(:= ]", quoted)[0]
        first, _, rest = name.partition(".")
        if re.fullmatch(r"sacglam(\.\w+)+", name):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                yield quoted
        elif first in MEMBERS and re.fullmatch(r"\w+", rest) and rest not in MEMBERS[first]:
            yield quoted
        elif re.fullmatch(r"\w+(\.\w+)+", name) and first in Config.model_fields:
            if name not in SETTINGS and not re.match(r"env\.options\.|critic\.(json|safetensors)", name):
                yield quoted
        elif re.fullmatch(rf"({'|'.join(FOLDERS)})(/[\w.]+)+/?", name):
            if not (ROOT / name).exists():
                yield quoted
        elif re.fullmatch(r"[a-z]{2,}(_[a-z]{2,})+", name) and name not in CODE:
            yield quoted


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_what_the_docs_name_exists(file: Path) -> None:
    added_in_the_first_hour = "algo.actor_q"  # of CONTRIBUTING.md
    assert [name for name in wrong(file.read_text()) if not name.startswith(added_in_the_first_hour)] == []


def test_a_name_that_is_not_there_is_found() -> None:
    bad = ["Learner.no_such", "sacglam.no_such", "algo.no_such", "sacglam/no_such.py", "with_boot" + "strap"]
    good = ["Learner.state()", "sacglam.envs.register", "algo.epochs", "sacglam/loop.py", "critic_losses"]
    assert list(wrong(" ".join(f"`{name}`" for name in [*bad, *good]))) == bad


COMMANDS = {
    name: {each for p in command.params for each in p.opts} for name, command in get_group(app).commands.items()
}
"""The options of each command."""
TYPED = [*DOCS, *(page for page in (ROOT / "docs/results").rglob("*.md") if page.name != "report.md")]
CONFIGS = "|".join(folder.name for folder in (ROOT / "configs").iterdir() if folder.is_dir())


def wrong_commands(text: str) -> Iterator[str]:
    """Commands in code with an option, a setting or a configuration that is not there."""
    bash = re.findall(r"```(?:bash|sh)\n(.*?)```", text, flags=re.DOTALL)
    lines = [re.sub(r"(^|\s)#.*", "", line) for block in bash for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in (*lines, *inline):
        for name, rest in re.findall(r"(?:^|&& )(?:\w+=\S+ )*sacglam ([a-z][a-z-]*)([^&|]*)", line):
            words = pairwise(["", *shlex.split(rest)])
            if name not in COMMANDS or not all(exists(name, before, word) for before, word in words):
                yield line.strip()


def exists(command: str, before: str, word: str) -> bool:
    """Whether the option, setting or configuration that a word of a command names exists; any other word does."""
    word = word.strip("[]")
    if word.startswith("--"):
        return word in COMMANDS[command]
    if before == "--set":
        return word.startswith("env.options.") or word.split("=")[0] in SETTINGS
    name = re.fullmatch(rf"(?:configs/)?((?:{CONFIGS})/[\w.-]+?)(?:\.yaml)?", word)
    return name is None or (ROOT / "configs" / f"{name[1]}.yaml").exists() or "NAME" in word


@pytest.mark.parametrize("file", TYPED, ids=lambda file: file.name)
def test_what_commands_name_exists(file: Path) -> None:
    added_in_the_first_hour = "algo.actor_q"
    assert [command for command in wrong_commands(file.read_text()) if added_in_the_first_hour not in command] == []


def test_a_command_that_names_what_is_not_there_is_found() -> None:
    bad = ["sacglam train --no-such", "sacglam no-such", "sacglam train full/none", "sacglam train --set algo.none=1"]
    bad += ["sacglam envs --check NAME --set bits=4"]
    good = ["A=1 sacglam train full/sac_her --set steps=1", "sacglam envs --check NAME --set env.options.kwargs.a=b"]
    text = "\n".join(f"`{command}`" for command in [*bad, *good])
    assert list(wrong_commands(text)) == bad
    assert list(wrong_commands(f"```bash\npip install x && {bad[0]}  # why\n```")) == [f"pip install x && {bad[0]}"]


def blocks(file: Path) -> list[str]:
    """The blocks of Python in a page."""
    return re.findall(r"```python\n(.*?)```", file.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_what_blocks_of_python_import_from_us_exists(file: Path) -> None:
    for block in blocks(file):
        for node in ast.walk(ast.parse(dedent(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sacglam"):
                for name in node.names:
                    assert pkgutil.resolve_name(f"{node.module}:{name.name}")


def test_the_readme_stays_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130, "what is new belongs to a page of the docs, with a link in the README"


def test_the_loop_in_the_docs_is_the_loop() -> None:
    [loop] = (block for block in blocks(ROOT / "docs" / "method" / "architecture.md") if block.startswith("while "))
    assert indent(loop, " " * 8) in (ROOT / "sacglam" / "loop.py").read_text()


def test_the_first_hour_changes_a_line_that_is_there() -> None:
    [line] = (block for block in blocks(ROOT / "CONTRIBUTING.md") if block.lstrip().startswith("actor = "))
    assert line.replace(", self._config.actor_q", "") in (ROOT / "sacglam" / "algos" / "sac.py").read_text()


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`: the headings of a page, as GitHub and the site write them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("file", TYPED, ids=lambda file: file.name)
def test_links_lead_to_pages_and_headings_that_exist(file: Path) -> None:
    broken = []
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        page = (file.parent / path) if path else file
        if "://" not in target and not (page.exists() and (not anchor or anchor in anchors(page))):
            broken.append(target)
    assert broken == []


def test_pages_that_the_code_names_exist() -> None:
    files = [*PYTHON, *(file for folder in ("configs", "launch", "sacglam") for file in (ROOT / folder).rglob("*.*"))]
    named = {
        page
        for file in files
        if file.suffix in {".py", ".yaml", ".sh", ".md"}
        for page in re.findall(r"docs/[\w/]+\.md", file.read_text())
    }
    assert len(named) > 10
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def test_the_reference_lists_every_setting_and_every_option() -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec
    assert spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    listed = set(re.findall(r"^(?:\| |#+ )`([\w.]+)`", "\n".join(hooks.settings(Config)), flags=re.MULTILINE))
    assert listed == SETTINGS
    commands = "\n".join(hooks.commands())
    assert all(text in commands for text in ("## `sacglam compare`", "`--tensor-parallel <int>`", "Repeatable."))


def test_explained_metrics_are_in_the_code() -> None:
    source = "".join(file.read_text() for file in (ROOT / "sacglam").rglob("*.py"))
    rows = [row for row in (ROOT / "docs/reference/metrics.md").read_text().splitlines() if row.startswith("| `")]
    names = {name for row in rows for name in re.findall("`(.+?)`", row.split(" | ")[0])}
    assert len(names) > 40
    written = {name: name.removesuffix("/TYPE") for name in names}
    written |= {"actor_loss": "actor", "imitation_loss": "imitation"}  # the names of losses, to which `_loss` is added
    assert [name for name, text in written.items() if not re.search(rf"[\"'/]{text}[\"'/]", source)] == []
