"""Demonstrations: a file of episodes as JSON lines, written and read one at a time.

If the environment repeats itself, an episode is a function of goal, seed and actions, and a line holds only these.
Otherwise a line holds everything that the environment returned. Either way, the episode is replayed and checked.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from sacglam import files
from sacglam.envs import CheckedEnv, Split, TextEnv
from sacglam.envs.conversion import shown
from sacglam.errors import DemonstrationError, SacglamError
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.sampling import WindowSampler
from sacglam.replay.windows import window
from sacglam.types import Decision, Episode, Observation, Step, Window

_LONGEST = 64 * files.MIB  # of a line


class _Seen(files.Form, extra="forbid"):
    text: str
    candidates: tuple[str, ...]


class _Taken(_Seen):
    """A state, the action taken there, and its result."""

    action: str
    reward: float
    achieved: tuple[str, ...]
    terminated: bool
    truncated: bool


class _Line(files.Form, extra="forbid"):
    """An episode: its `actions`, perhaps with a checksum of their results to compare; or its `steps`, perhaps with the
    kind of their rewards (`env.reward`)."""

    goal: str
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    actions: Annotated[tuple[str, ...] | None, Field(min_length=1)] = None
    transcript: str | None = None
    steps: Annotated[tuple[_Taken, ...] | None, Field(min_length=1)] = None
    last: _Seen | None = None
    rewards: Literal["goal", "environment"] | None = None


class _Recorded:
    """An environment that returns what was recorded, whatever the action."""

    def __init__(self, steps: Sequence[_Taken], last: _Seen) -> None:
        seen = [Observation(each.text, each.candidates) for each in (*steps, last)]
        self._first = seen[0]
        self._steps = (
            Step(after, step.reward, step.achieved, step.terminated, step.truncated)
            for step, after in zip(steps, seen[1:], strict=True)
        )

    def goals(self, split: Split) -> Sequence[str]:
        return ()

    def goal_type(self, goal: str) -> str:
        return goal

    def reset(self, goal: str, seed: int) -> Observation:
        return self._first

    def step(self, action: int) -> Step:
        return next(self._steps)


def read(file: Path, env: CheckedEnv, repeats: bool = True) -> Iterator[Episode]:
    """The episodes of `file`, in order; `repeats` says whether `env` can play one again from its actions alone.

    Decisions have log-probability 0 and version 0: how likely the action was is unknown. Reads one line at a time.

    Raises:
        DemonstrationError: the file cannot be read, or a line, which the message names, is not an episode of `env`.
    """
    goals, number, found = dict.fromkeys(env.goals("train")), 0, False
    try:
        with files.opened(file) as source:
            while line := source.readline(_LONGEST + 1):
                number += 1
                if len(line) > _LONGEST:
                    raise DemonstrationError(f"expected a line of at most {_LONGEST:,} bytes, got a longer one")
                if line := line.strip():
                    found = True
                    yield _episode(_Line.model_validate_json(line), env, goals, repeats)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        said = f"{where and f'{where}: '}{fault['msg']} (got {shown(fault['input'])})"
        raise DemonstrationError(f"{file}, line {number}: {said}") from error
    except OSError as error:
        raise DemonstrationError(f"cannot read the demonstrations {file}: {error.strerror}") from error
    except SacglamError as error:
        raise DemonstrationError(f"{file}, line {number}: {error}") from error
    if not found:
        raise DemonstrationError(f"{file} is empty; expected one episode a line, as sacglam collect writes them")


def _episode(line: _Line, env: CheckedEnv, goals: Mapping[str, None], repeats: bool) -> Episode:
    if line.goal not in goals:
        near = (get_close_matches(line.goal, goals, n=1) or [*goals])[0]
        raise DemonstrationError(f"expected a training goal of the environment, such as {near!r}; got {line.goal!r}")
    if line.steps and line.last:
        wanted = "environment" if env.own_rewards else "goal"
        if line.rewards not in (None, wanted):
            raise DemonstrationError(
                f"expected rewards recorded with env.reward={wanted}, as in this run, got {line.rewards}; record "
                "the episodes again"
            )
        for goal in {goal for step in line.steps for goal in step.achieved}:
            env.goal_type(goal)  # refuses unknown goals
        recorded = CheckedEnv(_Recorded(line.steps, line.last), "as recorded").rewarding(env.own_rewards)
        return _played(recorded, line, [step.action for step in line.steps])
    if not line.actions or not repeats:
        either = "`actions`, or " if repeats else "with env.repeats false "
        raise DemonstrationError(f"expected {either}`steps` and `last`; got {', '.join(sorted(line.model_fields_set))}")
    episode = _played(env, line, line.actions)
    if line.transcript not in (None, episode.transcript()):
        raise DemonstrationError(
            "expected the texts, candidate actions and rewards that were recorded, got others: env.reward, the "
            "environment's code or its options have changed, or it does not repeat itself. Record it again; or "
            "remove `transcript` from the line to take what the environment returns now"
        )
    return episode


def _played(env: TextEnv, line: _Line, actions: Sequence[str]) -> Episode:
    """The episode of these actions in `env`."""
    first = seen = env.reset(line.goal, line.seed)
    decisions, steps = list[Decision](), list[Step]()
    for number, action in enumerate(actions, start=1):
        if steps and (steps[-1].terminated or steps[-1].truncated):
            raise DemonstrationError(f"the episode ends after {len(steps)} actions, but the line has {len(actions)}")
        if action not in seen.actions:
            raise DemonstrationError(f"action {number}: expected one of {shown(seen.actions)}, got {shown(action)}")
        decisions.append(Decision(seen.actions.index(action), 0.0, 0))
        steps.append(env.step(decisions[-1].action))
        seen = steps[-1].observation
    return Episode(line.goal, first, tuple(decisions), tuple(steps), line.seed)


def write(file: Path, episodes: Iterable[Episode], repeats: bool, rewards: str, progress: Callable[[int], None]) -> int:
    """Write `episodes` to a new file, with all their steps unless the environment `repeats`; return how many succeed.

    `rewards` is `env.reward` of the episodes. `progress` receives the number written.

    Raises:
        DemonstrationError: the file already exists.
        OSError: the file cannot be written; nothing of it remains.
    """
    if file.exists():
        raise DemonstrationError(f"{file} already exists; choose another file, or remove it")
    successes = 0
    with files.replacing(file) as target:
        for done, episode in enumerate(episodes, start=1):
            target.write(json.dumps(_line(episode, repeats, rewards)).encode() + b"\n")
            successes += episode.success
            progress(done)
    return successes


def _line(episode: Episode, repeats: bool, rewards: str) -> dict[str, Any]:
    line, length = {"goal": episode.goal, "seed": episode.seed}, len(episode.steps)
    if repeats:
        return {**line, "actions": [*map(episode.action, range(length))], "transcript": episode.transcript()}
    seen = [{"text": each.text, "candidates": each.actions} for each in map(episode.observation, range(length + 1))]
    ends = ("reward", "achieved", "terminated", "truncated")
    taken = [{"action": episode.action(t), **{n: getattr(episode.steps[t], n) for n in ends}} for t in range(length)]
    steps = [before | after for before, after in zip(seen, taken, strict=False)]
    return {**line, "rewards": rewards, "steps": steps, "last": seen[-1]}


@dataclass(frozen=True)
class Demonstrations:
    """The episodes of a file: in a ring, from which they are drawn like any others, and step by step for imitation."""

    ring: ReplayBuffer
    steps: Sequence[tuple[Episode, int]]
    checksum: str
    """The file's SHA-256, by which a resumed run recognises it."""

    @classmethod
    def load(cls, file: Path, env: CheckedEnv, repeats: bool, ring: ReplayBuffer) -> "Demonstrations":
        """Load `file` into the empty `ring`; if the file has more entries than fit, the last ones are kept.

        Raises:
            DemonstrationError: see `read`.
        """
        for number, episode in enumerate(read(file, env, repeats), start=1):
            try:
                ring.add(episode)
            except SacglamError as error:
                raise DemonstrationError(f"{file}, episode {number}: {error}") from error
        kept = [(episode, t) for episode in ring.episodes() for t in range(len(episode.steps))]
        with files.opened(file) as source:
            return cls(ring, kept, hashlib.file_digest(source, "sha256").hexdigest())  # type: ignore[arg-type]

    def steps_of(self, rng: np.random.Generator, sampler: WindowSampler) -> list[Window]:
        """Single steps towards their episodes' own goals, drawn uniformly."""
        chosen = [self.steps[i] for i in rng.integers(len(self.steps), size=sampler.algo.batch_size)]
        return [window(episode, episode.goal, t, 1, sampler.algo.gamma, sampler.history) for episode, t in chosen]
