"""What an experiment runs: configurations with overrides, seeds, and the order of the runs."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from sacglam import config as configuration
from sacglam import files, subprocesses
from sacglam.config import Config
from sacglam.config.section import Section
from sacglam.errors import ConfigError
from sacglam.runs.directory import EVALUATED_RETURN, RunDirectory

Axis = Literal["steps", "seconds", "cpu_seconds", "forward_passes"]
AXES: tuple[Axis, ...] = get_args(Axis)
ABLATIONS = {file.stem: file for file in sorted((Path(__file__).parents[2] / "ablations").glob("*.yaml"))}
"""The files of the paper's ablations, which `compare` knows by name."""
_EVALUATIONS, _MOST_SEEDS = 20, 1000
_LONGEST_NAME = 200  # bytes; file systems allow 255, and the name of a log is longer
_BY_TYPE = {"Episodes": "goal_share/", "Learning progress": "progress/", "Greedy success": "eval_success/"}


class Variant(Section, strict=False):  # tuples are lists in YAML
    """A configuration file, `base`, with the overrides `set`. In a file, a list of overrides is a variant, too."""

    base: Path = Path("base.yaml")
    set: tuple[str, ...] = ()
    label: str = ""
    """Stands for the base's file name where two files have the same."""

    @cached_property
    def name(self) -> str:
        """Its base, unless that is `base`, and its overrides. Names its folder, so equal names share their runs."""
        kept = list(self.set)
        for each in self.set:  # left out if it changes nothing, given the others
            others = [*kept]
            others.remove(each)
            with suppress(ConfigError):  # the others are invalid without it
                if configuration.load(self.base, others) == self.config():
                    kept = others
        parts = (self.label or self.base.stem, ",".join(sorted(kept)))
        name = "+".join(filter(None, parts)).removeprefix("base+").replace("/", "%2F")
        checksum = hashlib.sha256(name.encode()).hexdigest()[:8]  # for a name too long for a folder
        return name if len(name.encode()) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME // 4 - 9]}-{checksum}"

    def config(self, extra: Sequence[str] = ()) -> Config:
        """The configuration with its overrides and `extra` ones."""
        return configuration.load(self.base, [*self.set, *extra])


class Group(Section, strict=False):
    """Variants to compare, by label: one table, and one panel of the figure for each of `axes`.

    `metric` is a name in `metrics.jsonl`; None is greedy success. One that ends in `/`, like `goal_share/`, stands for
    all goal types, and gives one table and one panel for each variant, with a curve for each type.
    """

    title: str
    variants: dict[str, Annotated[Variant, BeforeValidator(lambda v: {"set": v} if isinstance(v, list) else v)]]
    axes: Annotated[tuple[Axis, ...], Field(min_length=1)] = ("steps",)
    metric: str | None = None


class Experiment(Section, strict=False):
    """A question (`title`, `about`) and the groups of variants that answer it, perhaps from a file.

    In a file, a `base` is a configuration's name or its path relative to the file. The experiment's base applies to
    variants without their own, whose overrides may repeat its values. The report is `NAME.md`, `.json` and `.png`.
    """

    title: str
    about: str = ""
    base: Path = Variant().base
    groups: tuple[Group, ...]
    name: str = "report"

    @property
    def variants(self) -> list[Variant]:
        """Each variant once, in the order of its first mention."""
        return list({v.name: v for group in self.groups for v in group.variants.values()}.values())


@dataclass(frozen=True)
class Run:
    """A variant with a seed, and where its files go."""

    variant: Variant
    seed: int
    overrides: tuple[str, ...]
    root: Path

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.variant.name} seed {self.seed}"

    @property
    def directory(self) -> RunDirectory:
        """Where it trains, next to the other runs; it may name foreign code only if the command does."""
        folder = self.root / f"{self.variant.name}-seed{self.seed}"
        return RunDirectory(folder, bool(self.config.own_code) or "environment")

    @property
    def log(self) -> Path:
        """The output of its processes; outside the run directory, which `sacglam train` claims."""
        return self.root / "logs" / f"{self.directory.root.name}.txt"

    @cached_property
    def config(self) -> Config:
        """The configuration that this command gives it."""
        return self.variant.config([*self.overrides, f"seed={self.seed}"])

    @property
    def finished(self) -> bool:
        """Whether it has used up its budget and been evaluated."""
        return self.directory.claimed and bool((self.directory.summary() or {}).get("finished"))

    def command(self) -> list[str]:
        """The command that starts it, or resumes it if it has begun."""
        train = subprocesses.python("-m", "sacglam", "train")
        if self.directory.claimed:
            return [*train, "--resume", str(self.directory.root), "--trust"]  # its settings are those of this command
        settings = [word for o in (*self.variant.set, *self.overrides) for word in ("--set", o)]
        return [*train, str(self.variant.base), f"--seed={self.seed}", f"--out={self.directory.root}", *settings]


def seeds(text: str) -> range:
    """The seeds that `text` names: "4" for 0 to 3, "10-13" for 10 to 13.

    Raises:
        ConfigError: it is neither, or names no seed or too many.
    """
    if match := re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})", text):
        first, last = match.groups()
        named = range(int(last)) if first is None else range(int(first), int(last) + 1)
        if 0 < len(named) <= _MOST_SEEDS:
            return named
    raise ConfigError(
        "--seeds: expected a number of seeds such as 4, or the first and the last as in 10-13, at most "
        f"{_MOST_SEEDS:,} in all; got {text!r}"
    )


def runs(experiment: Experiment, seeds: Sequence[int], overrides: Sequence[str], root: Path) -> list[Run]:
    """All runs in alternating order: seed 0 of every variant, then seed 1 from the second variant on, and so forth.

    So no variant gets the machine's quiet hours to itself, or always runs after the same other one.
    """
    variants = experiment.variants
    return [
        Run(variants[(seed + i) % len(variants)], seed, tuple(overrides), root)
        for seed in seeds
        for i in range(len(variants))
    ]


def experiment(given: Sequence[Path], overrides: Sequence[str] = ()) -> Experiment:
    """A comparison of the given configurations, or one experiment: the name of an ablation, or a file with `groups`.

    Raises:
        ConfigError: the file is invalid, or as for `comparison`.
    """
    return (from_file(given[0]) if len(given) == 1 else None) or comparison(given, overrides)


def from_file(given: Path) -> Experiment | None:
    """The experiment of a shipped ablation, or of the file at a path; None if there is none.

    Raises:
        ConfigError: its file is invalid.
    """
    file = given if given.is_file() else ABLATIONS.get(str(given), given)
    try:
        values = yaml.safe_load(files.read(file, configuration.LARGEST))
    except FileNotFoundError:
        if (near := get_close_matches(str(given), [*ABLATIONS, *configuration.names()], n=1)) and near[0] in ABLATIONS:
            raise ConfigError(f"there is no experiment {str(given)!r}; did you mean {near[0]!r}?") from None
        return None
    except (OSError, ValueError, yaml.YAMLError):  # reading it as a configuration will say what is wrong
        return None
    if not (isinstance(values, dict) and "groups" in values):
        return None
    try:
        found = Experiment.model_validate({**values, "name": file.stem})
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{file} is not an experiment; see docs/guides/comparing.md. " + "; ".join(faults)) from error

    def placed(variant: Variant) -> Variant:
        base = variant.base if "base" in variant.model_fields_set else found.base
        return variant.model_copy(update={"base": configuration.located(base, file.parent)})

    groups = tuple(
        group.model_copy(update={"variants": {label: placed(each) for label, each in group.variants.items()}})
        for group in found.groups
    )
    named: dict[str, Variant] = {}
    for each in (variant for group in groups for variant in group.variants.values()):
        other = named.setdefault(each.name, each)
        if other.config() != each.config():
            raise ConfigError(
                f"{file}: {other.base} and {each.base} would both be called {each.name!r} and share their runs; rename "
                "one of the files"
            )
    return found.model_copy(update={"groups": groups})


def comparison(files: Sequence[Path], overrides: Sequence[str] = ()) -> Experiment:
    """Configurations over environment steps and over seconds, as in the paper's Figure 2, and over other costs.

    With several environments (`overrides` apply to all runs) there is a group for each, over steps and CPU seconds.

    Raises:
        ConfigError: two files have one name, and folders of one name, and would share a folder.
    """
    variants: dict[str, Variant] = {}
    environments: dict[str, dict[str, Variant]] = {}
    found = [configuration.located(file) for file in files]
    shared = Counter(file.stem for file in found)
    for file in found:
        label = file.stem if shared[file.stem] == 1 else f"{file.parent.name}_{file.stem}"
        if label in variants:
            raise ConfigError(f"{variants[label].base} and {file} would both be called {label!r}; rename one of them")
        variants[label] = Variant(base=file, label=label)
        env = variants[label].config(overrides).env
        title = ", ".join([env.name, *(f"{name} {value}" for name, value in env.options.items())])
        environments.setdefault(title, {})[label] = variants[label]
    axes: tuple[Axis, ...] = ("steps", "cpu_seconds")
    if len(environments) == 1:
        environments, axes = {"Success": variants}, AXES
    groups = [Group(title=title, variants=members, axes=axes) for title, members in environments.items()]
    configs = [each.config(overrides) for each in variants.values()]
    if any(config.env.reward == "environment" for config in configs):
        groups.append(Group(title="Greedy return", variants=variants, metric=EVALUATED_RETURN))
    if any(config.goals.type != "uniform" for config in configs):  # show how these develop
        groups += [Group(title=title, variants=variants, metric=metric) for title, metric in _BY_TYPE.items()]
    about = "Greedy success on fresh episodes, over environment steps, seconds, CPU seconds and forward passes."
    return Experiment(title="Comparison", about=about, groups=tuple(groups))


def evaluation_grid(configs: Sequence[Config]) -> int | None:
    """Environment steps between evaluations to set for all configurations; None if they already agree.

    If those with interim evaluations agree, the others follow. Otherwise the shortest budget gets about 20 evaluations,
    at multiples of every update interval, so all are evaluated at the same steps.
    """
    every = {config.evaluation.every_steps for config in configs}
    given = every - {0}
    if len(given) == 1:
        return None if every == given else given.pop()
    interval = lcm(*(config.algo.update_interval for config in configs))
    wanted = min(config.steps for config in configs) / _EVALUATIONS
    return interval * max(1, round(wanted / interval))
