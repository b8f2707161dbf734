"""What an experiment runs: configurations with overrides, seeds, and the order of the runs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import Literal

from sacglam import children
from sacglam import config as configuration
from sacglam.config import Config
from sacglam.errors import ConfigError
from sacglam.runs.directory import RunDirectory

Axis = Literal["steps", "seconds", "cpu_seconds", "forward_passes", "latency"]
MEASURED: tuple[Axis, ...] = ("steps", "seconds", "cpu_seconds", "forward_passes")
"""The axes of curves. The other one, latency, is that of seconds to the threshold."""
_EVALUATIONS = 20


@dataclass(frozen=True)
class Variant:
    """A configuration file with overrides. `name` is its folder, so variants of one name share their runs."""

    name: str
    file: Path
    overrides: tuple[str, ...] = ()

    def config(self, extra: Sequence[str] = ()) -> Config:
        """The configuration with its overrides and `extra` ones."""
        return configuration.load(self.file, [*self.overrides, *extra])


@dataclass(frozen=True)
class Group:
    """Variants to compare: one table, and one panel of the figure for each of `axes`.

    `metric` is a name in `metrics.jsonl`; None is greedy success.
    """

    title: str
    members: dict[str, Variant]
    axes: tuple[Axis, ...] = ("steps",)
    metric: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A question (`title`, `about`) and the groups of variants that answer it.

    The report is `FILES.md` and `FILES.json` with the picture `figure`.
    """

    name: str
    title: str
    about: str
    groups: tuple[Group, ...]
    files: str
    figure: str

    @property
    def variants(self) -> list[Variant]:
        """Each variant once, in the order of its first mention."""
        return list({v.name: v for group in self.groups for v in group.members.values()}.values())


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
        """Where it trains."""
        return RunDirectory(self.root / "runs" / self.variant.name / f"seed{self.seed}")

    @property
    def log(self) -> Path:
        """The output of its processes; outside the run directory, which `sacglam train` claims."""
        return self.root / "logs" / f"{self.variant.name}-seed{self.seed}.txt"

    @cached_property
    def config(self) -> Config:
        """The configuration that this command gives it."""
        return self.variant.config([*self.overrides, f"seed={self.seed}"])

    @property
    def begun(self) -> bool:
        """Whether its folder holds a run, finished or not."""
        return self.directory.claimed

    @property
    def finished(self) -> bool:
        """Whether it has used up its budget and been evaluated."""
        return self.begun and bool((self.directory.summary() or {}).get("finished"))

    def command(self) -> list[str]:
        """The command that starts it, or resumes it if it has begun."""
        train = children.python("-m", "sacglam", "train")
        if self.begun:
            return [*train, "--resume", str(self.directory.root), "--trust"]  # its settings are those of this command
        settings = [word for o in (*self.variant.overrides, *self.overrides) for word in ("--set", o)]
        return [*train, str(self.variant.file), f"--seed={self.seed}", f"--out={self.directory.root}", *settings]


def seeds(text: str) -> range:
    """The seeds that `text` names: "4" for 0 to 3, "10-13" for 10 to 13.

    Raises:
        ConfigError: it is neither, or names no seed.
    """
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+)", text):
        first, last = match.groups()
        named = range(int(last)) if first is None else range(int(first), int(last) + 1)
        if named:
            return named
    raise ConfigError(
        f"--seeds: expected a number of seeds such as 4, or the first and the last as in 10-13; got {text!r}"
    )


def runs(experiment: Experiment, seeds: Sequence[int], overrides: Sequence[str], root: Path) -> list[Run]:
    """All runs in alternating order: seed 0 of every variant, then seed 1 from the second variant on, and so forth.

    So no variant has the quiet hours of the machine to itself, or always runs after the same other one.
    """
    variants = experiment.variants
    return [
        Run(variants[(seed + i) % len(variants)], seed, tuple(overrides), root)
        for seed in seeds
        for i in range(len(variants))
    ]


def comparison(files: Sequence[Path], overrides: Sequence[str] = ()) -> Experiment:
    """Configurations over environment steps and over seconds, as in the paper's Figure 2, and over other costs.

    With several environments (`overrides` apply to all runs) there is a group for each, over steps and CPU seconds.

    Raises:
        ConfigError: two files have one name and would share a folder.
    """
    variants: dict[str, Variant] = {}
    members: dict[str, dict[str, Variant]] = {}
    for file in files:
        if file.stem in variants:
            raise ConfigError(
                f"{variants[file.stem].file} and {file} would both be called {file.stem!r}; rename one of them"
            )
        variant = variants[file.stem] = Variant(file.stem, file)
        members.setdefault(_environment(variant.config(overrides)), {})[file.stem] = variant
    about = (
        "Greedy success on fresh episodes, over environment steps, seconds, CPU seconds and forward passes, and what "
        "slower environments would change."
    )
    if len(members) == 1:
        groups = [Group("Success", each, (*MEASURED, "latency")) for each in members.values()]
    else:
        groups = [Group(environment, each, ("steps", "cpu_seconds")) for environment, each in members.items()]
    return Experiment("compare", "Comparison", about, tuple(groups), files="report", figure="figure2.png")


def _environment(config: Config) -> str:
    """The environment with its options, as a title."""
    return ", ".join([config.env.name, *(f"{name} {value}" for name, value in config.env.options.items())])


def evaluation_grid(configs: Sequence[Config]) -> int | None:
    """Environment steps between evaluations for all, where the configurations do not already agree; else None.

    If all that have interim evaluations agree, the others follow. Otherwise about 20 evaluations in the shortest
    budget, at a multiple of every update interval, so that all are evaluated at the same steps.
    """
    every = {config.evaluation.every_steps for config in configs}
    if len(every) == 1 and 0 not in every:
        return None
    given = every - {0}
    if len(given) == 1:
        return given.pop()
    interval = lcm(*(config.algo.update_interval for config in configs))
    wanted = min(config.steps for config in configs) / _EVALUATIONS
    return interval * max(1, round(wanted / interval))
