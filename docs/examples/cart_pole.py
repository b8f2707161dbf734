"""CartPole in words: a task without success, whose return is what counts.

PYTHONPATH=. sacglam train docs/examples/cart_pole.yaml
"""

from bisect import bisect
from collections.abc import Mapping
from typing import Any

from sacglam.worlds.gymnasium import Describer

SIDES = (
    "far to the left",
    "to the left",
    "slightly to the left",
    "slightly to the right",
    "to the right",
    "far to the right",
)
SPEEDS = ("quickly to the left", "slowly to the left", "hardly at all", "slowly to the right", "quickly to the right")


class CartPole(Describer):
    """The four numbers of the state, each as one of five or six phrases."""

    names = ("Push left", "Push right")

    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        place, velocity, angle, rate = obs.tolist()
        return (
            f"The pole leans {SIDES[bisect((-0.1, -0.04, 0, 0.04, 0.1), angle)]} "
            f"and falls {SPEEDS[bisect((-0.8, -0.2, 0.2, 0.8), rate)]}\n"
            f"The cart stands {SIDES[bisect((-1.2, -0.4, 0, 0.4, 1.2), place)]} "
            f"and rolls {SPEEDS[bisect((-0.8, -0.2, 0.2, 0.8), velocity)]}"
        )

    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return "Keep the pole upright"
