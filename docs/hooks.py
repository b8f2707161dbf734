"""Generates the references of settings and commands when mkdocs builds the site, and adds pages from outside docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer.main
from click import Command, Context, Option, Parameter
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic_core import PydanticUndefined

from sacglam.cli import app
from sacglam.config import Config
from sacglam.config.section import Named, Section

ROOT = Path(__file__).parents[1]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Equations become MathML, which browsers draw without scripts."""
    fence = {"name": "math", "class": "math", "format": lambda source, *_, **__: convert(source, display="block")}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the repository's root."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in the references and files, and lead links to and from the added pages to their places on the site."""
    markdown = re.sub(r"<!-- settings -->.*<!-- end -->", lambda _: "\n".join(settings(Config)), markdown)
    markdown = re.sub(r"<!-- commands -->.*<!-- end -->", lambda _: "\n".join(commands()), markdown)
    markdown = re.sub(r"<!-- file: (.*?) -->", lambda file: f"```python\n{(ROOT / file[1]).read_text()}```", markdown)
    if page.file.src_uri in OUTSIDE.values():
        markdown = markdown.replace("](docs/", "](")
    for name, added in OUTSIDE.items():
        markdown = re.sub(
            rf"\]\((?:\.\./)*{re.escape(name)}", f"]({'../' * page.file.src_uri.count('/')}{added}", markdown
        )
    return markdown


def settings(section: type[Section], prefix: str = "") -> Iterator[str]:
    """A table of the settings in a section, and a heading with another table for each section in it."""
    inner = {name: sections(field.annotation) for name, field in section.model_fields.items()}
    if not all(inner.values()):
        yield "| Setting | Type | Default | Meaning |\n|---|---|---|---|"
    for name, field in section.model_fields.items():
        if not inner[name]:
            default = "required" if field.default is PydanticUndefined else f"`{shown(field.default)}`"
            cells = (
                f"`{prefix}{name}`",
                type_name(field.annotation),
                default,
                cell(field.description or "Chooses this kind."),
            )
            yield f"| {' | '.join(cells)} |"
    for name, kinds in inner.items():
        for kind in kinds:
            tag = kind.model_fields["type"].default if len(kinds) > 1 else ""
            level = "#" * (prefix.count(".") + 2)
            yield f"\n{level} `{prefix}{name}`{f', type `{tag}`' if tag else ''}\n\n{getdoc(kind)}\n"
            yield from settings(kind, f"{prefix}{name}.")


def sections(annotation: Any) -> list[type[Section]]:
    """The sections that a field's annotation names: none for a plain value, several for a tagged union."""
    if isinstance(annotation, type) and issubclass(annotation, Named):
        return [annotation.kind(name) for name in annotation.shipped]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections(part)]


def type_name(annotation: Any) -> str:
    """A field's type for readers: `int`, `float32` or `bfloat16`, list of `str`, or null."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(parts[0])
    if origin is Literal:
        return " or ".join(f"`{shown(part)}`" for part in parts)
    if origin in (list, tuple):
        return f"list of {type_name(parts[0])}"
    if origin is dict:
        return "mapping"
    if parts:
        return " or ".join(type_name(part) for part in parts)
    return "null" if annotation in (None, NoneType) else f"`{getattr(annotation, '__name__', annotation)}`"


def shown(value: Any) -> str:
    """A default as it is written in YAML."""
    plain = {None: "null", True: "true", False: "false"}
    if isinstance(value, (bool, NoneType)):
        return plain[value]
    if isinstance(value, str):
        return cell(repr(value)[1:-1]) if value.strip() else f'"{value}"'
    return cell(str(value))


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def commands() -> Iterator[str]:
    """A section for each command: usage, help, arguments and options."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        context = Context(command, info_name=f"sacglam {name}")
        yield f"\n## `sacglam {name}`\n\n```text\n{command.get_usage(context)}\n```\n"
        yield help_text(command)
        rows = [row for parameter in command.params if (row := parameter_row(parameter, context))]
        yield "\n".join(["\n| Option | Default | Meaning |\n|---|---|---|", *rows]) if rows else ""


def help_text(command: Command) -> str:
    """A command's help: paragraphs, and examples as code."""
    text, _, examples = (command.help or "").partition("\b\n")
    listed, _, rest = examples.partition("\n\n")
    lines = "\n".join(line.strip() for line in listed.splitlines()[1:])
    return "\n\n".join(part for part in (text.strip(), f"```bash\n{lines}\n```" if lines else "", rest.strip()) if part)


def parameter_row(parameter: Parameter, context: Context) -> str:
    """The table row of an argument or option; empty for those of the shell's completion."""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    names, meaning = record
    names, meaning = names.replace(" range>", ">"), re.sub(r"\s*\[[^\]]*\]$", "", meaning)
    default = parameter.get_default(context) if isinstance(parameter, Option) else None
    written = f"`{shown(default)}`" if default not in (None, False, [], ()) else ""
    return f"| `{cell(names)}` | {written} | {cell(meaning)} |"
