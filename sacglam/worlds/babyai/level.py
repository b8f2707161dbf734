"""A scene of BabyAI-Text and its rules, on minigrid: the only file that imports it."""

from copy import deepcopy
from typing import Any, NamedTuple

from minigrid.core.actions import Actions
from minigrid.envs.babyai.core import verifier
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.utils.baby_ai_bot import BabyAIBot
from typing_extensions import override

from sacglam.envs.playground.vocabulary import Thing
from sacglam.worlds.babyai.goals import TRAINING_DOORS, Goal

_DIRECTIONS = {"forward": (0, -1), "left": (-1, 0), "right": (1, 0)}
_MOST_BOT_STEPS = 1_000


class Event(NamedTuple):
    """An effect of a step: the type of the goals that it may achieve, and the objects that they name."""

    type: str
    things: tuple[Thing, ...]


class Level(RoomGridLevel):  # type: ignore[misc]
    """The scene of one goal: a room, or two with a locked door between them if a door is to be opened.

    Scenes are drawn as in GLAM's levels, except that the goal is given: first its objects are placed, then the others.
    """

    def __init__(self, doors: bool, room_size: int, num_distractors: int, max_steps: int | None) -> None:
        self._num_distractors = num_distractors
        self._goal: Goal
        self._bot: BabyAIBot | None = None
        self._taken: Actions | None = None
        super().__init__(room_size=room_size, num_rows=1, num_cols=1 + doors, max_steps=max_steps)

    def start(self, goal: Goal, seed: int) -> str:
        """Draw the scene of `goal`, and return what the agent sees."""
        self._goal = goal
        self._bot = self._taken = None
        return self.reset(seed=seed)[0]

    def act(self, action: int) -> tuple[str, list[Event], bool]:
        """Take an action. Return what the agent sees, what happened, and whether the time is up."""
        held, self._taken = self.carrying, Actions(action)
        text, _, _, truncated, _ = self.step(Actions(action))
        front = self.grid.get(*self.front_pos)
        events = []
        if action == Actions.pickup and held is None and self.carrying is not None:
            events.append(Event("pick_up", (_thing(self.carrying),)))
        elif action == Actions.drop and held is not None and self.carrying is None:
            x, y = self.front_pos
            around = [self.grid.get(*cell) for cell in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1))]
            events += [Event("put_next", (_thing(held), _thing(other))) for other in around if other is not None]
        elif action == Actions.toggle and front is not None and front.type == "door" and front.is_open:
            events.append(Event("open", (_thing(front),)))
        if front is not None:
            events.append(Event("go_to", (_thing(front),)))
        return text, events, truncated

    def advice(self) -> int | None:
        """The next action of minigrid's bot; None if it has no plan. The bot has a memory, so ask it at every step."""
        self._bot = self._bot or BabyAIBot(self)
        try:
            action = self._bot.replan(self._taken)
        except Exception:  # as in `bot_steps`
            return None
        return None if action == Actions.done else int(action)

    def bot_steps(self) -> int | None:
        """Steps that minigrid's bot, which sees no more than the agent, takes to solve the mission from here.

        None if it cannot, for example once the goal's box has been opened, which destroys it.
        """
        level = deepcopy(self)
        bot = BabyAIBot(level)
        for step in range(1, _MOST_BOT_STEPS):
            try:
                action = bot.replan()
            except Exception:  # it fails in many ways on what it cannot solve
                return None
            if level.step(action)[2]:
                return step
        return None

    @override
    def _gen_grid(self, width: int, height: int) -> None:
        """Draw scenes until one suits the mission; minigrid's own loop prints each one that does not."""
        while True:
            super(RoomGridLevel, self)._gen_grid(width, height)
            try:
                self.gen_mission()
                self.check_objs_reachable()
                self.validate_instrs(self.instrs)
                return
            except (RejectSampling, RecursionError):
                continue

    @override
    def gen_mission(self) -> None:
        self.instrs = _instruction(self._goal)
        room = 0
        if self._goal.type == "open":
            room = self._rand_int(0, 2)
            colour = self._goal.things[0].colour or self._rand_elem(TRAINING_DOORS)
            self.add_door(room, 0, door_idx=2 * room, color=colour, locked=True)
            self.place_agent(room, 0)
            self.add_object(room, 0, "key", colour)
        else:
            self.place_agent(room, 0)
            for thing in self._goal.things:
                self.add_object(room, 0, thing.type, thing.colour)
        self.add_distractors(room, 0, num_distractors=self._num_distractors, all_unique=False)

    @override
    def gen_obs(self) -> str:
        """What the agent sees, in GLAM's words: what it carries, walls in a straight line, objects by columns."""
        grid, visible = self.gen_obs_grid()  # (x, y); the agent is in the middle of the last row, and faces the first
        here_x, here_y = grid.width // 2, grid.height - 1
        grid.set(here_x, here_y, None)  # what it carries
        cells = {(x, y): grid.get(x, y) for x in range(grid.width) for y in range(grid.height) if visible[x, y]}
        seen = [f"carry a {self.carrying.color} {self.carrying.type}"] if self.carrying else []
        for direction, (dx, dy) in _DIRECTIONS.items():
            line = ((n, cells.get((here_x + dx * n, here_y + dy * n))) for n in range(grid.width))
            n, first = next(((n, cell) for n, cell in line if cell is not None), (0, None))
            if first is not None and first.type == "wall":
                seen.append(f"see a wall {_steps(n, direction)}")
        for (x, y), cell in cells.items():
            if cell is not None and cell.type != "wall":
                aside = _steps(abs(x - here_x), "right" if x > here_x else "left")
                places = [place for place in (aside, _steps(here_y - y, "forward")) if place]
                seen.append(f"see {_name(cell)} {' and '.join(places)}")
        return ", ".join(f"You {sight}" for sight in seen) or "You see nothing"


def _instruction(goal: Goal) -> Any:
    """Minigrid's verifier of `goal`: it rejects scenes, sets the step limit and guides the bot."""
    first, *others = [verifier.ObjDesc(thing.type, thing.colour or None) for thing in goal.things]
    if goal.type == "put_next":
        return verifier.PutNextInstr(first, *others)
    single = {"go_to": verifier.GoToInstr, "pick_up": verifier.PickupInstr, "open": verifier.OpenInstr}
    if goal.type in single:
        return single[goal.type](first)
    then = single["go_to" if "go_to" in goal.type else "pick_up"](*others)
    if "_then_" in goal.type:
        return verifier.BeforeInstr(verifier.PickupInstr(first), then)
    return verifier.AfterInstr(then, verifier.PickupInstr(first))


def _thing(cell: Any) -> Thing:
    return Thing(cell.color, cell.type)


def _name(cell: Any) -> str:
    """`a red ball`, `a locked red door`, `an open red door`."""
    name = f"{cell.color} {cell.type}"
    if cell.type != "door":
        return f"a {name}"
    return f"an open {name}" if cell.is_open else f"a {'locked' if cell.is_locked else 'closed'} {name}"


def _steps(distance: int, direction: str) -> str:
    return f"{distance} step{'s' * (distance > 1)} {direction}" if distance else ""
