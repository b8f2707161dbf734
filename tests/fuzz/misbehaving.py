"""Environments that misbehave: a walk along some cells, and faults of it. Workers import this, so it imports little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import count, cycle
from random import Random
from typing import Any

from sacglam.envs import calls, checks
from sacglam.types import Observation, Step

GOALS = ("Reach cell 1", "Reach cell 2", "Reach cell 3")
SURROGATE = "\ud800"
NUMBERS = count()


class Walk:
    """Walk to a cell, from cell 0. A well-behaved environment."""

    def goals(self, split: str) -> Any:
        return GOALS if split == "train" else ("Reach cell 4",)

    def goal_type(self, goal: str) -> Any:
        return "reach"

    def reset(self, goal: str, seed: int) -> Any:
        self.goal, self.cell, self.steps = goal, 0, 0
        self.random = Random(f"{seed} {goal}")
        self.achieved: set[str] = set()
        return self.observe()

    def step(self, action: int) -> Any:
        self.cell = max(0, self.cell - 1) if action else self.cell + 1
        self.steps += 1
        reached = f"Reach cell {self.cell}"
        new = (reached,) if self.cell and reached in {*GOALS, self.goal} - self.achieved else ()
        self.achieved.update(new)
        won = self.goal in new
        return Step(self.observe(), float(won), new, won, not won and self.steps == 6)

    def optimal_length(self) -> Any:
        return abs(int(self.goal[-1]) - self.cell)

    def tasks(self) -> Any:
        return GOALS[1:]

    def notes(self) -> Any:
        return ["a walk"]

    def observe(self) -> Observation:
        return Observation(f"You are in cell {self.cell}", ("Go on", "Go back"))


Patch = Callable[[Walk], Any]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a walk, and a pattern of what is said of it, which is empty where it does no harm."""

    patch: Patch
    said: str = ""
    alone: bool = False
    """It does harm without workers alone."""


def fail(error: Callable[[], Any]) -> Callable[..., Any]:
    def failing(*given: Any) -> Any:
        raise error()

    return failing


def gives(method: str, answer: Callable[[], Any]) -> Patch:
    """`method` answers what `answer` makes."""
    return lambda env: setattr(env, method, lambda *given: answer())


def before(method: str, act: Callable[[], Any]) -> Patch:
    """Something else happens in `method`, which then answers as ever."""

    def patch(env: Walk) -> None:
        inner = getattr(env, method)
        setattr(env, method, lambda *given: (act(), inner(*given))[1])

    return patch


def steps(**changes: Callable[[Any], Any]) -> Patch:
    """Fields of a step are changed."""

    def patch(env: Walk) -> None:
        inner = env.step

        def step(action: int) -> Any:
            found = inner(action)
            return replace(found, **{name: change(getattr(found, name)) for name, change in changes.items()})

        env.step = step  # type: ignore[method-assign]

    return patch


def observes(**changes: Callable[[Any], Any]) -> Patch:
    """Fields of every observation are changed."""

    def patch(env: Walk) -> None:
        inner = env.observe

        def observe() -> Observation:
            found = inner()
            return replace(found, **{name: change(getattr(found, name)) for name, change in changes.items()})

        env.observe = observe  # type: ignore[method-assign]

    return patch


def numpy(make: Callable[[Any], Any]) -> Any:
    import numpy as np

    return make(np)


def torch(act: Callable[[Any], Any]) -> Any:
    import torch

    return act(torch)


def raising_property(method: str) -> Patch:
    """It is looked up in vain, and not with an `AttributeError`; so is what a careless `__getattr__` looks up."""
    return lambda env: setattr(env, "__class__", type("Raising", (Walk,), {method: property(fail(KeyError))}))


class Unprintable(Exception):
    """An exception, and a value, that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


class Strange(str):
    """A text that equals all others."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


class StrangeStep(Step):
    """A step of the environment's own kind, which cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


class StrangeObservation(Observation):
    """The same for an observation."""

    __eq__, __hash__ = StrangeStep.__eq__, None  # type: ignore[assignment]


def strange(kind: Callable[..., Any], found: Any) -> Any:
    return kind(*(getattr(found, field.name) for field in fields(found)))


def once(act: Callable[[], Any]) -> Patch:
    """Something else happens in the first step."""

    def first() -> None:
        if acts:
            acts.pop()()

    acts = [act]
    return before("step", first)


def fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def fork_and_return() -> None:
    if child := os.fork():
        os.waitpid(child, 0)


def remembers(env: Walk) -> None:
    """Its achievements outlive an episode, and so does its place."""
    inner = env.reset

    def reset(goal: str, seed: int) -> Any:
        cell = getattr(env, "cell", 0)
        inner(goal, seed)
        env.cell = cell
        return env.observe()

    env.reset = reset  # type: ignore[method-assign]


def mutates(env: Walk) -> None:
    """It returns its own lists, and changes them later."""
    goals, actions = list(GOALS), ["Go on", "Go back"]
    inner = env.step

    def step(action: int) -> Any:
        goals.reverse(), actions.reverse(), actions.reverse()
        return inner(action)

    gives("goals", lambda: goals)(env)
    env.goals = lambda split: goals if split == "train" else ()  # type: ignore[method-assign]
    env.step = step  # type: ignore[method-assign]
    env.observe = lambda: Observation(f"cell {env.cell}", actions)  # type: ignore[arg-type, method-assign]


def endless(env: Walk) -> None:
    checks.MAX_STEPS = 30
    steps(reward=lambda _: 0.0, achieved=lambda _: (), terminated=lambda _: False, truncated=lambda _: False)(env)


def hangs(env: Walk) -> None:
    calls.PATIENCE_S = 0.2
    before("step", lambda: time.sleep(1000))(env)


def lacks(method: str) -> Patch:
    return lambda env: setattr(env, method, None)


def heldout(answer: Any) -> Patch:
    def patch(env: Walk) -> None:
        env.goals = lambda split: GOALS if split == "train" else answer  # type: ignore[method-assign]

    return patch


NAMED = r"environment 'tests.fuzz.misbehaving:make', "
STEP = NAMED + r"step\(\d\) after \d+ steps, goal '[^']*', seed \d+: "
RESET = NAMED + r"reset\('[^']*', \d+\): "
ORDER = "as a tuple of str, in a fixed order; got"
RAISED = {
    "goals": NAMED + r"goals\('train'\): it raised ",
    "goal_type": NAMED + r"goal_type\('[^']*'\): it raised ",
    "reset": RESET + "it raised ",
    "step": STEP + "it raised ",
    "optimal_length": NAMED + r"optimal_length\(\), goal '[^']*', seed \d+: it raised ",
    "tasks": NAMED + r"tasks\(\): it raised ",
    "notes": NAMED + r"notes\(\): it raised ",
}
MADE = NAMED + "its constructor with the options .*: it raised "

FAULTS: dict[str, Fault] = {
    "none": Fault(lambda env: None),
    **{f"{m} raises": Fault(lambda e, m=m: setattr(e, m, fail(ZeroDivisionError)), s) for m, s in RAISED.items()},
    **{f"{m} exits": Fault(lambda e, m=m: setattr(e, m, fail(lambda: SystemExit(0))), s) for m, s in RAISED.items()},
    **{
        f"{m} is a property that raises": Fault(raising_property(m), NAMED + f"its attribute {m}: it raised KeyError")
        for m in ("optimal_length", "tasks", "notes")
    },
    "constructor raises": Fault(fail(ZeroDivisionError), MADE + "ZeroDivisionError"),
    "constructor exits": Fault(fail(lambda: SystemExit(0)), MADE + "SystemExit"),
    "constructor has a wrong type": Fault(lambda env: len(3), MADE + "TypeError"),  # type: ignore[arg-type]
    "stop iteration": Fault(lambda e: setattr(e, "step", fail(StopIteration)), RAISED["step"] + "StopIteration"),
    "generator exit": Fault(lambda e: setattr(e, "step", fail(GeneratorExit)), RAISED["step"] + "GeneratorExit"),
    "memory error": Fault(lambda e: setattr(e, "reset", fail(MemoryError)), RAISED["reset"] + "MemoryError"),
    "recursion": Fault(lambda e: setattr(e, "step", lambda a: e.step(a)), RAISED["step"] + "RecursionError"),
    "unprintable error": Fault(lambda e: setattr(e, "step", fail(Unprintable)), RAISED["step"] + "Unprintable"),
    "huge error": Fault(lambda e: setattr(e, "step", fail(lambda: ValueError("x" * 10**6))), RAISED["step"]),
    "surrogate in an error": Fault(lambda e: setattr(e, "step", fail(lambda: ValueError(SURROGATE))), r"\\ud800"),
    "no step": Fault(lacks("step"), r"without \['step'\]"),
    "no goals": Fault(lacks("goals"), r"without \['goals'\]"),
    "takes no action": Fault(lambda e: setattr(e, "step", lambda: None), RAISED["step"] + "TypeError"),
    # texts
    "text is none": Fault(observes(text=lambda _: None), "the observation's text as a str, got None"),
    "text is bytes": Fault(observes(text=lambda t: t.encode()), "the observation's text as a str"),
    "text is letters": Fault(observes(text=list), "the observation's text as a str"),
    "text has a surrogate": Fault(observes(text=lambda t: t + SURROGATE), "the observation's text as valid Unicode"),
    "text is numpy's": Fault(observes(text=lambda t: numpy(lambda np: np.str_(t)))),
    "text is strange": Fault(observes(text=Strange)),
    "text is odd": Fault(observes(text=lambda t: t + " \0\n\t\u202e \U0001f600 {goal} [/red] <s>")),
    "text is empty": Fault(observes(text=lambda _: "")),
    "text is huge": Fault(observes(text=lambda t: t * 10**4), "token"),
    # actions
    "actions are none": Fault(observes(actions=lambda _: None), "its actions " + ORDER),
    "actions are a text": Fault(observes(actions=lambda _: "North"), f"its actions {ORDER} 'North'"),
    "actions are a set": Fault(observes(actions=set), "its actions " + ORDER),
    "actions are a frozenset": Fault(observes(actions=frozenset), "its actions " + ORDER),
    "actions are keys": Fault(observes(actions=lambda a: dict.fromkeys(a).keys()), "its actions " + ORDER),
    "actions are bytes": Fault(observes(actions=lambda _: b"ab"), "its actions " + ORDER),
    "actions are numbers": Fault(observes(actions=lambda _: (0, 1)), "each of its actions as a str, got 0"),
    "actions are a list": Fault(observes(actions=list)),
    "actions are a dict": Fault(observes(actions=dict.fromkeys)),
    "actions are a generator": Fault(observes(actions=iter)),
    "actions are an array": Fault(observes(actions=lambda a: numpy(lambda np: np.array(a)))),
    "actions are strange": Fault(observes(actions=lambda a: tuple(map(Strange, a)))),
    "actions have no end": Fault(observes(actions=cycle), "its actions as at most 1,000,000 texts"),
    "actions have a surrogate": Fault(observes(actions=lambda a: (*a, SURROGATE)), "each of its actions as valid"),
    "no actions": Fault(observes(actions=lambda _: ()), "at least one action, got none"),
    "a blank action": Fault(observes(actions=lambda a: (*a, " \n")), "actions of at least one word"),
    "an action twice": Fault(observes(actions=lambda a: a * 2), "distinct actions, got .* more than once"),
    "one action": Fault(observes(actions=lambda a: a[:1])),
    # achieved
    "achieved is none": Fault(steps(achieved=lambda _: None), "achieved " + ORDER),
    "achieved is a set": Fault(steps(achieved=set), "achieved " + ORDER),
    "achieved is a text": Fault(steps(achieved=lambda _: GOALS[0]), "achieved " + ORDER),
    "achieved is a list": Fault(steps(achieved=list)),
    "achieved is a generator": Fault(steps(achieved=iter)),
    "achieved are numbers": Fault(steps(achieved=lambda _: (1,)), "each of achieved as a str, got 1"),
    "achieved again": Fault(steps(achieved=lambda _: GOALS), "reward 1 with|the first step that achieves it"),
    "achieved twice": Fault(steps(achieved=lambda a: a * 2), "reward 1 with|the first step that achieves it"),
    "achieved has a surrogate": Fault(steps(achieved=lambda a: (*a, SURROGATE)), "each of achieved as valid Unicode"),
    # rewards and ends
    "reward is nan": Fault(steps(reward=lambda _: float("nan")), "reward [01] with"),
    "reward is infinite": Fault(steps(reward=lambda _: float("inf")), "reward [01] with"),
    "reward is a half": Fault(steps(reward=lambda _: 0.5), "reward [01] with"),
    "reward is none": Fault(steps(reward=lambda _: None), "the reward as a number, got None"),
    "reward is a text": Fault(steps(reward=str), "the reward as a number"),
    "reward is an array": Fault(steps(reward=lambda r: numpy(lambda np: np.array([r, r]))), "the reward as a number"),
    "reward is an array of one": Fault(steps(reward=lambda r: numpy(lambda np: np.array([r])))),
    "reward is numpy's": Fault(steps(reward=lambda r: numpy(lambda np: np.float32(r)))),
    "reward is a bool": Fault(steps(reward=bool)),
    "reward is too large": Fault(steps(reward=lambda _: 10**400), "reward [01] with"),
    "reward is unprintable": Fault(steps(reward=lambda _: Unprintable()), "the reward as a number"),
    "won without a reward": Fault(steps(reward=lambda _: 0.0), "reward 1 with"),
    "won without an end": Fault(steps(terminated=lambda _: False), "to terminate it"),
    "end is none": Fault(steps(truncated=lambda _: None), "truncated as a number, got None"),
    "end is a text": Fault(steps(terminated=lambda _: "no"), "terminated as a number, got 'no'"),
    "end is two": Fault(steps(terminated=lambda _: 2), "terminated as True or False, got 2"),
    "end is numpy's": Fault(steps(terminated=lambda t: numpy(lambda np: np.bool_(t)), truncated=int)),
    "both ends": Fault(steps(truncated=lambda _: True)),
    "no end": Fault(endless, "an end within 30 steps"),
    # whole answers
    "step gives none": Fault(gives("step", lambda: None), STEP + "expected step to return a sacglam.types.Step"),
    "step gives a tuple": Fault(gives("step", lambda: ("", 0.0, False, False, {})), "Step, got a tuple"),
    "reset gives none": Fault(gives("reset", lambda: None), RESET + "expected reset to give .*, got a NoneType"),
    "reset gives a tuple": Fault(gives("reset", lambda: ("", {})), "Observation, got a tuple"),
    "observation is a text": Fault(steps(observation=lambda o: o.text), "Observation, got a str"),
    "steps are strange": Fault(lambda e: setattr(e, "step", lambda a, s=e.step: strange(StrangeStep, s(a)))),
    "observations are strange": Fault(
        lambda e: setattr(e, "observe", lambda o=e.observe: strange(StrangeObservation, o()))
    ),
    # goals
    "goals are a set": Fault(gives("goals", lambda: {"a", "b"}), "goals " + ORDER),
    "goals are a text": Fault(gives("goals", lambda: "abc"), f"goals {ORDER} 'abc'"),
    "goals are none": Fault(gives("goals", lambda: None), "goals " + ORDER),
    "goals are numbers": Fault(gives("goals", lambda: [1, 2]), "each of goals as a str, got 1"),
    "goals are empty": Fault(gives("goals", list), "at least one goal to train on"),
    "goals repeat": Fault(gives("goals", lambda: ["a", "a"]), "each goal once"),
    "goals have a surrogate": Fault(gives("goals", lambda: [SURROGATE]), "each of goals as valid Unicode"),
    "goals are a generator": Fault(lambda e: setattr(e, "goals", lambda split: iter(Walk().goals(split)))),
    "goals are a dict": Fault(lambda e: setattr(e, "goals", lambda split: dict.fromkeys(Walk().goals(split)))),
    "goals are new each time": Fault(
        gives("goals", lambda: [f"goal {next(NUMBERS)}"]), "different training goals|name training goals"
    ),
    "held-out goals have a surrogate": Fault(heldout([SURROGATE]), r"goals\('heldout'\): .*valid Unicode"),
    "held-out goals are none": Fault(heldout(None), r"goals\('heldout'\): .*in a fixed order"),
    "type is none": Fault(gives("goal_type", lambda: None), "a goal's type as a str, got None"),
    "type has a surrogate": Fault(gives("goal_type", lambda: SURROGATE), "a goal's type as valid Unicode"),
    "type is empty": Fault(gives("goal_type", lambda: ""), "a goal's type other than '' and 'overall'"),
    "type is overall": Fault(gives("goal_type", lambda: "overall"), "a goal's type other than '' and 'overall'"),
    # planner, tasks, notes
    "length is numpy's": Fault(gives("optimal_length", lambda: numpy(lambda np: np.int64(3)))),
    "length is negative": Fault(gives("optimal_length", lambda: -1), "a length as an int of at least 0"),
    "length is infinite": Fault(gives("optimal_length", lambda: float("inf")), "a length as an int of at least 0"),
    "length is a text": Fault(gives("optimal_length", lambda: "3"), "a length as a number"),
    "length is an array": Fault(gives("optimal_length", lambda: numpy(lambda np: np.arange(2))), "as a number"),
    "no planner": Fault(lacks("optimal_length")),
    "tasks are a generator": Fault(gives("tasks", lambda: iter(GOALS))),
    "tasks are foreign": Fault(gives("tasks", lambda: ["Fly"]), "tasks to name training goals"),
    "tasks are empty": Fault(gives("tasks", list), "tasks to name training goals"),
    "tasks are a text": Fault(gives("tasks", lambda: GOALS[0]), "tasks " + ORDER),
    "notes are a text": Fault(gives("notes", lambda: "abc"), "the notes " + ORDER),
    # not repeating itself
    "counts": Fault(observes(text=lambda t: f"{t}, {next(NUMBERS)}"), "does not repeat itself"),
    "draws": Fault(observes(text=lambda t: f"{t}, {os.urandom(4).hex()}"), "does not repeat itself"),
    "shuffles": Fault(observes(actions=lambda a: a[:: -1 if next(NUMBERS) % 2 else 1]), "does not repeat itself"),
    "remembers": Fault(remembers, "does not repeat itself|reward|first step"),
    # side effects
    "prints": Fault(before("step", lambda: print("a line", flush=True))),
    "writes": Fault(before("step", lambda: os.write(1, b"a line\n"))),
    "reads": Fault(before("reset", lambda: sys.stdin.read(1) and None)),
    "has a child that reads": Fault(
        before("reset", lambda: subprocess.run(["cat"], stdout=subprocess.DEVNULL, check=True))
    ),
    "forks": Fault(lambda env: once(fork)(env)),
    "forks and returns": Fault(lambda env: once(fork_and_return)(env)),
    "threads": Fault(before("reset", lambda: threading.Thread(target=time.sleep, args=(0.1,)).start())),
    "goes elsewhere": Fault(before("reset", lambda: os.chdir("/")), "changed the working directory", alone=True),
    "seeds all": Fault(before("step", lambda: Random(0) and __import__("random").seed(0))),
    "changes its lists": Fault(mutates),
    "needs no gradients": Fault(
        before("step", lambda: torch(lambda t: t.set_grad_enabled(False))),
        "changed torch's grad mode from True to False",
        alone=True,
    ),
    "prefers other numbers": Fault(
        before("step", lambda: torch(lambda t: t.set_default_dtype(t.float64))),
        r"changed torch's default dtype from torch.float32 to torch.float64",
        alone=True,
    ),
    # ends the process, or keeps it: only in a process of its own
    "leaves": Fault(before("step", lambda: os._exit(0)), "ended with code 0"),
    "dies": Fault(before("step", lambda: os.kill(os.getpid(), signal.SIGKILL)), "died of signal 9"),
    "closes files": Fault(before("step", lambda: os.closerange(3, 60)), "ended with code 1"),
    "hangs": Fault(hangs, "it has not returned for 0.2 s"),
}


def make(fault: str) -> Walk:
    """A walk with a fault."""
    env = Walk()
    FAULTS[fault].patch(env)
    return env
