"""TextWorld's games and its engine: the only file that imports it."""

from collections.abc import Set
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import textworld
from huggingface_hub import constants
from textworld.generator import CouldNotCompileGameError, compile_game, make_game_with, make_grammar, make_world
from textworld.generator.inform7 import Inform7Game

from sacglam.errors import ConfigError

_LOOKING = ("examine", "inventory", "look")


class Game:
    """A game drawn from `seed`. It has no quest, so it never ends by itself."""

    def __init__(self, seed: int, rooms: int, objects: int) -> None:
        self._options = textworld.GameOptions()
        self._options.seeds = seed
        rngs = self._options.rngs
        world = make_world(rooms, objects, rngs)
        self._game = make_game_with(world, [], make_grammar(self._options.grammar, rngs["grammar"]))
        self._name = f"{textworld.__version__}-rooms{rooms}-objects{objects}-seed{seed}"

    def goals(self) -> tuple[str, ...]:
        """The goals that can be achieved and do not hold at the start, sorted.

        They are what actions lead to if nothing is ever undone: no way to a goal uses up what it needs later.
        """
        state, rules = self._game.world.state.copy(), self._game.kb.rules.values()
        start = set(state.facts)
        while True:
            actions = list(state.all_applicable_actions(rules, self._game.kb.types.constants_mapping))
            new = {fact for action in actions for fact in action.added} - set(state.facts)
            if not new:
                break
            state.add_facts(new)
        readable = Inform7Game(self._game).get_human_readable_fact
        return tuple(sorted(filter(None, (_goal(readable(fact)) for fact in set(state.facts) - start))))

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
                _publish(Path(made, "game"), folder)
        return folder / "game.z8"


make_game = cache(Game)


class Scene(NamedTuple):
    """What a game says of its state: a text, the commands that do something, and the goals that are facts now."""

    text: str
    commands: tuple[str, ...]
    facts: Set[str]


class Engine:
    """One game at a time, played by its interpreter."""

    def __init__(self) -> None:
        self._request = textworld.EnvInfos(admissible_commands=True, facts=True, description=True, inventory=True)
        self._path: Path | None = None
        self._env: Any = None

    def start(self, game: Game) -> Scene:
        """Start `game`, always in the same state."""
        if game.compiled() != self._path:
            self._path = game.compiled()
            if self._env is not None:
                self._env.close()
            self._env = textworld.start(str(self._path), self._request)
        return _scene(self._env.reset())

    def act(self, command: str) -> Scene:
        """Enter one of the commands."""
        return _scene(self._env.step(command)[0])


def _scene(state: Any) -> Scene:
    # What `look` and `inventory` answer is in the text.
    commands = [command for command in state.admissible_commands if command.split()[0] not in _LOOKING]
    lines = f"{state.description}\n{state.inventory}".splitlines()
    text = "\n".join(line.strip() for line in lines if line.strip())
    return Scene(text, tuple(commands) or ("look",), frozenset(filter(None, map(_goal, state.facts))))


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


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:  # another process was first
        if not folder.is_dir():
            raise
