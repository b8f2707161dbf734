"""Little-Zoo: an episode by hand, and an independent simulator that plays and plans by names instead of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from sacglam.envs import make
from sacglam.envs.little_zoo import LittleZoo
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

FURNITURE = ["door", "chair", "desk", "lamp", "table", "cupboard", "sofa", "bookshelf", "bed"]
PLANTS = ["carrot", "potato", "berry", "lettuce", "tomato", "cucumber", "spinach", "broccoli", "onion"]
HERBIVORES = ["cow", "elephant", "rabbit", "deer", "sheep", "giraffe", "goat", "horse", "bison"]
CARNIVORES = ["lion", "tiger", "bobcat", "panther", "coyote", "wolf", "leopard", "hyena", "jackal"]
HELD_OUT = {name for kind in (FURNITURE, PLANTS, HERBIVORES, CARNIVORES) for name in kind[6:]}
ENV = LittleZoo()
BY_TYPE: dict[str, list[str]] = {}
for each in ENV.goals("train"):
    BY_TYPE.setdefault(ENV.goal_type(each), []).append(each)
SCENES = st.lists(
    st.sampled_from(["water", *FURNITURE, *PLANTS, *HERBIVORES, *CARNIVORES]), min_size=4, max_size=4, unique=True
)
ANY = st.builds(
    lambda verb, scene, slot: f"{verb} {scene[slot]} among {', '.join(scene)}",
    st.sampled_from(["Grasp", "Grow"]),
    SCENES,
    st.integers(0, 3),
)
GOALS = ANY | st.sampled_from(sorted(BY_TYPE)).flatmap(lambda kind: st.sampled_from(BY_TYPE[kind]))
PICKS = st.lists(st.integers(0, 20), max_size=16)


@dataclass(frozen=True)
class Beings:
    """The independent simulator: which names are where, and how old."""

    scene: tuple[str, ...]
    adults: frozenset[str] = field(default_factory=frozenset)
    ground: frozenset[str] = field(default_factory=frozenset)
    bag: frozenset[str] = field(default_factory=frozenset)
    below: str = ""

    @classmethod
    def of(cls, goal: str) -> Beings:
        scene = tuple(goal.split(" among ")[1].split(", "))
        return cls(scene, ground=frozenset(scene))

    def shown(self, name: str) -> str:
        if name in PLANTS and name not in self.adults:
            return name + " seed"
        return f"baby {name}" if name in HERBIVORES + CARNIVORES and name not in self.adults else name

    def texts(self, names: frozenset[str]) -> list[str]:
        return [self.shown(name) for name in self.scene if name in names]

    @property
    def observation(self) -> Observation:
        around, bag = self.texts(self.ground), self.texts(self.bag)
        lines = [
            "You see: " + (", ".join(around) or "nothing"),
            "You are on: " + (self.shown(self.below) if self.below else "nothing"),
            "Inventory: " + (", ".join(bag) or "empty"),
        ]
        actions = ["Grasp"] + [f"Go to {text}" for text in around] + [f"Release {text}" for text in bag]
        return Observation("\n".join(lines), tuple(actions))

    def eats(self, food: str) -> bool:
        """Whether what is below grows from this food."""
        if self.below in self.adults:
            return False
        pairs = [(["water"], PLANTS), (PLANTS, HERBIVORES), (HERBIVORES, CARNIVORES)]
        fits = any(food in foods and self.below in eaters for foods, eaters in pairs)
        return fits and (food == "water" or food in self.adults)

    def after(self, action: str) -> tuple[Beings, str]:
        """The situation after an action, and what was done: `Grasp deer`, `Grow deer` or nothing."""
        if action == "Grasp":
            if not self.below or len(self.bag) >= 2:
                return self, ""
            taken = self.below
            return replace(self, ground=self.ground - {taken}, bag=self.bag | {taken}, below=""), f"Grasp {taken}"
        name = next(name for name in self.scene if action.endswith(f" {self.shown(name)}"))
        if action.startswith("Go to"):
            return replace(self, below=name), ""
        left = replace(self, bag=self.bag - {name})
        if self.eats(name):
            return replace(left, adults=self.adults | {self.below}), f"Grow {self.below}"
        return replace(left, ground=self.ground | {name}, below=name), ""

    def distances(self, wanted: str) -> int | None:
        """Fewest actions until what is wanted is done, by trying all."""
        wave, known = {self}, {self}
        for length in range(1, 100):
            done = [here.after(action) for here in wave for action in here.observation.actions]
            if any(what == wanted for _, what in done):
                return length
            wave = {there for there, _ in done} - known
            known |= wave
        return None


def played(goal: str, picks: list[int]) -> Iterator[tuple[Step, Step, LittleZoo, Beings]]:
    """Each step as the environment and as the simulator have it."""
    env, here = LittleZoo(), Beings.of(goal)
    observation = env.reset(goal, 0)
    assert observation == here.observation
    wanted, _, scene = goal.partition(" among ")
    name = wanted.split()[1]
    limit = 3 if wanted.startswith("Grasp") else 6 if name in PLANTS else 15 if name in CARNIVORES else 10
    done: set[str] = set()
    for number, pick in enumerate(picks, 1):
        action = pick % len(observation.actions)
        here, what = here.after(observation.actions[action])
        listed = what and what not in done and (what == wanted or not HELD_OUT & set(here.scene))
        done.add(what)
        success, achieved = what == wanted, (f"{what} among {scene}",) if listed else ()
        expected = Step(here.observation, float(success), achieved, success, not success and number == limit)
        step = env.step(action)
        yield step, expected, env, here
        if step.terminated or step.truncated:
            return
        observation = step.observation


@given(GOALS, PICKS)
@settings(deadline=None, max_examples=300)
def test_it_plays_as_the_simulator_does(goal: str, picks: list[int]) -> None:
    for step, expected, _, _ in played(goal, picks):
        assert step == expected


@given(GOALS, PICKS)
@settings(deadline=None, max_examples=40)
def test_it_plans_as_the_simulator_does(goal: str, picks: list[int]) -> None:
    wanted = goal.partition(" among ")[0]
    assert LittleZoo().goal_type(goal).startswith("impossible") == (Beings.of(goal).distances(wanted) is None)
    for step, _, env, here in played(goal, picks):
        assert env.optimal_length() == (0 if step.terminated else here.distances(wanted))


@given(GOALS, PICKS)
@settings(deadline=None, max_examples=50)
def test_the_contract_holds(check_contract: Callable[..., None], goal: str, picks: list[int]) -> None:
    scene = goal.partition(" among ")[2]

    class OfScene(LittleZoo):
        @override
        def goals(self, split: str) -> list[str]:  # those of the scene, not only those to train on
            names = [] if HELD_OUT & set(scene.split(", ")) else scene.split(", ")
            return [f"{verb} {name} among {scene}" for verb in ("Grasp", "Grow") for name in names]

    check_contract(OfScene(), goal, 0, picks)


def test_a_carnivore_by_hand() -> None:
    env = make("little_zoo")
    observation = env.reset("Grow lion among water, carrot, deer, lion", 0)
    assert observation == Observation(
        "You see: water, carrot seed, baby deer, baby lion\nYou are on: nothing\nInventory: empty",
        ("Grasp", "Go to water", "Go to carrot seed", "Go to baby deer", "Go to baby lion"),
    )
    achieved: list[str] = []
    plan = ["Go to water", "Grasp", "Go to carrot seed", "Release water", "Grasp", "Go to baby deer", "Release carrot"]
    for left, action in zip(range(10, 0, -1), [*plan, "Grasp", "Go to baby lion", "Release deer"], strict=True):
        assert env.optimal_length() == left
        step = env.step(observation.actions.index(action))
        observation = step.observation
        achieved += [goal.partition(" among ")[0] for goal in step.achieved]
    assert achieved == ["Grasp water", "Grow carrot", "Grasp carrot", "Grow deer", "Grasp deer", "Grow lion"]
    assert (step.reward, step.terminated, env.optimal_length()) == (1.0, True, 0)
    assert observation == Observation("You see: lion\nYou are on: lion\nInventory: empty", ("Grasp", "Go to lion"))


def test_a_mistake_can_make_a_goal_impossible() -> None:
    env = make("little_zoo")
    observation = env.reset("Grow carrot among water, carrot, onion, bed", 0)
    for action in ("Go to water", "Grasp", "Go to onion seed", "Release water"):
        observation = env.step(observation.actions.index(action)).observation
    assert env.optimal_length() is None


def test_goals_by_type_and_their_optimal_lengths() -> None:
    assert {kind: len(goals) for kind, goals in BY_TYPE.items()} == {
        "grasp": 400,
        "grow_plant": 80,
        "grow_herbivore": 16,
        "grow_carnivore": 8,
        "impossible": 2000,
    }
    lengths = {"grasp": 2, "grow_plant": 4, "grow_herbivore": 7, "grow_carnivore": 10, "impossible": None}
    for kind, goals in BY_TYPE.items():
        for goal in Random(0).sample(goals, min(20, len(goals))):
            ENV.reset(goal, 0)
            assert ENV.optimal_length() == lengths[kind]


def test_training_and_held_out_scenes_share_only_water() -> None:
    trained, heldout = (
        {name for goal in ENV.goals(split) for name in goal.partition(" among ")[2].split(", ")}
        for split in ("train", "heldout")
    )
    assert heldout == HELD_OUT | {"water"}
    assert not trained & HELD_OUT


def test_what_is_evaluated_is_possible_and_balanced() -> None:
    assert Counter(map(ENV.goal_type, ENV.tasks())) == {
        "grasp": 16,
        "grow_plant": 16,
        "grow_herbivore": 16,
        "grow_carnivore": 8,
    }


def test_the_numbers_of_goals_are_options() -> None:
    env = make("little_zoo", impossible=3, grasp=0, grow_plant=2, grow_herbivore=1, grow_carnivore=0)
    assert Counter(map(env.goal_type, env.goals("train"))) == {"impossible": 3, "grow_plant": 2, "grow_herbivore": 1}
    with pytest.raises(ConfigError, match="expected grasp from 0 to 4,000, got 4001"):
        LittleZoo(grasp=4001)


def test_what_is_described_has_a_type_that_is_trained_on() -> None:
    env = make("little_zoo", grasp=0, grow_plant=0)
    seen, achieved = env.reset("Grow deer among water, carrot, deer, lion", 0), list[str]()
    for action in ("water", "Grasp", "carrot seed", "Release water", "Grasp", "baby deer", "Release carrot"):
        step = env.step(next(i for i, text in enumerate(seen.actions) if text.endswith(action)))
        seen = step.observation
        achieved += step.achieved
    assert achieved == ["Grow deer among water, carrot, deer, lion"]


@pytest.mark.parametrize(
    "goal",
    [
        "",
        "Grow lion",
        "Eat deer among water, carrot, deer, lion",
        "Grow cow among water, carrot, deer, lion",
        "Grow deer among water, carrot, deer",
        "Grow deer among deer, deer, water, lion",
        "Grow unicorn among unicorn, deer, water, lion",
    ],
)
def test_what_is_no_goal_is_refused(goal: str) -> None:
    with pytest.raises(ConfigError, match="is not a goal of little_zoo; expected one like"):
        ENV.reset(goal, 0)
