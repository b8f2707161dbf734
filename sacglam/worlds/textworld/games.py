"""TextWorld's games and its engine: the only file that imports it."""

from collections.abc import Set
from functools import cache, cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

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
"""Answers and lists of actions cached for a game."""


class State(NamedTuple):
    """Facts of a game, and where things are, in the order in which they got there: texts list them in this order."""

    facts: frozenset[Proposition]
    placed: tuple[Proposition, ...] = ()

    def after(self, action: Action) -> "State":
        """The state that `action` leads to."""
        placed = [fact for fact in self.placed if fact not in action.removed]
        placed += [fact for fact in action.added if fact.name in _PLACED and fact.names[0] != "P"]
        placed.sort(key=lambda fact: fact.names[1])  # the order matters within a place only
        return State((self.facts - action.removed) | action.added, tuple(placed))

    def around(self, *places: str) -> "State":
        """The facts about these places, their doors, and everything in them, directly or not."""
        near, size = set(places), 0
        while len(near) > size:
            size = len(near)
            near.update(fact.names[0] for fact in self.facts if fact.name in _PLACED and fact.names[1] in near)
            near.update(fact.names[1] for fact in self.facts if fact.name == "link" and fact.names[0] in near)
        facts = frozenset(fact for fact in self.facts if not near.isdisjoint(fact.names))
        return State(facts, tuple(fact for fact in self.placed if fact.names[1] in near))

    @property
    def room(self) -> str:
        """Where the player is."""
        return next(str(fact.names[1]) for fact in self.facts if fact.name == "at" and fact.names[0] == "P")


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
        self.start = State(frozenset(world.state.facts))
        # Known for all copies in this process.
        self.answers: dict[tuple[str, State], str] = {}
        self.actions = lru_cache(maxsize=_CACHED)(self._actions)
        self._goal = cache(lambda fact: _goal(self._inform.get_human_readable_fact(fact)))

    def goals(self) -> tuple[str, ...]:
        """The goals that can be achieved and do not hold at the start, sorted.

        They are what actions lead to if nothing is ever undone: no path to a goal uses up what it needs later.
        """
        return tuple(sorted(self.achieved(self._everything[0] - self.start.facts)))

    @cached_property
    def _everything(self) -> tuple[frozenset[Proposition], list[Action]]:
        """The facts and actions that the start leads to if nothing is ever undone."""
        facts, actions = self.start.facts, self._applicable(self.start.facts)
        while new := {fact for action in actions for fact in action.added} - facts:
            facts |= new
            actions = self._applicable(facts)
        return facts, actions

    def advice(self, state: State, goal: str) -> str | None:
        """The first command of a shortest path to `goal`; None if there is none.

        A breadth-first search, over the actions that lead to the goal or to what these need.
        """
        possible, actions = self._everything
        wanted = {fact for fact in possible if self._goal(fact) == goal}
        useful, needed = dict[Action, None](), set(wanted)
        while more := [each for each in actions if each not in useful and not needed.isdisjoint(each.added)]:
            useful |= dict.fromkeys(more)
            needed.update(*(each.preconditions for each in more))
        commands = self.actions(state.around(state.room, "I").facts)
        frontier = [(state.after(action), command) for command, action in commands.items() if action in useful]
        visited = {state.facts}
        while frontier:
            following = []
            for here, command in frontier:
                if not wanted.isdisjoint(here.facts):
                    return command
                if here.facts not in visited:
                    visited.add(here.facts)
                    able = (action for action in useful if here.facts.issuperset(action.preconditions))
                    following += [(here.after(action), command) for action in able]
            frontier = following
        return None

    def achieved(self, facts: Set[Proposition]) -> frozenset[str]:
        """The goals among these facts."""
        return frozenset(filter(None, map(self._goal, facts)))

    def _actions(self, facts: frozenset[Proposition]) -> dict[str, Action]:
        """The commands that do something, sorted, with what each does."""
        actions = self._applicable(facts)
        commands = dict(zip(self._inform.gen_commands_from_actions(actions), actions, strict=True))
        # What `look` and `inventory` answer is in the text.
        return {command: commands[command] for command in sorted(commands) if command.split()[0] not in _LOOKING}

    def _applicable(self, facts: frozenset[Proposition]) -> list[Action]:
        kb, state = self._game.kb, logic.State(self._game.kb.logic, facts)
        return list(state.all_applicable_actions(kb.rules.values(), kb.types.constants_mapping))

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
                    raise ConfigError(
                        f"textworld: Inform 7, which comes with it, does not compile a game: {error}"
                    ) from error
                try:
                    Path(made, "game").rename(folder)
                except OSError:  # another process was first
                    if not folder.is_dir():
                        raise
        return folder / "game.z8"


make_game = cache(Game)


class Scene(NamedTuple):
    """A state as the agent sees it: a text, the commands that do something, and the goals that are facts now."""

    text: str
    commands: tuple[str, ...]
    facts: Set[str]


class Engine:
    """One game at a time.

    Facts and commands follow from TextWorld's rules. Its interpreter takes 1 to 3 ms for a command, and is asked only
    for texts that this process has not read before.
    """

    def __init__(self) -> None:
        self._game: Game
        self._state: State
        self._path: Path | None = None
        self._env: Any = None
        self._started = False  # whether the interpreter is in this episode
        self._unsent: list[str] = []

    def start(self, game: Game) -> Scene:
        """Start `game`, always in the same state."""
        self._game, self._state = game, game.start
        self._started, self._unsent = False, []
        return self._scene()

    def act(self, command: str) -> Scene:
        """Enter one of the commands."""
        self._state = self._state.after(self._scene_actions()[command])
        self._unsent.append(command)
        return self._scene()

    def advice(self, goal: str) -> str | None:
        """See `Game.advice`."""
        return self._game.advice(self._state, goal)

    def _scene_actions(self) -> dict[str, Action]:
        return self._game.actions(self._state.around(self._state.room, "I").facts)

    def _scene(self) -> Scene:
        state = self._state
        text = f"{self._answer('look', state.around(state.room))}\n{self._answer('inventory', state.around('I'))}"
        return Scene(text, tuple(self._scene_actions()), self._game.achieved(state.facts))

    def _answer(self, command: str, around: State) -> str:
        """The interpreter's answer to `command`, which depends on `around` alone, without blank lines."""
        cached = self._game.answers
        if (command, around) not in cached:
            if len(cached) >= _CACHED:
                cached.clear()
            lines = self._ask(command).partition("\n>")[0].splitlines()
            cached[command, around] = "\n".join(line.strip() for line in lines if line.strip())
        return cached[command, around]

    def _ask(self, command: str) -> str:
        """Enter `command`, after the commands of the episode that have not been sent yet."""
        if self._game.compiled() != self._path:
            self._path = self._game.compiled()
            if self._env is not None:
                self._env.close()
            self._env = textworld.start(str(self._path))
            self._started = False
        if not self._started:
            self._env.reset()
            self._started = True
        for unsent in self._unsent:
            self._env.step(unsent)
        self._unsent.clear()
        return str(self._env.step(command)[0].feedback)


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
