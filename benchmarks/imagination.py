"""How good imagined goals are: which exist, which are said to be achieved, and which were.

    python -m benchmarks.imagination --seed 501 --imagine 0.5

trains `autotelic/judge` in an environment that reports held-out goals, too. They are hidden from the run; only what is
printed at the end uses them. With `--true` the environment is the judge, also of imagined goals: the best there can be.
With `--all` it names all that was achieved, held-out goals included, as if they were training goals. `--full` takes the
full game.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np

from benchmarks import common
from sacglam import config as configuration
from sacglam.clock import PhaseClock
from sacglam.envs.playground import Playground, goals
from sacglam.envs.playground.vocabulary import Thing
from sacglam.envs.playground.world import Verb
from sacglam.partners import JudgeConfig, LearnedJudge, Partner, Verdict
from sacglam.prompt import Prompt
from sacglam.training import train
from sacglam.types import Classifiers, Episode

TRAINED, HELD_OUT = (frozenset(goals.goals(True, heldout)) for heldout in (False, True))  # the simple game's among them
COUNTS = Counter[str]()
KEYS = ("imagined_share", "imagined_success", "imagined_exist", "partner_precision", "partner_recall")


class Reporting(Playground):
    """Playground, whose `achieved` also lists held-out goals."""

    def _describe(self, verb: Verb, thing: Thing) -> list[str]:
        now = _singles(verb, thing)
        before = [each for grown in self._grown for each in _singles(Verb.GROW, grown)] if self._sequential else []
        if verb is Verb.GROW:
            self._grown[thing] = None
        pairs = [goals.sequence(a.text, b.text) for a in before for b in now if goals.pairs(a, b)]
        return [*(single.text for single in now), *pairs]


def _singles(verb: Verb, thing: Thing) -> list[goals.Single]:
    return [single for single in goals.singles() if single.fits(verb, thing)]


def _without_held_out(episode: Episode) -> Episode:
    """The episode as an environment reports it that keeps held-out goals to itself."""
    steps = (replace(s, achieved=tuple(g for g in s.achieved if g not in HELD_OUT)) for s in episode.steps)
    return replace(episode, steps=tuple(steps))


@dataclass(eq=False)
class Watched(LearnedJudge):
    """A judge that never hears of held-out goals; counts them."""

    _described: dict[str, None] = field(default_factory=dict, init=False)

    def describe(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        seen = [_without_held_out(episode) for episode in episodes]
        teaching = self._labelled < self.settings.budget
        self._described |= dict.fromkeys(episode.goal for episode in seen if episode.goal in TRAINED)
        if teaching:
            self._described |= dict.fromkeys(g for e in seen for s in e.steps for g in s.achieved)
        judged = super().describe(seen)
        for episode, verdict in () if teaching else zip(episodes, judged, strict=True):
            true = {goal for step in episode.steps for goal in step.achieved}
            said = {goal for step in verdict.steps for goal in step.achieved}
            count(true, said, self._described)
        return judged


@dataclass(eq=False)
class TruePartner(LearnedJudge):
    """Names what was achieved of the goals that a judge would be asked for."""

    def pursuable(self) -> Mapping[str, None]:
        return self.known

    def describe(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        self.known |= dict.fromkeys(g for e in episodes for s in _without_held_out(e).steps for g in s.achieved)
        seen = Partner.describe(self, episodes)
        for episode, judged in zip(episodes, seen, strict=True):
            named = {goal for step in judged.steps for goal in step.achieved}
            count({goal for step in episode.steps for goal in step.achieved}, named, dict.fromkeys(TRAINED))
            COUNTS.update(f"{goal.split()[0]} {goal.split()[-1]}" for goal in named & HELD_OUT)
        return seen

    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        asked = [set(self._candidates(episode.goal)) for episode in episodes]
        return [
            [[g for g in step.achieved if g in some] for step in e.steps]
            for e, some in zip(episodes, asked, strict=True)
        ]


@dataclass(eq=False)
class Everything(TruePartner):
    """Names all that was achieved."""

    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        return [[step.achieved for step in episode.steps] for episode in episodes]


class WatchedConfig(JudgeConfig):
    """The judge, compared with the truth about imagined goals."""

    partner: ClassVar[Callable[..., Partner]] = Watched

    type: str = "benchmarks.imagination:WatchedConfig"

    def build(self, rng: np.random.Generator, clock: PhaseClock, prompt: Prompt, classifiers: Classifiers) -> Partner:
        return self.partner(rng, clock, self, prompt, classifiers)


class TrueConfig(WatchedConfig):
    """The environment's own verdicts about known and imagined goals, from the first step on."""

    partner: ClassVar[Callable[..., Partner]] = TruePartner

    type: str = "benchmarks.imagination:TrueConfig"


class EverythingConfig(WatchedConfig):
    """The environment's own verdicts about all goals."""

    partner: ClassVar[Callable[..., Partner]] = Everything

    type: str = "benchmarks.imagination:EverythingConfig"


def count(true: set[str], said: set[str], described: dict[str, None]) -> None:
    """What was said of goals that nobody has described."""
    for goal in said | true:
        if goal in described:
            continue
        where = "trained" if goal in TRAINED else "held out" if goal in HELD_OUT else "no goal"
        COUNTS[f"{where}: {'said' if goal in said else 'not said'}, {'true' if goal in true else 'false'}"] += 1


def main() -> None:
    """Train, and print what was learnt and what was said of goals that nobody had described."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--imagine", type=float, default=0.5)
    parser.add_argument("--pursue", type=float, default=0.0)
    partner = parser.add_mutually_exclusive_group()
    partner.add_argument("--true", action="store_true")
    partner.add_argument("--all", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--steps", type=int, default=1920)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], help="settings of the run, such as partner.budget=2000")
    given = parser.parse_args()
    kind = TrueConfig if given.true else EverythingConfig if given.all else WatchedConfig
    base, size = ("full/sac_her", "full") if given.full else ("autotelic/judge", "simple")
    overrides = [f"env.name={__name__}:{Reporting.__name__}", f"env.options.size={size}"]
    overrides += [f"partner.type={__name__}:{kind.__name__}"]
    overrides += [f"partner.{key}={getattr(given, key)}" for key in ("imagine", "pursue")]
    overrides += ["partner.budget=500", "threads=1"]
    overrides += [f"{key}={getattr(given, key)}" for key in ("seed", "steps")]
    config = configuration.load(base, [*overrides, *given.set, f"evaluation.episodes={given.episodes}"])
    with TemporaryDirectory() as folder:
        summary = train(config, Path(folder, "run"))
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    success = {key: summary[key] for key in ("success_after", "success_heldout", "train_cpu_seconds")}
    own = {key: [round(line[key], 2) for line in lines if key in line] for key in KEYS}
    common.emit([{**vars(given), **success, **own, **dict(sorted(COUNTS.items()))}])


if __name__ == "__main__":
    from benchmarks import imagination  # the module whose COUNTS the partner fills, not `__main__`

    imagination.main()
