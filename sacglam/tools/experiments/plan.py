"""What an experiment runs: variants of configurations, seeds, and the order in which the runs take turns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import Literal

from sacglam import config as configuration
from sacglam.config import Config
from sacglam.errors import ConfigError

Axis = Literal["steps", "seconds"]
_EVALUATIONS = 20


@dataclass(frozen=True)
class Variant:
    """A configuration file with overrides. `name` is its folder, so variants of one name share their runs."""

    name: str
    file: Path
    overrides: tuple[str, ...] = ()

    def config(self, extra: Sequence[str] = ()) -> Config:
        """The configuration it stands for, with `extra` overrides.

        Raises:
            ConfigError: as for `sacglam.config.load`.
        """
        return configuration.load(self.file, [*self.overrides, *extra])


@dataclass(frozen=True)
class Group:
    """Variants that are read side by side: one table, and one panel of the figure for each of `axes`.

    `metric` is a name in `metrics.jsonl`; None is greedy success.
    """

    title: str
    members: dict[str, Variant]
    axes: tuple[Axis, ...] = ("steps",)
    metric: str | None = None


@dataclass(frozen=True)
class Experiment:
    """What is asked (`title`, `about`) and the groups of variants that answer."""

    name: str
    title: str
    about: str
    groups: tuple[Group, ...]

    @property
    def variants(self) -> list[Variant]:
        """Each variant once, in the order of its first mention."""
        return list({v.name: v for group in self.groups for v in group.members.values()}.values())


@dataclass(frozen=True)
class Run:
    """One training: a variant with a seed, and where it goes."""

    variant: Variant
    seed: int
    overrides: tuple[str, ...]
    root: Path

    @property
    def title(self) -> str:
        """How it is called in messages."""
        return f"{self.variant.name} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Its run directory."""
        return self.root / "runs" / self.variant.name / f"seed{self.seed}"

    @property
    def log(self) -> Path:
        """What its processes print; apart from the folder, which belongs to the training."""
        return self.root / "logs" / f"{self.variant.name}-seed{self.seed}.txt"

    @cached_property
    def config(self) -> Config:
        """What it would run now.

        Raises:
            ConfigError: as for `sacglam.config.load`.
        """
        return self.variant.config([*self.overrides, f"seed={self.seed}"])

    def train_command(self) -> list[str]:
        """The command that begins it."""
        settings = [word for o in (*self.variant.overrides, *self.overrides) for word in ("--set", o)]
        return _sacglam("train", self.variant.file, "--seed", self.seed, "--out", self.folder, *settings)

    def resume_command(self) -> list[str]:
        """The command that goes on with it."""
        return _sacglam("train", "--resume", self.folder)

    def heldout_command(self) -> list[str]:
        """The command that measures it on held-out goals, with as many episodes as on those of training."""
        config = self.config
        episodes, device = config.evaluation.episodes, config.device
        return _sacglam(
            "evaluate", self.folder, "--goals", "heldout", "--episodes", episodes, "--device", device, "--json"
        )


def _sacglam(*words: object) -> list[str]:
    return [sys.executable, "-m", "sacglam", *map(str, words)]


def runs(experiment: Experiment, seeds: int, overrides: Sequence[str], root: Path) -> list[Run]:
    """All runs in alternating order: seed 0 of every variant, then seed 1 from the second variant on, and so forth.

    So no variant has the quiet hours of the machine to itself, or always runs after the same other one.
    """
    variants = experiment.variants
    found = []
    for seed in range(seeds):
        first = seed % len(variants)
        for variant in variants[first:] + variants[:first]:
            found.append(Run(variant, seed, tuple(overrides), root))
    return found


def comparison(files: Sequence[Path]) -> Experiment:
    """Configurations side by side, over environment steps and over seconds, as in the paper's Figure 2.

    Raises:
        ConfigError: two files of one name, which would share a folder.
    """
    members: dict[str, Variant] = {}
    for file in files:
        if file.stem in members:
            raise ConfigError(
                f"{members[file.stem].file} and {file} would both be called {file.stem!r}; rename one of them"
            )
        members[file.stem] = Variant(file.stem, file)
    about = "Greedy success on fresh episodes, over environment steps and over seconds of training."
    return Experiment("compare", "Comparison", about, (Group("Success", members, ("steps", "seconds")),))


def evaluation_grid(configs: Sequence[Config]) -> int | None:
    """Environment steps between evaluations for all, where the configurations do not already agree; else None.

    If all that evaluate on the way do it as often, the others follow. Otherwise about 20 evaluations in the shortest
    budget, at a multiple of every update interval, so that all are measured at the same steps.
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
