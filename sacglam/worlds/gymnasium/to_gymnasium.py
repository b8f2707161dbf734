"""Our environments as gymnasium environments, with ids such as `sacglam.worlds.gymnasium:Playground-v0`."""

import string
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from typing_extensions import override

from sacglam.envs.base import SPLITS, Split
from sacglam.envs.registry import make, registered
from sacglam.envs.trial import check_env
from sacglam.errors import ConfigError
from sacglam.types import Observation

_MAX_TEXT = 100_000  # characters
_Results = dict[str, Any]


class SacglamEnv(gymnasium.Env[Any, Any]):
    """A sacglam environment as a gymnasium environment.

    An observation holds `text` and `goal`; `info` holds `admissible_commands`, the `action_mask` over them,
    `achieved_goals`, and `goal` and `seed`, which make the episode repeatable. An action is an index into the commands;
    one beyond the list does nothing.

    Args:
        name: as for `sacglam.envs.make`, which takes the other `options`.
        split: which goals `reset` draws from.
        max_actions: size of the action space; by default the most actions of any state seen in random episodes.
        charset: the characters of the texts.

    Raises:
        ConfigError: there is no such environment or option, or no goal in `split`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        name: str,
        *,
        split: Split = "train",
        max_actions: int | None = None,
        charset: str = string.printable,
        **options: Any,
    ) -> None:
        self._env = make(name, **options).rewarding(True)
        self._goals = self._env.goals(split)
        if not self._goals:
            raise ConfigError(f"environment {name!r} has no {SPLITS[split]} goals")
        self._size = max_actions or check_env(lambda: self._env, repeats=False, expert=False).most_actions
        self.action_space = spaces.Discrete(self._size)
        text = spaces.Text(_MAX_TEXT, min_length=0, charset=charset)
        self.observation_space = spaces.Dict({"text": text, "goal": text})
        self._seen = Observation("", ())
        self._episode: dict[str, Any] = {}

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[_Results, _Results]:
        """Start an episode; `options` may fix its `goal` and `seed`, which are otherwise drawn.

        Raises:
            ConfigError: there is another option, or the goal is not one of this environment's.
        """
        super().reset(seed=seed)
        goal, env_seed = int(self.np_random.integers(len(self._goals))), int(self.np_random.integers(2**31))
        self._episode = {"goal": self._goals[goal], "seed": env_seed, **(options or {})}
        if unknown := self._episode.keys() - {"goal", "seed"}:
            raise ConfigError(f"expected the options goal and seed, got {sorted(unknown)}")
        self._seen = self._env.reset(self._episode["goal"], self._episode["seed"])
        return self._results(())

    @override
    def step(self, action: int) -> tuple[_Results, float, bool, bool, _Results]:
        if action >= len(self._seen.actions):
            obs, info = self._results(())
            return obs, 0.0, False, False, info
        step = self._env.step(int(action))
        self._seen = step.observation
        obs, info = self._results(step.achieved)
        return obs, step.reward, step.terminated, step.truncated, info

    def _results(self, achieved: Sequence[str]) -> tuple[_Results, _Results]:
        """Observation and info of the present state."""
        commands = list(self._seen.actions)
        if len(commands) > self._size:
            raise ConfigError(
                f"{self._env.name} has a state with {len(commands)} actions; pass max_actions, at least that"
            )
        mask = (np.arange(self._size) < len(commands)).astype(np.int8)
        info = {"admissible_commands": commands, "action_mask": mask, "achieved_goals": list(achieved)}
        return {"text": self._seen.text, "goal": self._episode["goal"]}, info | self._episode


for _name in registered():  # `playground_simple` is `PlaygroundSimple-v0`
    _id = f"{_name.title().replace('_', '')}-v0"
    if _id not in gymnasium.registry:
        gymnasium.register(_id, "sacglam.worlds.gymnasium:SacglamEnv", kwargs={"name": _name})
