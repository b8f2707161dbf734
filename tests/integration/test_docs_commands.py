"""Every command in the bash blocks of README, CONTRIBUTING and docs runs, at a size that takes seconds.

A block is one script, and the blocks of a page share a folder, since later commands use what earlier ones have made.
Blocks of sh are left out: they need a server or another project. tests/unit/test_docs.py checks that what they and
commands within sentences name exists.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

from tests import launcher
from tests.unit.test_docs import ROOT
from tests.unit.test_docs import blocks as python_blocks

PAGES = {
    str(file.relative_to(ROOT)): file
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
SETTINGS = {
    "steps": 128,
    "replay.random_steps": 0,
    "evaluation.episodes": 4,
    "evaluation.every_episodes": 2,
    "tracking.to": "[]",
}
SMALL = " ".join(f"--set {name}={value}" for name, value in SETTINGS.items())
RUN = {
    "export ": "",
    "lint-imports": "",
    "mypy": "",
    "pytest ": "-n 0",
    "python -m benchmarks.imagination ": "--steps 64 --episodes 4",
    "python -m benchmarks.random_model ": "",
    "ruff ": "",
    "sacglam track ": "",
    "sacglam collect ": "--episodes 20",
    "sacglam compare ": f"--seeds 1 --threads 1 {SMALL}",
    "sacglam envs ": "--episodes 2",
    "sacglam evaluate ": "--episodes 2",
    "sacglam export ": "",
    "sacglam play ": "",
    "sacglam pretrain ": "--steps 3",
    "sacglam profile": f"--intervals 1 {SMALL}",
    "sacglam train": f"{SMALL} --set threads=1",
}
"""How commands begin that run, and what is added to make them small; the longest beginning counts."""
NOT_RUN = {
    "git clone ": "needs the network",
    "cd sacglam": "goes into what git has cloned",
    "python -m venv ": "launch/test.sh makes a virtual environment",
    ". .venv/bin/activate": "launch/test.sh uses the one it made",
    "pip ": "needs the network",
    "python3 -m venv ": "is for a machine with a GPU",
    ".venv/bin/python -m pip ": "is for a machine with a GPU",
    "launch/install_engines_cpu.sh ": "needs the network",
    "launch/get_smollm2.sh": "needs the network",
    "python launch/convert_gguf.py ": "needs a GGUF file; tests/unit/models/test_models_gguf.py writes one",
    "sacglam train smollm2/": "needs the model that launch/get_smollm2.sh downloads",
    "sacglam train paper/sac_her_qwen2.5_0.5b --gpus 1": "needs a GPU",
    "launch/gpu_check.sh": "needs a GPU; tests/unit/benchmarks/test_gpu_check.py runs its parts on a CPU",
    "mkdocs serve": "runs until it is stopped; launch/test.sh builds the site",
    "sacglam push ": "needs an account; tests/integration/test_push.py has a stand-in of the Hub",
    "sacglam serve ": "runs until it is stopped; tests/integration/test_serving.py starts it",
    "sacglam serve-env ": "runs until it is stopped; tests/integration/test_openenv_runs.py starts it",
    "uvicorn maze:app": "needs an environment from OpenEnv's repository",
    "sacglam envs --check openenv:": "needs a server; tests/integration/test_openenv_runs.py has one",
    "sacglam pretrain maze-model": "needs an environment from OpenEnv's repository",
    "sacglam train --set env.name=openenv:": "needs a server; tests/integration/test_openenv_runs.py has one",
    "sacglam evaluate runs/remote": "needs a server; tests/integration/test_openenv_runs.py has one",
    "sacglam ui": "runs until it is stopped; tests/integration/test_aim_browser.py opens it",
    "sacglam compare configs/battery/": "takes hours: sixteen environments; tests/unit/configs checks the files",
    "python -m benchmarks.battery": "tests/unit/benchmarks/test_battery.py runs it",
    "python -m benchmarks.scored ": "needs the model that launch/get_smollm2.sh downloads",
}
"""How commands begin that cannot run here, and why."""
REPLACED = {
    "paper/sac_her_flan_t5_base": "paper/sac_her_flan_t5_base --set model.name=builtin-t5",
    "random_model t5-base": "random_model t5-tiny",
    "demonstration_updates=400": "demonstration_updates=20",
    "evaluation.every_steps=320": "evaluation.every_steps=64",
    "PYTHONPATH=.": "PYTHONPATH=.:$PYTHONPATH",
    " RUN": " runs/my-run",
    " [runs/another ...]": "",
    "sacglam train --set algo.actor_q=max": "! sacglam train --set algo.actor_q=max",  # is refused, as the page says
}
NEEDS = {
    "sacglam track": "aim",
    "--to tensorboard": "tensorboard",
    "env babyai": "minigrid",
    "compare babyai": "minigrid",
    "check babyai": "minigrid",
    "smollm2/pick_up": "minigrid",
    "textworld": "textworld",
    "gymnasium": "gymnasium",
    "autotelic/frozen_lake": "gymnasium",
    "--learners": "deepspeed",
    "sac_her_flan_t5_base": "bitsandbytes",
}
"""The package that a command with these words needs."""
TIMEOUT_S = 1200


def bash_blocks(page: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", PAGES[page].read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """The commands of a block in order, without comments and assignments in front of them."""
    lines = block.replace("\\\n", " ").splitlines()
    parts = (part.strip() for line in lines for part in re.sub(r"(^|\s)#.*", "", line).split("&&"))
    return [re.sub(r"^(\w+=\S+ )+", "", part) for part in parts if part]


def entry(command: str, table: Mapping[str, str]) -> str | None:
    """The longest beginning in the table that this command has."""
    return max((start for start in table if command.startswith(start)), key=len, default=None)


COMMANDS = [command for page in PAGES for block in bash_blocks(page) for command in commands(block)]


def script(block: str) -> Iterator[str]:
    """The block's lines with small commands, and without those that do not run."""
    for line in block.replace("\\\n", " ").splitlines():
        for part in re.sub(r"(^|\s)#.*", "", line).split("&&"):
            [command] = commands(part) or [""]
            if command and not entry(command, NOT_RUN):
                small = f"{part.strip()} {RUN[entry(command, RUN) or '']}"
                for words, others in REPLACED.items():
                    small = small.replace(words, others)
                yield small


SCRIPTS = {f"{page}-{i}": list(script(block)) for page in PAGES for i, block in enumerate(bash_blocks(page))}


def test_every_command_runs_or_has_a_reason_not_to() -> None:
    assert len(COMMANDS) > 70
    assert [command for command in COMMANDS if not (entry(command, RUN) or entry(command, NOT_RUN))] == []


def test_lists_name_only_what_is_documented() -> None:
    for table in (RUN, NOT_RUN):
        assert [start for start in table if start not in {entry(command, table) for command in COMMANDS}] == []
    text = "\n".join(COMMANDS)
    assert [words for words in (*REPLACED, *NEEDS) if words not in text] == []


def test_commands_are_found_in_a_block() -> None:
    block = "# first\npip install x && A=1 sacglam train --set a=b \\\n  --out c   # why\nexport A=1\n"
    assert commands(block) == ["pip install x", "sacglam train --set a=b    --out c", "export A=1"]


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    """The working directory of each page, once a block of it has run."""
    return {}


def prepare(folder: Path, page: str, tiny_run: Path) -> None:
    """A clone with the files that the docs ask for: environments, configurations, a run, a model."""
    shutil.copytree(tiny_run, folder / "runs" / "my-run")
    if page == "CONTRIBUTING.md":
        for name in ("sacglam", "tests", "configs", "docs", "benchmarks", "launch"):
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, folder / name)
        change_actor_loss(folder)
        return
    for name in ("configs", "docs", "benchmarks", "launch"):  # the package is installed
        (folder / name).symlink_to(ROOT / name)
    python = [block for file in PAGES.values() for block in python_blocks(file)]
    for name, defined in (("house", "class House:"), ("lake", "class Lake(")):
        [block] = (block for block in python if defined in block)
        (folder / f"{name}.py").write_text(block)
    (folder / "mine.yaml").write_text("base: quickstart\nalgo: {gamma: 0.9}\n")
    if "sacglam pretrain house-model" not in PAGES[page].read_text():
        (folder / "house-model").symlink_to(ROOT / "sacglam" / "models" / "builtin")


def change_actor_loss(folder: Path) -> None:
    """The changes of the first hour, in a clone."""
    test, function, setting, update = python_blocks(PAGES["CONTRIBUTING.md"])
    [ablation] = re.findall(r"```yaml\n(.*?)```", PAGES["CONTRIBUTING.md"].read_text(), flags=re.DOTALL)
    (folder / "actor_q.yaml").write_text(ablation)
    with (folder / "tests/unit/algos/test_equations.py").open("a") as file:
        file.write(f"\n\n{test}")
    algos = folder / "sacglam" / "algos"
    maths = (algos / "equations.py").read_text()
    [old] = (node for node in ast.parse(maths).body if isinstance(node, ast.FunctionDef) and node.name == "actor_loss")
    edit(algos / "equations.py", ast.get_source_segment(maths, old) or "", function.strip())
    edit(algos / "equations.py", "\nimport torch\n", "\nfrom typing import Literal\n\nimport torch\n")
    edit(algos / "sac_settings.py", "ClassVar, Self", "ClassVar, Literal, Self")
    edit(algos / "sac_settings.py", "    alpha: AlphaConfig", f"{setting}\n    alpha: AlphaConfig")
    edit(algos / "sac.py", update.replace(", self._config.actor_q", ""), update)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def environment(installed: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(installed), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run_in_bash(lines: Sequence[str], folder: Path, out: IO[bytes]) -> int:
    """Run a script with the package in `folder`; its exit code."""
    command, env = ["bash", "-ex", "-c", "\n".join(lines)], environment(folder)
    done = subprocess.run(command, cwd=folder, env=env, stdout=out, stderr=out, timeout=TIMEOUT_S, check=False)
    return done.returncode


def run_forked(lines: Sequence[str], folder: Path, out: IO[bytes]) -> int:
    """The same for lines of sacglam and Python alone, without the seconds that each would spend on imports."""
    env = environment(ROOT) | {"PYTHONSAFEPATH": "1"}  # as for `sacglam`, which does not search the working directory
    for line in lines:
        words = shlex.split(line.removeprefix("export "))
        while words and "=" in words[0]:
            name, value = words.pop(0).split("=")
            env[name] = value.replace("$PYTHONPATH", env["PYTHONPATH"])
        if words:
            command = [sys.executable, *(["-m", *words] if words[0] == "sacglam" else words[1:])]
            out.write(f"+ {line}\n".encode())
            out.flush()
            process = launcher.start(command, out, out, env=env, cwd=folder)
            try:
                code = process.wait(TIMEOUT_S)
            finally:
                process.kill()
            if code:
                return code
    return 0


@pytest.mark.nightly
@pytest.mark.parametrize("block", [block for block in SCRIPTS if SCRIPTS[block]])
def test_the_commands_of_a_block_run(
    block: str, folders: dict[str, Path], tiny_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page, lines = block.rpartition("-")[0], SCRIPTS[block]
    missing = {
        package for line in lines for words, package in NEEDS.items() if words in line and not find_spec(package)
    }
    runnable = [line for line in lines if not any(words in line for words in NEEDS if NEEDS[words] in missing)]
    if page not in folders:
        folders[page] = tmp_path_factory.mktemp("page")
        prepare(folders[page], page, tiny_run)
    run = run_in_bash if page == "CONTRIBUTING.md" else run_forked
    with tempfile.TemporaryFile() as out:
        code = run(runnable, folders[page], out)
        out.seek(0)
        assert code == 0, out.read().decode()[-5000:]
    if missing:
        pytest.skip(f"the other commands ran; {', '.join(missing)} is not installed")
