"""What the server answers: the agent's view of states, and episodes that a person plays."""

import threading
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from sacglam.agent import Agent
from sacglam.envs.base import SPLITS, TextEnv
from sacglam.errors import ConfigError
from sacglam.files import Form
from sacglam.types import Observation, Past

_Text = Annotated[str, Field(max_length=100_000)]
Answer = dict[str, Any]


class State(Form, extra="forbid"):
    """A state that the agent is asked about; `past` are the episode's earlier observations and actions."""

    goal: _Text
    observation: _Text
    actions: Annotated[list[_Text], Field(min_length=1, max_length=1000)]
    past: Annotated[list[tuple[_Text, _Text]], Field(max_length=1000)] = Field(default=[])


class Played(Form, extra="forbid"):
    """An episode so far: the indices of the actions that were taken."""

    goal: _Text
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    actions: Annotated[list[NonNegativeInt], Field(max_length=10_000)]


class Game:
    """An agent, asked about any state or in episodes of one environment. Requests are answered one at a time.

    An episode is a function of goal, seed and actions, so it need not be stored. Only the last one is kept, so that its
    next step does not replay it from the start.
    """

    def __init__(self, agent: Agent, env: TextEnv) -> None:
        """Nothing else may use the agent or the environment meanwhile."""
        self._agent, self._env, self._lock = agent, env, threading.Lock()
        self._at: Played | None = None
        self._seen: list[Observation] = []
        self._outcome: Answer = {}

    def goals(self) -> Answer:
        """The goals of training and those held out."""
        return {split: list(self._env.goals(split)) for split in SPLITS}

    def advise(self, asked: State) -> Answer:
        """The most probable `action`, and `probabilities` and `q` of all; `q` is null if the critic values states.

        Raises:
            SacglamError: an action is repeated, or the texts do not fit the model.
        """
        with self._lock:
            return self._advice(asked.goal, Observation(asked.observation, tuple(asked.actions)), asked.past)

    def play(self, played: Played) -> Answer:
        """The state after the actions, what the last one achieved, whether the episode is `over`, and the agent's view.

        Raises:
            SacglamError: no such goal, or an action that its state does not offer.
        """
        with self._lock:
            self._go_to(played)
            *before, state = self._seen
            past = [(each.text, each.actions[action]) for each, action in zip(before, played.actions, strict=True)]
            advice = self._advice(played.goal, state, past)
            return {"observation": state.text, "actions": list(state.actions), **self._outcome, **advice}

    def _advice(self, goal: str, state: Observation, past: Past) -> Answer:
        asked = (state.text, goal, state.actions, past)
        probabilities = self._agent.probabilities(*asked)
        q = self._agent.q_values(*asked) if self._agent.has_q else None
        best = max(probabilities, key=lambda action: probabilities[action])
        return {"action": best, "probabilities": probabilities, "q": q}

    def _go_to(self, played: Played) -> None:
        at, self._at = self._at, None  # set again at the end, if nothing fails
        done = len(at.actions) if at else 0
        if at is None or (at.goal, at.seed, at.actions) != (played.goal, played.seed, played.actions[:done]):
            if not any(played.goal in self._env.goals(split) for split in SPLITS):
                raise ConfigError(f"expected a goal of the environment, got {played.goal[:100]!r}")
            self._seen, done = [self._env.reset(played.goal, played.seed)], 0
            self._outcome = {"achieved": [], "over": False, "success": False}
        for action in played.actions[done:]:
            if self._outcome["over"] or action >= len(self._seen[-1].actions):
                raise ConfigError(f"expected the number of an action that the state offers, got {action}")
            step = self._env.step(action)
            self._seen.append(step.observation)
            over, success = step.terminated or step.truncated, played.goal in step.achieved
            self._outcome = {"achieved": list(step.achieved), "over": over, "success": over and success}
        self._at = played
