"""The phases of the clock in the order of the loop, with what people call them and the colours of the chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OTHER = "other"
"""The rest of the wall time: what the loop does between phases."""


@dataclass(frozen=True)
class Look:
    """How a phase is shown."""

    title: str
    colour: str  # "#rrggbb"

    @property
    def dark(self) -> bool:
        """Whether figures on it are to be white."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue < 128


PHASES: Mapping[str, Look] = {
    "environment": Look("environment", "#4e9a51"),
    "scoring": Look("scoring", "#a6d287"),
    "replay": Look("replay", "#e6c229"),
    "batch": Look("batch making", "#f2e29b"),
    "target": Look("target", "#9ecae1"),
    "forward": Look("forward", "#4292c6"),
    "backward": Look("backward", "#08519c"),
    "optimizer": Look("optimizer", "#807dba"),
    "publish": Look("adapter: publish", "#fdae6b"),
    "handoff": Look("adapter: hand-off", "#e6550d"),
    "parity": Look("parity gate", "#a63603"),
    "waiting": Look("waiting", "#bdbdbd"),
    OTHER: Look("other", "#636363"),
}
_UNKNOWN_COLOURS = ("#d6616b", "#ce6dbd", "#8c6d31", "#17becf")


def ordered(names: Iterable[str]) -> list[str]:
    """`names` in the order of the loop; phases that this table does not know come before the rest, by name."""
    order = {name: place for place, name in enumerate(PHASES)}
    return sorted(set(names), key=lambda name: (order.get(name, order[OTHER] - 0.5), name))


def look(name: str) -> Look:
    """How `name` is shown; a phase that the table does not know goes by its own name."""
    return PHASES.get(name) or Look(name, _UNKNOWN_COLOURS[sum(map(ord, name)) % len(_UNKNOWN_COLOURS)])
