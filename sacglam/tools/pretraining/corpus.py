"""What the models read: what any language model knows about an environment's words, but never what to do.

The corpus of any environment has two kinds of document:

* *transcripts* of random play: the form of the prompts, the actions of each state and their effects. The goal in a
  transcript is drawn independently of the episode, so a model trained on them starts as a policy that ignores the goal.
* *matching*: which parts of a state contain a word.

The built-in model's corpus, of Playground and bit flipping, has two more, which say more than how words are spelt:

* *words*: whether a name fits an object (a red door is furniture and a red thing).
* *reading*: which objects of a scene a name fits.

No document says what a goal requires, which action leads to it, or that anything was achieved.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from sacglam.config.sections import PromptConfig
from sacglam.envs import TextEnv, make
from sacglam.envs.playground.scene import draw
from sacglam.envs.playground.text import describe
from sacglam.envs.playground.vocabulary import CATEGORIES, Name, Thing, names
from sacglam.prompt import Prompt, query
from sacglam.types import Observation

Document = tuple[str, str]
"""A beginning, which ends as a prompt does, and its continuation, which is all that an encoder-decoder learns."""
Documents = Callable[[], Document]
"""Draws the next document."""
Play = list[tuple[Observation, int]]
"""Consecutive states of an episode, and the index of the action taken in each."""

NAMES: tuple[Name, ...] = names(CATEGORIES)
PLAYED_STEPS, LONGEST_EPISODE = 10_000, 50
"""Steps of random play that an environment's corpus is drawn from, and the most of one episode."""
HELD_OUT = 0.1
"""Share of the episodes that is held out for `questions`."""
SHOWN_STEPS = 3
QUESTION = "Which:"
QUESTIONS = {"llama": {QUESTION: 1.0}, "t5": {QUESTION: 0.5, "Goal: Grasp": 0.25, "Goal: Grow": 0.25}}
"""How *reading* asks, with shares. A decoder that finds a name's objects here also finds them under a goal; an encoder,
whose reading of a scene depends on the whole prompt, has to see such prompts."""
MATCHED_ACTIONS, SINGLE = 8, 0.8
SEPARATORS = re.compile(r"[\n,.;:]+ *")


def builtin_documents(rng: Random, architecture: str = "llama") -> Documents:
    """The corpus of the built-in model of this architecture; episodes are played as documents are drawn."""
    questions = QUESTIONS[architecture]
    draws = [
        partial(transcript, make("playground_simple"), rng),
        partial(transcript, make("playground"), rng),
        partial(transcript, make("bitflip", bits=10), rng),
        partial(words, rng),
        *(partial(reading, rng, question) for question in questions),
    ]
    weights = [0.3, 0.1, 0.05, 0.1, *(0.45 * share for share in questions.values())]
    return lambda: rng.choices(draws, weights)[0]()


def random_play(
    env: TextEnv, rng: Random, advance: Callable[[int], None] = lambda steps: None
) -> tuple[list[Play], list[Play]]:
    """Episodes for an environment's corpus, and others held out.

    `advance` is called with the number of steps played so far, of `PLAYED_STEPS`.
    """
    episodes: list[Play] = []
    played = 0
    while played < PLAYED_STEPS:
        episodes.append(play(env, rng.choice(env.goals("train")), rng.randrange(2**31), LONGEST_EPISODE, rng)[0])
        played += len(episodes[-1])
        advance(played)
    held_out = math.ceil(HELD_OUT * len(episodes))
    return episodes[held_out:], episodes[:held_out]


def questions(episodes: Sequence[Play], rng: Random, count: int = 100, draws: int = 10_000) -> list[Document]:
    """Up to `count` *matching* documents about whole states with one right answer, which is an action.

    Fewer if `draws` attempts do not yield as many.
    """
    states = [observation for episode in episodes for observation, _ in episode]
    found: list[Document] = []
    for state in rng.choices(states, k=draws):
        actions = rng.sample(state.actions, min(MATCHED_ACTIONS, len(state.actions)))
        document = _question(state.text, actions, rng)
        if document[1][1:] in actions:
            found.append(document)
        if len(found) == count:
            break
    return found


def env_documents(env: TextEnv, episodes: Sequence[Play], settings: PromptConfig, rng: Random) -> Documents:
    """The corpus of any environment, from random play in it."""
    steps = max(settings.history + 1, SHOWN_STEPS)
    prompt = Prompt(settings.model_copy(update={"history": steps - 1}))
    places = [(episode, t) for episode in episodes for t in range(len(episode))]

    def document() -> Document:
        episode, t = rng.choice(places)
        if rng.random() < 0.5:
            return matching(episode[t][0], rng)
        return write(prompt, rng.choice(env.goals("train")), episode[t : t + rng.randint(1, steps)])

    return document


def transcript(env: TextEnv, rng: Random) -> Document:
    """A few steps of an episode of the uniformly random policy under its own goal, from a random step."""
    goal, seed, first = rng.choice(env.goals("train")), rng.randrange(2**31), rng.randrange(6)
    played, last = play(env, goal, seed, first + SHOWN_STEPS, rng)
    if len(played) <= first:
        return query(goal, last).prompt, ""
    return write(Prompt(PromptConfig(history=SHOWN_STEPS)), goal, played[first:])


def play(env: TextEnv, goal: str, seed: int, longest: int, rng: Random) -> tuple[Play, Observation]:
    """The first steps of an episode of the uniformly random policy, and the observation after them."""
    observation = env.reset(goal, seed)
    played: Play = []
    while len(played) < longest:
        action = rng.randrange(len(observation.actions))
        played.append((observation, action))
        step = env.step(action)
        observation = step.observation
        if step.terminated or step.truncated:
            break
    return played, observation


def write(prompt: Prompt, goal: str, played: Play) -> Document:
    """Steps as the prompt of the last one, with the others as its history, and its action.

    The beginning is the first step's prompt if the template puts earlier steps before later ones.
    """
    past = [(observation.text, observation.actions[action]) for observation, action in played[:-1]]
    (opening, _), (last, action) = played[0], played[-1]
    shown, first = prompt(goal, last, past), prompt(goal, opening).prompt
    text = shown.prompt + shown.actions[action]
    end = len(first if text.startswith(first) else shown.prompt)
    return text[:end], text[end:]


def matching(observation: Observation, rng: Random) -> Document:
    """A question about a few actions of a state and, half of the time, its text."""
    actions = rng.sample(observation.actions, rng.randint(1, min(MATCHED_ACTIONS, len(observation.actions))))
    return _question(observation.text if rng.random() < 0.5 else "", actions, rng)


def _question(text: str, actions: Sequence[str], rng: Random) -> Document:
    """The question which parts contain a word, the whole text, and the answer.

    Most words are in one part only, so that the answer is a single text and not a list in any order.
    """
    parts = [part for part in SEPARATORS.split(text) if part.strip()] + list(actions)
    having = {word: [part for part in parts if word in part.split()] for part in parts for word in part.split()}
    single = [word for word in having if len(having[word]) == 1]
    word = rng.choice(single if single and rng.random() < SINGLE else list(having))
    found = rng.sample(having[word], len(having[word]))
    shown = "\n".join([text, ", ".join(actions)] if text else [", ".join(actions)])
    return f"{QUESTION} {word}\n{shown}\nAnswer:", f" {', '.join(found)}"


def words(rng: Random) -> Document:
    """Statements on whether names fit objects."""
    lines = []
    for _ in range(8):
        thing = draw(rng)
        name = _fitting(thing, rng) if rng.random() < 0.5 else rng.choice(NAMES)
        lines.append(f"{describe(thing, True)} is {name.text}: {'yes' if name.fits(thing) else 'no'}")
    asked, colon, answers = "\n".join(lines).partition(":")
    return asked + colon, answers


def reading(rng: Random, question: str = QUESTION) -> Document:
    """The question which objects a name fits, a scene, and the answer."""
    things = [draw(rng) for _ in range(rng.choice((3, 3, 3, 6)))]
    grown = [rng.random() < 0.5 for _ in things]
    name = _fitting(rng.choice(things), rng)
    texts = [describe(thing, g) for thing, g in zip(things, grown, strict=True)]
    on, held = rng.choice(["nothing", *texts]), rng.choice(["empty", *texts])
    scene = Observation(f"You see: {', '.join(texts)}\nYou are on: {on}\nInventory: {held}", ())
    found = [text for text, thing in zip(texts, things, strict=True) if name.fits(thing)]
    rng.shuffle(found)
    return f"{question} {name.text}\n{scene.text}\nAnswer:", f" {', '.join(found)}"


def _fitting(thing: Thing, rng: Random) -> Name:
    return rng.choice([name for name in NAMES if name.fits(thing)])
