"""The paper's ablations as YAML files: which settings vary, and which variants are compared."""

import json
from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import ConfigDict, ValidationError

from sacglam import config as configuration
from sacglam import files
from sacglam.config.section import Section
from sacglam.envs import describe
from sacglam.errors import ConfigError, write_explained
from sacglam.tools.experiments.plan import Experiment, Group, Variant

FOLDER = Path(__file__).parents[2] / "ablations"
GOALS = "goals"
ABOUT_GOALS = "Proportion of each goal type in Playground-Text (Figure 4); no training"


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
    known = [*shipped(), GOALS]
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


def report_goals(out: Path) -> list[Path]:
    """Write figure, text and values of the paper's Figure 4, the proportions of the goal types, to `out`; the files."""
    from sacglam.tools.experiments.figure import draw_bars

    counts = next(each.goals for each in describe() if each.name == "playground")
    total = sum(counts.values())
    shares = {kind: count / total for kind, count in counts.items()}
    rows = [f"| {kind} | {counts[kind]:,} | {share:.1%} |\n" for kind, share in shares.items()]
    text = f"# {ABOUT_GOALS}\n\n![goals]({GOALS}.png)\n\n| type | goals | share |\n|---|---|---|\n{''.join(rows)}"
    values = {"environment": "playground", "goals": counts, "shares": shares}
    figure, markdown, data = written = [out / f"{GOALS}.{ending}" for ending in ("png", "md", "json")]
    with write_explained(out):
        out.mkdir(parents=True, exist_ok=True)
        draw_bars(shares, f"{total:,} goals of playground", "share of the goals", figure)
        files.write(markdown, text)
        files.write(data, json.dumps(values, indent=2) + "\n")
    return written
