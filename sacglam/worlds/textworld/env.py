"""TextWorld's generated games as a `TextEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

if TYPE_CHECKING:
    from sacglam.worlds.textworld.games import Engine, Game, Scene

_TYPES = {"take": "take", "open": "open", "put": "put", "be": "go"}


class TextWorld(BaseEnv):
    """TextWorld (Côté et al., 2018): goals are facts to bring about in one of several generated games.

    Args:
        games: number of games. An episode takes place in one where its goal is possible and not yet a fact.
        rooms: rooms of a game.
        objects: objects of a game, containers and furniture among them.
        first_seed: seed of the first game; the others follow.
        max_steps: steps until an episode is truncated.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self, *, games: int = 4, rooms: int = 2, objects: int = 8, first_seed: int = 0, max_steps: int = 30
    ) -> None:
        super().__init__("textworld", max_steps)
        self._check_range("games", games, 1, 1_000)
        self._check_range("rooms", rooms, 1, 20)
        self._check_range("objects", objects, 1, 100)
        self._check_range("first_seed", first_seed, 0, 60_000)
        self._games = [(seed, rooms, objects) for seed in range(first_seed, first_seed + games)]
        self._scene: Scene

    @override
    def goals(self, split: Split) -> Sequence[str]:
        """The goals that are possible in some game; a fifth of those that put one thing on or in another is held out.

        Raises:
            ConfigError: TextWorld is not installed.
        """
        return [goal for goal in self._places if _heldout(goal) == (split == "heldout")]

    @override
    def goal_type(self, goal: str) -> str:
        self._found(goal, self._places)
        return _TYPES[goal.split()[0]]

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        """Start the episode of `goal`, trained on or held out, in the game that `seed` selects. Games start alike.

        Raises:
            ConfigError: `goal` is not in the goal space, or its game cannot be compiled.
        """
        places = self._found(goal, self._places)
        self._begin(goal)
        # A string seeds through SHA-512, so the game is the same in every process; hash() would not be.
        self._scene = self._engine.start(Random(f"{seed} {goal}").choice(places))
        return Observation(self._scene.text, self._scene.commands)

    @override
    def step(self, action: int) -> Step:
        """Enter the command with this index. It achieves the goals that were no facts before, and now are."""
        before = self._scene.facts
        self._scene = self._engine.act(self._scene.commands[action])
        new = sorted(self._scene.facts - before)
        achieved = [fact for fact in new if fact == self._goal or (fact in self._places and not _heldout(fact))]
        return self._outcome(Observation(self._scene.text, self._scene.commands), achieved)

    @override
    def optimal_length(self) -> int | None:
        return None  # a search would take longer than the episode

    @override
    def expert(self) -> int | None:
        command = self._engine.advice(self._goal)
        return None if command is None else self._scene.commands.index(command)

    @cached_property
    def _engine(self) -> Engine:
        from sacglam.worlds.textworld.games import Engine

        return Engine()

    @cached_property
    def _places(self) -> dict[str, list[Game]]:
        """The games in which each goal is possible; drawn on first use, since that imports TextWorld."""
        try:
            from sacglam.worlds.textworld.games import make_game
        except ImportError as error:
            raise ConfigError(
                f"textworld is not installed ({error}); run pip install -e '.[textworld]', which builds jericho and so "
                "needs gcc and make (docs/guides/textworld.md)"
            ) from error
        places: dict[str, list[Game]] = {}
        for game in [make_game(*each) for each in self._games]:
            for goal in game.goals():
                places.setdefault(goal, []).append(game)
        return places


def _heldout(goal: str) -> bool:
    return goal.startswith("put ") and crc32(goal.encode()) % 5 == 0
