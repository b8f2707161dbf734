"""Little-Zoo as a `TextEnv`."""

from collections.abc import Sequence
from random import Random

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.envs.little_zoo.goals import KINDS, Goal, parse, sampled
from sacglam.envs.little_zoo.world import NOTHING, Kind, State, Verb, around, legal_actions, shortest, transition
from sacglam.types import Observation, Step

_LIMITS = {Kind.PLANT: 6, Kind.HERBIVORE: 10, Kind.CARNIVORE: 15}
_GRASP_LIMIT, _FURNITURE_LIMIT = 3, 10
_YOUNG = {Kind.PLANT: "{} seed", Kind.HERBIVORE: "baby {}", Kind.CARNIVORE: "baby {}"}
_MOST_GOALS, _TASKS = 20_000, 16


class LittleZoo(BaseEnv[Goal]):
    """Little-Zoo (Gaven et al., 2025), our own implementation; the original: https://github.com/flowersteam/LittleZoo.

    Plants grow from water, herbivores from grown plants, carnivores from grown herbivores; growing uses the food up. A
    goal names an object to grasp or grow, and the four objects of its scene, in which it may be impossible. A third of
    the names are held out.

    Args:
        impossible: goals to grow what the scene has no food for, furniture among them.
        grasp: goals to grasp an object, which takes 2 steps; limit 3.
        grow_plant: goals to grow a plant, 4 steps; limit 6.
        grow_herbivore: goals to grow a herbivore, 7 steps; limit 10.
        grow_carnivore: goals to grow a carnivore, 10 steps; limit 15.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        *,
        impossible: int = 2000,
        grasp: int = 400,
        grow_plant: int = 80,
        grow_herbivore: int = 16,
        grow_carnivore: int = 8,
    ) -> None:
        super().__init__("little_zoo", None)
        possible = {
            "grasp": grasp,
            "grow_plant": grow_plant,
            "grow_herbivore": grow_herbivore,
            "grow_carnivore": grow_carnivore,
        }
        counts = {**possible, "impossible": impossible}
        for option, count in counts.items():
            self._check_range(option, count, 0, _MOST_GOALS if option == "impossible" else _MOST_GOALS // 5)
        self._types = {type_ for type_, count in counts.items() if count}
        self._train = [goal.text for goal in sampled(tuple(counts.items()), heldout=False)]
        self._heldout = [goal.text for goal in sampled(tuple((each, _TASKS) for each in possible), heldout=True)]

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return self._train if split == "train" else self._heldout

    def tasks(self) -> Sequence[str]:
        """The training goals to evaluate on: the first 16 of each type that is possible."""
        found: dict[str, list[str]] = {}
        for goal in self._train:
            found.setdefault(self.goal_type(goal), []).append(goal)
        return [goal for kind, goals in found.items() if kind != "impossible" for goal in goals[:_TASKS]]

    @override
    def goal_type(self, goal: str) -> str:
        return self._wanted(goal).type

    @override
    def _start(self, wanted: Goal, rng: Random) -> Observation:
        """Start in the scene that the goal names; nothing is drawn."""
        self._asked, self._state = wanted, State()
        limit = _LIMITS.get(KINDS[wanted.name], _FURNITURE_LIMIT)
        self._max_steps = _GRASP_LIMIT if wanted.verb is Verb.GRASP else limit
        return self._observe()

    @override
    def step(self, action: int) -> Step:
        """Take the action with this index. What happened is described as a goal of the same scene."""
        scene = self._asked.scene
        chosen = legal_actions(len(scene), self._state)[action]
        self._state, event = transition(self._asked.kinds, self._state, chosen)
        goals = [] if event is None else [Goal(event.verb, scene[event.slot], scene)]
        # Of a held-out scene no other goal is described, or hindsight would train on it.
        others = set() if self._asked.heldout else self._types
        achieved = [goal.text for goal in goals if goal == self._asked or goal.type in others]
        return self._outcome(self._observe(), achieved)

    @override
    def optimal_length(self) -> int | None:
        """Fewest steps from here to the episode's goal, by exact search; None if there is no way to it."""
        done = self._goal in self._achieved
        return 0 if done else shortest(self._asked.kinds, self._state, self._asked.event)

    def _observe(self) -> Observation:
        names, state = [self._describe(slot) for slot in range(len(self._asked.scene))], self._state
        on = "nothing" if state.on == NOTHING else names[state.on]
        return Observation(
            text=f"You see: {', '.join(names[slot] for slot in around(len(names), state)) or 'nothing'}\n"
            f"You are on: {on}\nInventory: {', '.join(names[slot] for slot in state.held) or 'empty'}",
            actions=tuple(
                verb.value if verb is Verb.GRASP else f"{verb.value} {names[slot]}"
                for verb, slot in legal_actions(len(names), state)
            ),
        )

    def _describe(self, slot: int) -> str:
        name = self._asked.scene[slot]
        return name if slot in self._state.grown else _YOUNG.get(KINDS[name], "{}").format(name)

    @override
    def _wanted(self, goal: str) -> Goal:
        wanted = parse(goal)
        if wanted is None:
            raise self._no_goal(goal, self._train)
        return wanted
