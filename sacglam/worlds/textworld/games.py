"""TextWorld's games, their rules and texts. Only this file imports TextWorld."""

from collections.abc import Set
from functools import cache, cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import textworld
from huggingface_hub import constants
from textworld import logic
from textworld.generator import CouldNotCompileGameError, compile_game, make_game_with, make_grammar, make_world
from textworld.generator.inform7 import Inform7Game
from textworld.logic import Action, Proposition

from sacglam.errors import ConfigError

_LOOKING = ("examine", "inventory", "look")
_PLACED = ("in", "on", "at")
_CACHED = 10_000
"""Number of lists of actions that are cached per game."""

Facts = frozenset[Proposition]


def near(facts: Facts) -> Facts:
    """All that commands depend on: the facts about the player's room, its doors, and everything in it or carried."""
    room = next(fact.names[1] for fact in facts if fact.name == "at" and fact.names[0] == "P")
    places, size = {str(room), "I"}, 0
    while len(places) > size:
        size = len(places)
        places.update(fact.names[0] for fact in facts if fact.name in _PLACED and fact.names[1] in places)
        places.update(fact.names[1] for fact in facts if fact.name == "link" and fact.names[0] in places)
    return frozenset(fact for fact in facts if not places.isdisjoint(fact.names))


class Game:
    """A game drawn from `seed`. It has no quest, so it never ends by itself."""

    def __init__(self, seed: int, rooms: int, objects: int) -> None:
        self._options = textworld.GameOptions()
        self._options.seeds = seed
        rngs = self._options.rngs
        world = make_world(rooms, objects, rngs)
        self._game = make_game_with(world, [], make_grammar(self._options.grammar, rngs["grammar"]))
        self._inform = Inform7Game(self._game)
        self._name = f"{textworld.__version__}-rooms{rooms}-objects{objects}-seed{seed}"
        self.start: Facts = frozenset(world.state.facts)
        self._actions_from = lru_cache(maxsize=_CACHED)(self._actions)  # for all copies in this process
        self._goal = cache(lambda fact: _goal(self._inform.get_human_readable_fact(fact)))

    def goals(self) -> tuple[str, ...]:
        """The goals that can be achieved and do not hold at the start, sorted.

        Found by delete relaxation (actions remove nothing), exact here: no path to a goal uses up what it needs later.
        """
        return tuple(sorted(self.achieved(self._everything[0] - self.start)))

    @cached_property
    def _everything(self) -> tuple[Facts, list[Action]]:
        """The facts and actions that the start leads to if nothing is ever undone."""
        facts, actions = self.start, self._applicable(self.start)
        while new := {fact for action in actions for fact in action.added} - facts:
            facts |= new
            actions = self._applicable(facts)
        return facts, actions

    def advice(self, facts: Facts, goal: str) -> str | None:
        """The first command of a shortest path to `goal`; None if there is none.

        A breadth-first search over the actions that lead to the goal, or to what such actions need.
        """
        possible, actions = self._everything
        wanted = {fact for fact in possible if self._goal(fact) == goal}
        useful, needed = dict[Action, None](), set(wanted)
        while more := [each for each in actions if each not in useful and not needed.isdisjoint(each.added)]:
            useful |= dict.fromkeys(more)
            needed.update(*(each.preconditions for each in more))
        commands = self.actions(facts)
        frontier = [(self.after(facts, action), command) for command, action in commands.items() if action in useful]
        visited = {facts}
        while frontier:
            following = []
            for here, command in frontier:
                if not wanted.isdisjoint(here):
                    return command
                if here not in visited:
                    visited.add(here)
                    able = (action for action in useful if here.issuperset(action.preconditions))
                    following += [(self.after(here, action), command) for action in able]
            frontier = following
        return None

    @staticmethod
    def after(facts: Facts, action: Action) -> Facts:
        """The facts once `action` is done."""
        return (facts - action.removed) | action.added

    def achieved(self, facts: Set[Proposition]) -> frozenset[str]:
        """The goals among these facts."""
        return frozenset(filter(None, map(self._goal, facts)))

    def actions(self, facts: Facts) -> dict[str, Action]:
        """The commands that do something, sorted, with what each does."""
        return self._actions_from(near(facts))

    def _actions(self, facts: Facts) -> dict[str, Action]:
        actions = self._applicable(facts)
        commands = dict(zip(self._inform.gen_commands_from_actions(actions), actions, strict=True))
        # The observation already has the answers to `look` and `inventory`.
        return {command: commands[command] for command in sorted(commands) if command.split()[0] not in _LOOKING}

    def _applicable(self, facts: Facts) -> list[Action]:
        kb, state = self._game.kb, logic.State(self._game.kb.logic, facts)
        return list(state.all_applicable_actions(kb.rules.values(), kb.types.constants_mapping))

    def interpreter(self) -> Any:
        """TextWorld's interpreter of the game."""
        return textworld.start(str(self.compiled()))

    def compiled(self) -> Path:
        """The game's file, compiled on first use and kept under `HF_HOME` for all processes.

        Raises:
            ConfigError: TextWorld's compiler does not run here.
        """
        folder = Path(constants.HF_HOME) / "sacglam" / "textworld" / self._name
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder.parent) as made:
                self._options.path = f"{made}/game/game.z8"
                try:
                    compile_game(self._game, self._options)
                except (CouldNotCompileGameError, OSError) as error:
                    raise ConfigError(f"TextWorld's Inform 7 cannot compile the game: {error}") from error
                try:
                    Path(made, "game").rename(folder)
                except OSError:  # another process was first
                    if not folder.is_dir():
                        raise
        return folder / "game.z8"


make_game = cache(Game)


def _goal(fact: Any) -> str | None:
    """The goal that asks for this fact."""
    first, second = [*fact.arguments, None, None][:2]
    about = str(fact.name), str(second.type) if second else None
    match about:
        case "in", "I":
            return f"take {first.name}"
        case "in", "c":
            return f"put {first.name} in {second.name}"
        case "on", "s":
            return f"put {first.name} on {second.name}"
        case "open", None:
            return f"open {first.name}"
        case "at", "r" if first.type == "P":
            return f"be in {second.name}"
    return None
