"""Twenty questions, with five tries: to the agent, what is hidden looks like chance."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sacglam.envs import Split
from sacglam.types import Observation, Step

QUESTIONS = {
    "big": "Is it bigger than a person?",
    "fly": "Can it fly?",
    "water": "Does it live in water?",
    "sharp": "Is it sharp?",
    "wood": "Is it made of wood?",
    "sweet": "Is it sweet?",
    "red": "Is it red?",
    "cold": "Is it eaten cold?",
}
THINGS = {
    "animal": {
        "elephant": "big",
        "eagle": "fly",
        "shark": "big water",
        "duck": "fly water",
        "trout": "water",
        "mouse": "",
    },
    "tool": {
        "saw": "sharp",
        "axe": "sharp wood",
        "hammer": "wood",
        "wrench": "",
        "ladder": "big wood",
        "crane": "big",
    },
    "food": {
        "cherry": "sweet red",
        "chili": "red",
        "honey": "sweet",
        "bread": "",
        "sorbet": "sweet cold",
        "salad": "cold",
    },
}


class Questions:
    """Find an animal, a tool or a food by questions and guesses. Goals read `Find the tool`."""

    def __init__(self, *, max_steps: int = 5) -> None:
        self._max_steps = max_steps

    def goals(self, split: Split) -> Sequence[str]:
        return [f"Find the {kind}" for kind in THINGS] if split == "train" else []

    def goal_type(self, goal: str) -> str:
        return goal.removeprefix("Find the ")

    def reset(self, goal: str, seed: int) -> Observation:
        things = THINGS[self.goal_type(goal)]
        self._goal, self._answers = goal, dict[str, bool]()
        self._thing = Random(f"{seed} {goal}").choice(list(things))
        self._true = {f"Guess the {self._thing}"} | {QUESTIONS[trait] for trait in things[self._thing].split()}
        return self._observe()

    def step(self, action: int) -> Step:
        asked = self._actions()[action]
        self._answers[asked] = asked in self._true
        won = self._answers[asked] and asked.startswith("Guess")
        lost = not won and len(self._answers) == self._max_steps
        return Step(self._observe(), float(won), (self._goal,) if won else (), won, lost)

    def _actions(self) -> tuple[str, ...]:
        guesses = [f"Guess the {thing}" for things in THINGS.values() for thing in things]
        return tuple(name for name in (*QUESTIONS.values(), *guesses) if name not in self._answers)

    def _observe(self) -> Observation:
        lines = [f"{name} {'yes' if yes else 'no'}" for name, yes in self._answers.items()] or ["Nothing asked yet"]
        left = self._max_steps - len(self._answers)
        return Observation("\n".join([*lines, f"Tries left: {left}"]), self._actions())
