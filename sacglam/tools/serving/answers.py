"""What the server answers: the agent's view of states, and episodes that a person plays."""

import threading
from typing import Annotated, Any

from pydantic import Field

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
    actions: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=10_000)]


class Advisor:
    """Asks the agent about states, one request at a time."""

    def __init__(self, agent: Agent) -> None:
        """Nothing else may use the agent meanwhile."""
        self._agent, self._lock = agent, threading.Lock()

    def advise(self, goal: str, state: Observation, past: Past = ()) -> Answer:
        """The most probable `action`, and `probabilities` and `q` of all; `q` is null if the critic values states.

        Raises:
            SacglamError: an action is repeated, or the texts do not fit the model.
        """
        asked = (state.text, goal, state.actions, past)
        with self._lock:
            probabilities = self._agent.probabilities(*asked)
            q = self._agent.q_values(*asked) if self._agent.has_q else None
        best = max(probabilities, key=lambda action: probabilities[action])
        return {"action": best, "probabilities": probabilities, "q": q}


class Game:
    """Episodes in one environment. Each is a function of goal, seed and actions, so it need not be stored.

    Only the last one is kept, so that its next step does not replay it from the start.
    """

    def __init__(self, env: TextEnv, advisor: Advisor) -> None:
        """Nothing else may use the environment meanwhile."""
        self._env, self._advisor = env, advisor
        self._lock = threading.Lock()
        self._at: Played | None = None
        self._seen: list[Observation] = []
        self._outcome: Answer = {}

    def goals(self) -> Answer:
        """The goals of training and those held out."""
        return {split: list(self._env.goals(split)) for split in SPLITS}

    def play(self, played: Played) -> Answer:
        """The state after the actions, what the last one achieved, whether the episode is `over`, and the agent's view.

        Raises:
            SacglamError: no such goal, or an action that its state does not offer.
        """
        with self._lock:
            self._go_to(played)
            (*before, state), outcome = list(self._seen), self._outcome
        past = [(each.text, each.actions[action]) for each, action in zip(before, played.actions, strict=True)]
        advice = self._advisor.advise(played.goal, state, past)
        return {"observation": state.text, "actions": list(state.actions), **outcome, **advice}

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
