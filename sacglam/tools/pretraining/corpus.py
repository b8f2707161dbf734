"""The corpus of a model: what any language model knows about an environment's words, but never what to do.

There are two kinds of document:

* *transcripts* of random play: the form of the prompts, the actions of each state and their effects. The goal in a
  transcript is drawn independently of the episode, so a model trained on them starts as a policy that ignores the goal.
* *matching*: which parts of a state contain a word.

No document says what a goal requires, which action leads to it, or that anything was achieved.
"""

import math
import re
from collections.abc import Callable, Sequence
from random import Random

from sacglam.config.sections import PromptConfig
from sacglam.envs import TextEnv
from sacglam.prompt import Prompt
from sacglam.types import Observation

Document = tuple[str, str]
"""A beginning that ends like a prompt, and its continuation; an encoder-decoder learns only the latter."""
Documents = Callable[[], Document]
"""Draws the next document."""
Play = list[tuple[Observation, int]]
"""Consecutive states of an episode, and the index of the action taken in each."""

PLAYED_STEPS, LONGEST_EPISODE = 10_000, 50
"""Steps of random play that an environment's corpus is drawn from, and the maximum per episode."""
HELD_OUT = 0.1
"""Share of episodes held out for `questions`."""
SHOWN_STEPS = 3
QUESTION = "Which:"
MATCHED_ACTIONS, SINGLE, ABOUT_ACTIONS = 8, 0.8, 0.5
SEPARATORS = re.compile(r"[\n,.;:]+ *")
AROUND = "'\"`\u2018\u2019\u201c\u201d\u00ab\u00bb()[]{}<>"
"""Quotes and brackets around words: an action often has them where the goal does not."""


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
    """Up to `count` *matching* documents about whole states, each with one right answer, which is an action.

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
    """The corpus of an environment, from random play in it."""
    steps = max(settings.history + 1, SHOWN_STEPS)
    prompt = Prompt(settings.model_copy(update={"history": steps - 1}))
    places = [(episode, t) for episode in episodes for t in range(len(episode))]

    def document() -> Document:
        episode, t = rng.choice(places)
        if rng.random() < 0.5:
            return matching(episode[t][0], rng)
        return write(prompt, rng.choice(env.goals("train")), episode[t : t + rng.randint(1, steps)])

    return document


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
    """The prompt of the last step, with the others as its history, and its action.

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
    """A question (which parts contain this word?) with the whole text, and the answer.

    Most words are drawn from those in only one part, so that the answer is a single text, not a list in any order.
    """
    parts = [part for part in SEPARATORS.split(text) if part.strip()] + list(actions)
    having: dict[str, list[str]] = {}
    for part in parts:
        for word in dict.fromkeys(word.strip(AROUND) or word for word in part.split()):
            having.setdefault(word, []).append(part)
    single = [word for word in having if len(having[word]) == 1]
    if text and rng.random() < ABOUT_ACTIONS:  # rare otherwise where the text is long and its actions are few
        single = [word for word in single if having[word][0] in actions] or single
    word = rng.choice(single if single and rng.random() < SINGLE else list(having))
    found = rng.sample(having[word], len(having[word]))
    shown = "\n".join([text, ", ".join(actions)] if text else [", ".join(actions)])
    return f"{QUESTION} {word}\n{shown}\nAnswer:", f" {', '.join(found)}"
