"""A trained agent: its policy and Q function."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sacglam import cpu
from sacglam.build import build_model
from sacglam.config import Config
from sacglam.envs import check_actions
from sacglam.errors import ModelError, RunDirectoryError, memory_explained
from sacglam.models.agent_model import AgentModel, load_exported, under
from sacglam.policy import SamplingPolicy, greedy
from sacglam.resolve import in_one_process, on_this_machine
from sacglam.runs import checkpoint
from sacglam.runs.checkpoint import Checkpoint
from sacglam.runs.directory import RunDirectory, Trusted, check_empty
from sacglam.runs.exported import SETTINGS, config_of, write_exported
from sacglam.types import Observation, Past, Query


@dataclass(frozen=True)
class Agent:
    """Policy and Q function of a run or an exported agent, evaluated one state at a time.

    `past` holds the episode's earlier steps as (observation, action); an agent with `prompt.history` reads the last. An
    action list that is empty or has duplicates, and texts that do not fit the model, raise a `SacglamError`. Not
    thread-safe.
    """

    config: Config
    model: AgentModel
    env_steps: int
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The run's `summary.json`; empty if it has none."""

    def probabilities(self, observation: str, goal: str, actions: Sequence[str], past: Past = ()) -> dict[str, float]:
        """pi(a|o,g) of each action (paper, Eq. 2); sums to 1."""
        [log_pi] = self.model.log_policy([self._query(observation, goal, actions, past)])
        return dict(zip(actions, np.exp(log_pi.astype(np.float64)).tolist(), strict=True))

    def value(self, observation: str, goal: str, actions: Sequence[str], past: Past = ()) -> float:
        """V(o, g), the expected discounted return: from PPO's critic, or else the mean of Q under the policy."""
        if not self.has_q:
            with torch.no_grad():
                packed = self.model.pack([self._query(observation, goal, actions, past)])
                return float(self.model.evaluate(packed).value_B) / self.config.algo.scale
        probabilities = self.probabilities(observation, goal, actions, past)
        values = self.q_values(observation, goal, actions, past)
        return sum(probabilities[action] * values[action] for action in actions)

    @property
    def has_q(self) -> bool:
        """Whether its critic values each action, like SAC's, rather than only the state, like PPO's."""
        return self.config.algo.has_q

    def q_values(self, observation: str, goal: str, actions: Sequence[str], past: Past = ()) -> dict[str, float]:
        """min_c Q_c(o, g, a) of each action: the discounted return, in the units of the environment's rewards.

        Without `algo.td_lambda`, SAC's also includes the entropy bonus to come.

        Raises:
            ModelError: the agent was trained by PPO, whose critic values states; see `value`.
        """
        if not self.has_q:
            name = self.config.algo.label
            raise ModelError(f"an agent trained by {name} has no Q values; use value(), the state's value")
        [values] = self.model.q_values([self._query(observation, goal, actions, past)])
        return dict(zip(actions, (values / self.config.algo.scale).tolist(), strict=True))

    def act(
        self,
        observation: str,
        goal: str,
        actions: Sequence[str],
        rng: np.random.Generator | None = None,
        past: Past = (),
    ) -> str:
        """The most probable action, or with `rng` one drawn from the policy."""
        [log_pi] = self.model.log_policy([self._query(observation, goal, actions, past)])
        return actions[greedy(log_pi) if rng is None else SamplingPolicy(rng)(log_pi)]

    def _query(self, observation: str, goal: str, actions: Sequence[str], past: Past) -> Query:
        state = Observation(observation, tuple(actions))
        check_actions(state)
        return self.model.prompt(goal, state, past)

    def export(self, folder: Path) -> None:
        """Write the actor as a peft adapter (for peft, transformers and vLLM), the critic, settings and a model card.

        `load_agent` reads the folder, and so does `init_from`.

        Raises:
            RunDirectoryError: the folder is not empty, or cannot be written.
        """
        check_empty(folder)
        write_exported(folder, self.model.exported_files(), self.config, self.env_steps, self.summary)


@memory_explained()
def load_agent(run_dir: str | Path, device: str = "auto", trusted: Trusted = False, best: bool = False) -> Agent:
    """The agent of a run's newest intact checkpoint, or an exported agent; `auto` takes a GPU if there is one.

    With `best`, instead the agent that did best in the evaluations during training.

    A `trusted` folder may name its own code (docs/guides/security.md).

    Raises:
        SacglamError: there is no agent; it names code and is not `trusted`; or this machine has no such device.
    """
    folder = Path(run_dir)
    if (folder / SETTINGS).is_file():
        if best:
            raise RunDirectoryError(f"{folder} is an exported agent; export the run's best one with --best")
        return _exported(folder, config_of(folder, trusted), device)
    directory = RunDirectory.open(folder, trusted)
    if best:
        if not directory.best_summary():
            raise RunDirectoryError(
                f"the run at {folder} has no best agent; set evaluation.every_steps, or resume it if it was interrupted"
            )
        return _exported(directory.best, directory.config(), device)
    if not checkpoint.steps(directory.checkpoints):
        raise RunDirectoryError(f"the run at {folder} has no checkpoint yet; let it run to its first one")
    config, model = _untrained(directory.config(), device)

    def restore(found: Checkpoint) -> int:
        model.load_state(under("model", found.tensors))
        return int(found.values["progress"]["env_steps"])

    _, env_steps = checkpoint.restore_newest(directory.checkpoints, restore, warnings.warn)
    return Agent(config, model, env_steps, directory.summary() or {})


def _untrained(config: Config, device: str) -> tuple[Config, AgentModel]:
    here = on_this_machine(in_one_process(config, device))
    cpu.prepare(here.threads)
    return here, build_model(here)


def _exported(folder: Path, config: Config, device: str) -> Agent:
    here, model = _untrained(config, device)
    if not load_exported(folder, model, renamed=True):
        raise ModelError(f"the critic in {folder} does not fit its settings; export the agent again")
    summary = RunDirectory(folder).summary() or {}
    return Agent(here, model, summary.get("env_steps", 0), summary)
