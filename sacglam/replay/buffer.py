"""The replay buffer: a ring of transitions, three sampling strategies, and its form on disk."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.config import ReplayConfig
from sacglam.errors import CheckpointError, EnvironmentContractError
from sacglam.types import Observation, Source, Transition

Indices = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

_SOURCES: tuple[Source, ...] = ("real", "hindsight")
_NUMBERS = {
    "action": np.int32,
    "reward_n": np.float64,
    "discount_n": np.float64,
    "terminated": np.bool_,
    "version": np.int64,
}
_INDEX, _SOURCE = np.int32, np.int8
_TYPES = {**_NUMBERS, "source": _SOURCE, **dict.fromkeys(("goal", "observation", "next_observation"), _INDEX)}


class ReplayBuffer:
    """Keeps the newest `capacity` transitions, original and relabelled."""

    def __init__(self, config: ReplayConfig, goal_type: Callable[[str], str], prior: Mapping[str, float]) -> None:
        """`prior` is the environment's distribution over goal types; only `sampling="prior"` samples by it."""
        self._config = config
        self._goal_type = goal_type
        self._types = {name: number for number, name in enumerate(sorted(prior))}
        self._prior = np.array([prior[name] for name in self._types])
        self._ring: list[Transition] = []
        self._next = 0
        self._hindsight = np.zeros(config.capacity, dtype=bool)
        self._type = np.zeros(config.capacity, dtype=np.int16)
        self._version = np.zeros(config.capacity, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, transitions: Iterable[Transition]) -> None:
        """Append, overwriting the oldest once full.

        Raises:
            EnvironmentContractError: a goal's type is not in `prior`.
        """
        for transition in transitions:
            goal_type = self._goal_type(transition.goal)
            if goal_type not in self._types:
                raise EnvironmentContractError(
                    f"expected goals of the training goals' types ({', '.join(self._types)}), got {transition.goal!r} "
                    f"of type {goal_type!r}; let the environment achieve training goals and the episode's own only"
                )
            if len(self._ring) < self._config.capacity:
                self._ring.append(transition)
            else:
                self._ring[self._next] = transition
            self._hindsight[self._next] = transition.source == "hindsight"
            self._type[self._next] = self._types[goal_type]
            self._version[self._next] = transition.version
            self._next = (self._next + 1) % self._config.capacity

    def sample(self, rng: np.random.Generator, size: int) -> list[Transition]:
        """`size` transitions with replacement, by the strategy; uniform while a strategy has nothing to choose from.

        Raises:
            ValueError: the buffer is empty.
        """
        if not self._ring:
            raise ValueError("cannot sample from an empty replay buffer")
        choose = {"uniform": self._uniform, "ratio": self._by_ratio, "prior": self._by_prior}[self._config.sampling]
        return [self._ring[i] for i in choose(rng, size)]

    def hindsight_share(self) -> float:
        """Share of relabelled transitions in the buffer (paper, Figure 7)."""
        return float(self._hindsight[: len(self)].mean()) if self._ring else 0.0

    def oldest_version(self) -> int:
        """The oldest policy version (in updates) that collected a transition in the buffer."""
        return int(self._version[: len(self)].min()) if self._ring else 0

    def _uniform(self, rng: np.random.Generator, size: int) -> Indices:
        return rng.integers(len(self), size=size)

    def _by_ratio(self, rng: np.random.Generator, size: int) -> Indices:
        marks = self._hindsight[: len(self)]
        hindsight, real = np.flatnonzero(marks), np.flatnonzero(~marks)
        wanted = round(self._config.hindsight_ratio * size)
        if not len(hindsight) or not len(real):
            return self._uniform(rng, size)
        return np.concatenate([rng.choice(hindsight, wanted), rng.choice(real, size - wanted)])

    def _by_prior(self, rng: np.random.Generator, size: int) -> Indices:
        types = self._type[: len(self)]
        present = np.bincount(types, minlength=len(self._types)) > 0
        weights = self._prior * present
        if not weights.sum():
            return self._uniform(rng, size)
        counts = rng.multinomial(size, weights / weights.sum())
        drawn = [rng.choice(np.flatnonzero(types == kind), count) for kind, count in enumerate(counts) if count]
        return np.concatenate(drawn)

    def state(self) -> tuple[Columns, dict[str, Any]]:
        """The buffer as number columns (for npz) and JSON values; each text is stored once."""
        goals: dict[str, int] = {}
        seen: dict[Observation, int] = {}
        columns: Columns = {
            name: np.array([getattr(t, name) for t in self._ring], dtype=dtype) for name, dtype in _NUMBERS.items()
        }
        columns["source"] = np.array([_SOURCES.index(t.source) for t in self._ring], dtype=_SOURCE)
        indices = {
            "goal": [goals.setdefault(t.goal, len(goals)) for t in self._ring],
            "observation": [seen.setdefault(t.observation, len(seen)) for t in self._ring],
            "next_observation": [seen.setdefault(t.next_observation, len(seen)) for t in self._ring],
        }
        columns |= {name: np.array(numbers, dtype=_INDEX) for name, numbers in indices.items()}
        texts = {"next": self._next, "goals": list(goals), "observations": [[o.text, *o.actions] for o in seen]}
        return columns, texts

    def load_state(self, columns: Columns, texts: Mapping[str, Any]) -> None:
        """Restore what `state()` returned.

        Raises:
            CheckpointError: it holds more than the capacity, has wrapped around at a smaller one, or its columns do not
                describe transitions.
        """
        size, following = len(columns["goal"]), int(texts["next"])
        if size > self._config.capacity or (size < self._config.capacity and following != size):
            raise CheckpointError(
                f"the saved replay buffer of {size} transitions does not fit replay.capacity {self._config.capacity}; "
                "resume with the capacity it was saved with"
            )
        observations = [Observation(text, tuple(actions)) for text, *actions in texts["observations"]]
        _check_columns(columns, texts["goals"], observations)
        lists = {name: column.tolist() for name, column in columns.items()}
        self._ring = []
        self._next = 0
        self.add(
            Transition(
                goal=texts["goals"][lists["goal"][i]],
                observation=observations[lists["observation"][i]],
                next_observation=observations[lists["next_observation"][i]],
                source=_SOURCES[lists["source"][i]],
                **{name: lists[name][i] for name in _NUMBERS},
            )
            for i in range(size)
        )
        self._next = following % self._config.capacity  # a larger ring, filled this far, saved the capacity itself


def _check_columns(columns: Columns, goals: Sequence[Any], observations: Sequence[Observation]) -> None:
    """Refuse columns of other types, and indices beyond the texts or an observation's actions: they would wrap around.

    Raises:
        CheckpointError: these are none that `state` gives.
    """
    size = len(columns["goal"])
    if {name: (column.dtype, column.shape) for name, column in columns.items()} != {
        name: (np.dtype(dtype), (size,)) for name, dtype in _TYPES.items()
    }:
        raise CheckpointError(f"expected the replay buffer's columns {', '.join(_TYPES)} of one length, got others")
    texts = [*goals, *(text for each in observations for text in (each.text, *each.actions))]
    ends = {"goal": len(goals), "observation": len(observations), "next_observation": len(observations), "source": 2}
    outside = [name for name, end in ends.items() if not ((columns[name] >= 0) & (columns[name] < end)).all()]
    if outside or not all(isinstance(text, str) for text in texts):
        raise CheckpointError(f"expected texts for the replay buffer's {outside or ends}, got too few or others")
    actions = np.array([len(each.actions) for each in observations], dtype=_INDEX)[columns["observation"]]
    numbers = np.concatenate([columns["reward_n"], columns["discount_n"]])
    if not ((columns["action"] >= 0) & (columns["action"] < actions)).all() or not np.isfinite(numbers).all():
        raise CheckpointError("expected actions among those of their observation, and finite returns")
