"""The tested versions, read from where they are stated once: pyproject.toml, or the installed package's metadata."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sacglam.tools.doctor.facts import Pins

ENGINES_EXTRA = "distributed"
_PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def in_checkout() -> bool:
    """Whether the package runs from its repository."""
    return _PYPROJECT.is_file()


def stated() -> Pins:
    """The versions that this package states.

    A checkout's own file goes first: metadata is as old as the last installation.
    """
    if in_checkout():
        project = tomllib.loads(_PYPROJECT.read_text())["project"]
        extra = project["optional-dependencies"][ENGINES_EXTRA]
        return Pins(project["requires-python"], _specifiers(project["dependencies"]), _specifiers(extra))
    stated = metadata.requires("sacglam") or []
    core = [text for text in stated if "extra ==" not in text]
    extra = [text.partition(";")[0] for text in stated if "extra ==" in text and ENGINES_EXTRA in text]
    return Pins(metadata.metadata("sacglam")["Requires-Python"], _specifiers(core), _specifiers(extra))


def requirements_of(name: str) -> tuple[str, ...]:
    """What an installed distribution asks of others on this platform, extras left out."""
    try:
        stated = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(text for text in stated if _applies(text))


def _applies(text: str) -> bool:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return False
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _specifiers(texts: Iterable[str]) -> dict[str, str]:
    parsed = [Requirement(text) for text in texts]
    return {canonicalize_name(requirement.name): str(requirement.specifier) for requirement in parsed}
