"""Our environments as gymnasium environments, with ids such as `sacglam.worlds.gymnasium:Playground-v0`."""

import string
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from typing_extensions import override

from sacglam.envs.base import Split
from sacglam.envs.registry import make, registered
from sacglam.envs.trial import check_env
from sacglam.errors import ConfigError
from sacglam.types import Observation

_LONGEST = 100_000  # characters of a text
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
        self._name, self._world = name, make(name, **options)
        self._goals = self._world.goals(split)
        if not self._goals:
            raise ConfigError(f"environment {name!r} has no {split} goals")
        self._size = max_actions or check_env(lambda: make(name, **options)).most_actions
        self.action_space = spaces.Discrete(self._size)
        text = spaces.Text(_LONGEST, min_length=0, charset=charset)
        self.observation_space = spaces.Dict({"text": text, "goal": text})
        self._seen = Observation("", ())
        self._episode: dict[str, Any] = {}

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[_Results, _Results]:
        """Start an episode; `options` may fix its `goal` and the `seed` of its world, which are drawn otherwise.

        Raises:
            ConfigError: another option, or no goal of this environment.
        """
        super().reset(seed=seed)
        fixed = dict(options or {})
        goal, world_seed = int(self.np_random.integers(len(self._goals))), int(self.np_random.integers(2**31))
        drawn: _Results = {"goal": self._goals[goal], "seed": world_seed}
        if unknown := fixed.keys() - drawn.keys():
            raise ConfigError(f"expected the options goal and seed, got {sorted(unknown)}")
        self._episode = drawn | fixed
        self._seen = self._world.reset(self._episode["goal"], self._episode["seed"])
        return self._observation(), self._info(())

    @override
    def step(self, action: int) -> tuple[_Results, float, bool, bool, _Results]:
        if action >= len(self._seen.actions):
            return self._observation(), 0.0, False, False, self._info(())
        step = self._world.step(int(action))
        self._seen = step.observation
        return self._observation(), step.reward, step.terminated, step.truncated, self._info(step.achieved)

    def _observation(self) -> dict[str, str]:
        return {"text": self._seen.text, "goal": self._episode["goal"]}

    def _info(self, achieved: Sequence[str]) -> _Results:
        commands = list(self._seen.actions)
        if len(commands) > self._size:
            raise ConfigError(f"{self._name} has a state with {len(commands)} actions; pass max_actions, at least that")
        mask = (np.arange(self._size) < len(commands)).astype(np.int8)
        return {"admissible_commands": commands, "action_mask": mask, "achieved_goals": list(achieved), **self._episode}


def register_ids() -> None:
    """Give every registered environment an id: `playground_simple` is `PlaygroundSimple-v0`."""
    for name in registered():
        id = f"{name.title().replace('_', '')}-v0"
        if id not in gymnasium.registry:
            gymnasium.register(id, "sacglam.worlds.gymnasium:SacglamEnv", kwargs={"name": name})


register_ids()
