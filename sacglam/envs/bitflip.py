"""Bit flipping (Andrychowicz et al., 2017, Section 3.1) as a text world: hindsight's classic, its optimum known.

A bit is a letter, and a capital where it is set. An action names the letter as it will be, so that an action is right
if and only if the goal holds that very letter: what a language model of two layers can learn to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from string import ascii_lowercase
from typing import overload

from sacglam.envs.base import Split
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.types import Observation, Step

_MOST_BITS = 16


class BitStrings(Sequence[str]):
    """All 2^bits bit strings, `a B c` for three bits of which the second is set. Made when asked for, never stored."""

    def __init__(self, bits: int) -> None:
        self._letters = ascii_lowercase[:bits]

    def __len__(self) -> int:
        return 1 << len(self._letters)

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
        """The number that `text` writes: bit i is set if the i-th letter is a capital."""
        value = self._read(text)
        if value is None or value not in range(len(self))[start:stop]:
            raise ValueError(f"{text!r} is not among these bit strings")
        return value

    def _write(self, value: int) -> str:
        return " ".join([letter.upper() if value >> bit & 1 else letter for bit, letter in enumerate(self._letters)])

    def _read(self, text: str) -> int | None:
        value = sum(1 << bit for bit, letter in enumerate(self._letters) if letter.upper() in text)
        return value if self._write(value) == text else None


class BitFlip:
    """Turn one bit string into another, one bit at a step. A goal is a bit string, and the optimum their distance.

    Args:
        bits: length of the string, 1 to 16; each bit is named by a letter.
        max_steps: steps until an episode is truncated; by default `bits`, which always suffice.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(self, *, bits: int = 8, max_steps: int | None = None) -> None:
        if not 1 <= bits <= _MOST_BITS:
            raise ConfigError(f"bitflip: expected 1 to {_MOST_BITS} bits, got {bits}")
        self._max_steps = bits if max_steps is None else max_steps
        if self._max_steps < 1:
            raise ConfigError(f"bitflip: expected max_steps of at least 1, got {self._max_steps}")
        self._strings = BitStrings(bits)
        self._bits = bits
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
        return self._observe(self._strings[self._state])

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
        return Step(self._observe(text), float(terminated), achieved, terminated, truncated)

    def optimal_length(self) -> int | None:
        """The Hamming distance from here to the goal.

        Raises:
            EnvironmentContractError: no episode was started.
        """
        if self._goal is None:
            raise EnvironmentContractError("bitflip: no episode was started; call reset first")
        return (self._state ^ self._goal).bit_count()

    def _observe(self, text: str) -> Observation:
        return Observation(f"Bits: {text}", tuple(f"Make {letter.swapcase()}" for letter in text.split()))

    def _parse(self, goal: str) -> int:
        try:
            return self._strings.index(goal)
        except ValueError as error:
            raise ConfigError(
                f"{goal!r} is no bitflip goal of {self._bits} bits; expected one like {self._strings[0]!r}"
            ) from error
