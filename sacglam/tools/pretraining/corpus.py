"""The built-in model's corpus: what any language model knows about these words, but never what to do.

Three kinds of document:

* *transcripts* of a uniformly random policy under an independent goal, in the prompt format: the form of the text,
  the actions of each state and their effects. Since the actions do not depend on the goal, a model trained on them
  starts as a policy that ignores it.
* *words*: whether a name fits an object (a red door is furniture and a red thing).
* *reading*: which objects of a scene a name fits.

No document says what a goal requires, which supply grows what, or that anything was achieved.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from sacglam.envs import TextEnv, make
from sacglam.envs.playground.scene import draw
from sacglam.envs.playground.text import describe
from sacglam.envs.playground.vocabulary import CATEGORIES, Name, Thing, names
from sacglam.prompt import query
from sacglam.types import Observation

NAMES: tuple[Name, ...] = names(CATEGORIES)


def documents(rng: Random) -> Callable[[], str]:
    """A function that draws the next document."""
    draws = [
        partial(transcript, make("playground_simple"), rng),
        partial(transcript, make("playground"), rng),
        partial(transcript, make("bitflip", bits=10), rng),
        partial(words, rng),
        partial(reading, rng),
    ]
    weights = [0.3, 0.1, 0.05, 0.1, 0.45]
    return lambda: rng.choices(draws, weights)[0]()


def transcript(env: TextEnv, rng: Random) -> str:
    """A few steps of an episode of the uniformly random policy, from a random step."""
    goals = env.goals("train")
    goal = goals[rng.randrange(len(goals))]
    observation = env.reset(goal, rng.randrange(2**31))
    lines: list[str] = []
    first = rng.randrange(6)
    for t in range(first + 3):
        action = rng.randrange(len(observation.actions))
        if t >= first:
            shown = query(goal, observation)
            lines.append(shown.prompt if not lines else f"{observation.text}\nAction:")
            lines[-1] += shown.actions[action]
        step = env.step(action)
        observation = step.observation
        if step.terminated or step.truncated:
            break
    return "\n".join(lines) if lines else query(goal, observation).prompt


def words(rng: Random) -> str:
    """Whether names fit objects."""
    lines = []
    for _ in range(8):
        thing = draw(rng)
        name = _fitting(thing, rng) if rng.random() < 0.5 else rng.choice(NAMES)
        lines.append(f"{describe(thing, True)} is {name.text}: {'yes' if name.fits(thing) else 'no'}")
    return "\n".join(lines)


def reading(rng: Random) -> str:
    """The question which objects fit a name, a scene, and the answer."""
    things = [draw(rng) for _ in range(rng.choice((3, 3, 3, 6)))]
    grown = [rng.random() < 0.5 for _ in things]
    name = _fitting(rng.choice(things), rng)
    texts = [describe(thing, g) for thing, g in zip(things, grown, strict=True)]
    on, held = rng.choice(["nothing", *texts]), rng.choice(["empty", *texts])
    scene = Observation(f"You see: {', '.join(texts)}\nYou are on: {on}\nInventory: {held}", ())
    found = [text for text, thing in zip(texts, things, strict=True) if name.fits(thing)]
    rng.shuffle(found)
    return f"Which: {name.text}\n{scene.text}\nAnswer: {', '.join(found)}"


def _fitting(thing: Thing, rng: Random) -> Name:
    return rng.choice([name for name in NAMES if name.fits(thing)])
