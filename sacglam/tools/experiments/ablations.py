"""The paper's ablations as files: which settings vary, and which variants are read side by side."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import ValidationError

from sacglam import config as configuration
from sacglam.config import Section
from sacglam.errors import ConfigError
from sacglam.tools.experiments.plan import Axis, Experiment, Group, Variant

FOLDER = Path(__file__).parent / "configs"
_BASE = "base"


class Based(Section):
    """A variant of another base than the family's."""

    base: str
    """A configuration beside the family's file."""
    set: tuple[str, ...] = ()
    """Overrides of it."""


class FamilyGroup(Section):
    """Variants that share a panel and a table."""

    title: str
    """Above the panel."""
    variants: dict[str, tuple[str, ...] | Based]
    """Overrides of the base by label; those that change nothing may be written out."""
    axes: tuple[Axis, ...] = ("steps",)
    """What the curves are drawn over, a panel for each."""
    metric: str | None = None
    """A name in metrics.jsonl to draw; None: greedy success."""


class Family(Section):
    """One ablation."""

    title: str
    """Of the report and the figure."""
    paper: str
    """Where the paper has it."""
    finding: str
    """What the paper found."""
    base: str = "base.yaml"
    """The configuration that varies, beside the family's file."""
    groups: tuple[FamilyGroup, ...]
    """Panels and tables."""


def shipped() -> list[str]:
    """The names of the families that come with sacglam."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml") if "groups" in (yaml.safe_load(file.read_text()) or {}))


def load(name: str, also: Sequence[str] = ()) -> Experiment:
    """The experiment of a shipped family, or of the file at `name`; `also` are names to suggest beside the shipped.

    Raises:
        ConfigError: there is none, or its file is not right.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    known = [*shipped(), *also]
    if file.parent == FOLDER and name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown ablation {name!r}; {hint}Known: {', '.join(known)}; or give the path of a family's YAML file"
        )
    family = _read(file)
    groups = tuple(
        Group(
            group.title,
            {label: _variant(given, family.base, file.parent) for label, given in group.variants.items()},
            group.axes,
            group.metric,
        )
        for group in family.groups
    )
    return Experiment(file.stem, f"{family.title} ({family.paper})", f"The paper: {family.finding}", groups)


def _read(file: Path) -> Family:
    try:
        return Family.model_validate(yaml.safe_load(file.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read the ablation {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from error
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{file} is no ablation; see docs/comparing.md. " + "; ".join(faults)) from error


def _variant(given: tuple[str, ...] | Based, base: str, folder: Path) -> Variant:
    """The variant under the one name of what it runs: overrides without effect are dropped, the others sorted."""
    if isinstance(given, Based):
        base, given = given.base, given.set
    file = folder / base
    plain = configuration.load(file)
    overrides = tuple(sorted(o for o in given if configuration.override(plain, [o]) != plain))
    varied = ",".join(overrides)
    if file.stem == _BASE:
        return Variant(varied or _BASE, file, overrides)
    return Variant(f"{file.stem}+{varied}" if varied else file.stem, file, overrides)
