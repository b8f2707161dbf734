"""Bit flipping (Andrychowicz et al., 2017, Section 3.1) as a text world: hindsight's classic, its optimum known.

An action names the bit as it will be, so it is right if and only if the goal holds that very name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase
from typing import Literal, overload

from sacglam.envs.base import Split
from sacglam.envs.playground.vocabulary import FURNITURE
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.types import Observation, Step


@dataclass(frozen=True)
class Writing:
    """How bits are put into words: the names of each, unset and set, and what stands around them."""

    label: str
    separator: str
    names: tuple[tuple[str, str], ...]


WRITINGS = {
    "letters": Writing("Bits: ", " ", tuple((letter, letter.upper()) for letter in ascii_lowercase[:16])),
    "furniture": Writing("You see: ", ", ", tuple((f"red {name}", f"blue {name}") for name in FURNITURE)),
}


class BitStrings(Sequence[str]):
    """All 2^bits bit strings in a writing, such as `a B c`. Made when asked for, never stored."""

    def __init__(self, bits: int, writing: Writing = WRITINGS["letters"]) -> None:
        self._names = writing.names[:bits]
        self._separator = writing.separator

    def __len__(self) -> int:
        return 1 << len(self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        chosen = range(len(self))[index]
        return self._write(chosen) if isinstance(chosen, int) else [self._write(value) for value in chosen]

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._read(text) is not None

    def index(self, text: str, start: int = 0, stop: int | None = None) -> int:
        """The number that `text` writes: bit i is set if the i-th name is that of a set bit."""
        value = self._read(text)
        if value is None or value not in range(len(self))[start:stop]:
            raise ValueError(f"{text!r} is not among these bit strings")
        return value

    def _write(self, value: int) -> str:
        return self._separator.join([names[value >> bit & 1] for bit, names in enumerate(self._names)])

    def _read(self, text: str) -> int | None:
        said = text.split(self._separator)
        if len(said) != len(self._names) or any(one not in names for one, names in zip(said, self._names, strict=True)):
            return None
        return sum(names.index(one) << bit for bit, (one, names) in enumerate(zip(said, self._names, strict=True)))


class BitFlip:
    """Turn one bit string into another, one bit at a step. A goal is a bit string, and the optimum their distance.

    Args:
        bits: length of the string, at least 1.
        max_steps: steps until an episode is truncated; by default `bits`, which always suffice.
        text: `letters` (`a B c`, a capital where a bit is set; at most 16) or `furniture` (`red door, blue chair`, blue
            where it is set; at most 10), words that the built-in model tells apart.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self, *, bits: int = 8, max_steps: int | None = None, text: Literal["letters", "furniture"] = "letters"
    ) -> None:
        if text not in WRITINGS:
            raise ConfigError(f"bitflip: expected text to be one of {', '.join(WRITINGS)}, got {text!r}")
        writing = WRITINGS[text]
        if not 1 <= bits <= len(writing.names):
            raise ConfigError(f"bitflip: expected 1 to {len(writing.names)} bits for text {text!r}, got {bits}")
        self._max_steps = bits if max_steps is None else max_steps
        if self._max_steps < 1:
            raise ConfigError(f"bitflip: expected max_steps of at least 1, got {self._max_steps}")
        self._bits = bits
        self._writing = writing
        self._strings = BitStrings(bits, writing)
        self._goal: int | None = None
        self._state = 0
        self._steps = 0
        self._over = False
        self._achieved: set[int] = set()

    def goals(self, split: Split) -> Sequence[str]:
        """All 2^bits bit strings to train on; none is held out."""
        return self._strings if split == "train" else ()

    def goal_type(self, goal: str) -> str:
        """`bitflip`, the only type."""
        self._parse(goal)
        return "bitflip"

    def reset(self, goal: str, seed: int) -> Observation:
        """Start from a uniformly drawn string other than `goal`.

        Raises:
            ConfigError: `goal` is not a bit string of this length.
        """
        self._goal = self._parse(goal)
        # A string seeds through SHA-512, so the start is the same in every process; hash() would not be.
        drawn = Random(f"{seed} {goal}").randrange(len(self._strings) - 1)
        self._state = drawn + (drawn >= self._goal)
        self._steps, self._over, self._achieved = 0, False, set()
        return self._observe()

    def step(self, action: int) -> Step:
        """Flip the bit of this index. The string reached is what the step achieved, unless a step did before.

        Raises:
            EnvironmentContractError: no episode is being played, or there is no such bit.
        """
        if self._goal is None or self._over:
            raise EnvironmentContractError("bitflip: no episode is being played; call reset before step")
        if not 0 <= action < self._bits:
            raise EnvironmentContractError(f"bitflip: expected an action from 0 to {self._bits - 1}, got {action}")
        self._state ^= 1 << action
        self._steps += 1
        text = self._strings[self._state]
        achieved = () if self._state in self._achieved else (text,)
        self._achieved.add(self._state)
        terminated = self._state == self._goal
        truncated = not terminated and self._steps >= self._max_steps
        self._over = terminated or truncated
        return Step(self._observe(), float(terminated), achieved, terminated, truncated)

    def optimal_length(self) -> int | None:
        """The Hamming distance from here to the goal.

        Raises:
            EnvironmentContractError: no episode was started.
        """
        if self._goal is None:
            raise EnvironmentContractError("bitflip: no episode was started; call reset first")
        return (self._state ^ self._goal).bit_count()

    def _observe(self) -> Observation:
        flipped = [names[1 - (self._state >> bit & 1)] for bit, names in enumerate(self._writing.names[: self._bits])]
        return Observation(
            f"{self._writing.label}{self._strings[self._state]}", tuple(f"Make {name}" for name in flipped)
        )

    def _parse(self, goal: str) -> int:
        try:
            return self._strings.index(goal)
        except ValueError as error:
            raise ConfigError(
                f"{goal!r} is no bitflip goal of {self._bits} bits; expected one like {self._strings[0]!r}"
            ) from error
