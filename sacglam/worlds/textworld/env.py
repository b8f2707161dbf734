"""TextWorld's generated games as a `TextEnv`."""

from collections.abc import Sequence
from random import Random
from typing import Any
from zlib import crc32

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.types import Observation, Step
from sacglam.worlds.textworld.games import Game, make_game

_TYPES = {"take": "take", "open": "open", "put": "put", "be": "go"}


class TextWorld(BaseEnv[list[Game]]):
    """TextWorld (Côté et al., 2018): goals are facts to bring about in one of several generated games.

    Args:
        games: number of games. An episode takes place in one where its goal is possible and not yet a fact.
        rooms: rooms of a game.
        objects: objects of a game, including containers and furniture.
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
        self._space: dict[str, list[Game]] = {}
        for game in [make_game(seed, rooms, objects) for seed in range(first_seed, first_seed + games)]:
            for goal in game.goals():
                self._space.setdefault(goal, []).append(game)
        self._game: Game
        self._interpreter: Any = None

    @override
    def goals(self, split: Split) -> Sequence[str]:
        """What is possible in some game; a fifth of the goals that put one thing on or in another is held out."""
        return [goal for goal in self._space if _heldout(goal) == (split == "heldout")]

    @override
    def goal_type(self, goal: str) -> str:
        self._wanted(goal)
        return _TYPES[goal.split()[0]]

    @override
    def _start(self, wanted: list[Game], rng: Random) -> Observation:
        """Start one of the games in which the goal is possible. A game always starts the same way."""
        game = rng.choice(wanted)
        if self._interpreter is None or game is not self._game:
            if self._interpreter is not None:
                self._interpreter.close()
            self._game, self._interpreter = game, game.interpreter()
        self._interpreter.reset()
        self._facts = game.start
        return self._observe()

    @override
    def step(self, action: int) -> Step:
        """Enter the command with this index. It achieves the goals that were not facts before and now are."""
        before, (command, effect) = self._facts, list(self._actions.items())[action]
        self._facts = self._game.after(before, effect)
        self._answer(command)
        new = sorted(self._game.achieved(self._facts) - self._game.achieved(before))
        achieved = [fact for fact in new if fact == self._goal or (fact in self._space and not _heldout(fact))]
        return self._outcome(self._observe(), achieved)

    def _observe(self) -> Observation:
        """The texts are the interpreter's; facts and commands follow from TextWorld's rules, which is faster."""
        self._actions = self._game.actions(self._facts)
        return Observation(f"{self._answer('look')}\n{self._answer('inventory')}", tuple(self._actions))

    def _answer(self, command: str) -> str:
        """The interpreter's answer, without blank lines."""
        lines = str(self._interpreter.step(command)[0].feedback).partition("\n>")[0].splitlines()
        return "\n".join(line.strip() for line in lines if line.strip())

    @override
    def expert(self) -> int | None:
        command = self._game.advice(self._facts, self._goal)
        return None if command is None else list(self._actions).index(command)


def _heldout(goal: str) -> bool:
    return goal.startswith("put ") and crc32(goal.encode()) % 5 == 0
