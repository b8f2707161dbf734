"""The paper's ablations as YAML files: which settings vary, and which variants are compared."""

from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import ConfigDict, ValidationError

from sacglam import config as configuration
from sacglam import files
from sacglam.config.section import Section
from sacglam.errors import ConfigError
from sacglam.tools.experiments.plan import Experiment, Group, Variant

FOLDER = Path(__file__).parents[2] / "ablations"


class Ablation(Section):
    """An ablation's file: its place in the paper, the paper's finding, and what varies.

    Every `base` is a configuration: its name, or a path relative to this file. Overrides may be those of `base`.
    """

    model_config = ConfigDict(strict=False)  # tuples are lists in YAML

    title: str
    paper: str
    finding: str
    base: Path = Variant().base
    groups: tuple[Group, ...]


def shipped() -> list[str]:
    """The names of the ablations that come with sacglam, as files."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def load(name: str) -> Experiment:
    """The experiment of a shipped ablation, or of the file at `name`.

    Raises:
        ConfigError: there is none, or its file is not right.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    known = shipped()
    if file.parent == FOLDER and name not in known:
        hint = "".join(f"did you mean {near!r}? " for near in get_close_matches(name, known, n=1))
        raise ConfigError(f"unknown ablation {name!r}; {hint}Known: {', '.join(known)}; or give a YAML file's path")
    try:
        ablation = Ablation.model_validate(yaml.safe_load(files.read(file, configuration.LARGEST)))
    except OSError as error:
        raise ConfigError(f"cannot read the ablation {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from error
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{file} is no ablation; see docs/guides/comparing.md. " + "; ".join(faults)) from error

    def placed(variant: Variant) -> Variant:
        base = variant.base if "base" in variant.model_fields_set else ablation.base
        return Variant(base=configuration.located(base, file.parent), set=variant.set)

    groups = tuple(
        group.model_copy(update={"variants": {label: placed(each) for label, each in group.variants.items()}})
        for group in ablation.groups
    )
    title, about = f"{ablation.title} ({ablation.paper})", f"The paper: {ablation.finding}"
    return Experiment(file.stem, title, about, groups, figure=f"{file.stem}.png")
