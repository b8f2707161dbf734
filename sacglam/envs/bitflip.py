"""Bit flipping (Andrychowicz et al., 2017, Section 3.1) as a text environment: the classic test of hindsight.

An action names the bit as it will be, so it is right if and only if the goal contains that name.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product
from random import Random
from string import ascii_lowercase
from typing import Literal

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.envs.playground.vocabulary import FURNITURE
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

_LETTERS = tuple((letter, letter.upper()) for letter in ascii_lowercase[:16])
_FURNITURE = tuple((f"red {name}", f"blue {name}") for name in FURNITURE)
_FORMATS = {"letters": ("Bits: ", " ", _LETTERS), "furniture": ("You see: ", ", ", _FURNITURE)}
"""How bits are written: the beginning of the text, what separates them, and each bit's names, unset and set."""


@cache
def _bit_strings(bits: int, text: str) -> dict[str, int]:
    """All 2^bits bit strings, such as `a B c`, and their numbers: bit i is 1 if the i-th name is that of a set bit."""
    _, separator, names = _FORMATS[text]
    strings = product(*reversed(names[:bits]))  # the last varies fastest: bit 0
    return {separator.join(reversed(chosen)): number for number, chosen in enumerate(strings)}


class BitFlip(BaseEnv[int]):
    """Turn one bit string into another, one bit per step. A goal is a bit string; the fewest steps are their distance.

    Args:
        bits: length of the string, at least 1.
        max_steps: steps until an episode is truncated; by default `bits`, which always suffices.
        text: `letters` (`a B c`, a capital where a bit is set; at most 16) or `furniture` (`red door, blue chair`, blue
            where it is set; at most 10), words that the built-in model can distinguish.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self, *, bits: int = 8, max_steps: int | None = None, text: Literal["letters", "furniture"] = "letters"
    ) -> None:
        if text not in _FORMATS:
            raise ConfigError(f"bitflip: expected text to be one of {', '.join(_FORMATS)}, got {text!r}")
        super().__init__(f"bitflip with text {text!r}", max_steps)
        self._label, _, names = _FORMATS[text]
        self._check_range("bits", bits, 1, len(names))
        self._max_steps = max_steps or bits
        self._names, self._space = names[:bits], _bit_strings(bits, text)
        self._strings = tuple(self._space)

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return self._strings if split == "train" else ()

    @override
    def goal_type(self, goal: str) -> str:
        self._wanted(goal)
        return "bitflip"

    @override
    def _start(self, wanted: int, rng: Random) -> Observation:
        """Start from a uniformly drawn string other than the goal."""
        drawn = rng.randrange(len(self._strings) - 1)
        self._state = drawn + (drawn >= wanted)
        return self._observe()

    @override
    def step(self, action: int) -> Step:
        """Flip the bit with this index, which achieves the resulting string."""
        self._state ^= 1 << action
        return self._outcome(self._observe(), [self._strings[self._state]])

    @override
    def optimal_length(self) -> int:
        """The Hamming distance from here to the goal."""
        return (self._state ^ self._space[self._goal]).bit_count()

    def _observe(self) -> Observation:
        actions = tuple(f"Make {names[1 - (self._state >> bit & 1)]}" for bit, names in enumerate(self._names))
        return Observation(f"{self._label}{self._strings[self._state]}", actions)
