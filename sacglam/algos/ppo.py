"""PPO-GLAM: proximal policy optimisation on candidate actions (Carta et al., 2023; paper, Table 1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from sacglam.algos import equations
from sacglam.algos.base import Algorithm, MapNoGrad
from sacglam.algos.ppo_settings import PpoConfig
from sacglam.models.actor_critic import ActorValue
from sacglam.models.agent_model import AgentModel
from sacglam.types import Query, Window

CLIP, VALUE_COEF = 0.2, 0.5  # the paper's (Table 1): the ratio is clipped to 1 +- 0.2, the value loss has weight 0.5
_TINY = 1e-8  # avoids a division by zero if all advantages are equal


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of the interval, with its advantage under the policy that took it."""

    query: Query
    action: int
    old_log_prob: float
    advantage: float
    return_: float


@dataclass(frozen=True)
class PpoBatch:
    """B samples ready for the model."""

    packed: Any
    action_B: Tensor
    old_log_prob_B: Tensor
    advantage_B: Tensor
    return_B: Tensor


class Ppo(Algorithm):
    """The updates of PPO-GLAM on an `ActorValue`."""

    model_class: ClassVar[type[AgentModel]] = ActorValue

    _model: ActorValue
    _config: PpoConfig

    @override
    def minibatches(self, batches: Sequence[Sequence[Window]], map_no_grad: MapNoGrad) -> Iterator[Sequence[Sample]]:
        # Advantages are computed once, before the first epoch.
        samples = self._samples([window for batch in batches for window in batch], map_no_grad)
        size = self._config.batch_size
        for _ in range(self._config.epochs):
            order = self._rng.permutation(len(samples))
            for start in range(0, len(samples), size):
                yield [samples[i] for i in order[start : start + size]]

    def _samples(self, windows: Sequence[Window], map_no_grad: MapNoGrad) -> list[Sample]:
        """Every step with its advantage and return.

        Old log-probabilities are the learner's own: an engine's differ in the last digits, so the ratio of the first
        minibatch would not be 1.
        """
        at = self._model.prompt.at
        with self._clock.phase("batch"):
            # In the state after a window's last step no action was taken; any will do.
            visits = [(at(w, t), action) for w in windows for t, action in enumerate([*w.actions, 0][: _visited(w)])]
        log_prob_N, value_N = map_no_grad(
            self._evaluate, visits, self._config.micro_batch_size or self._config.batch_size
        )
        with self._clock.phase("batch"):
            return_N, kept_N = (torch.cat(column) for column in zip(*self._returns(windows, value_N), strict=True))
            # Equal to the sum of Schulman et al. (2016), Eq. 16.
            advantage_N = return_N - value_N[kept_N]
            advantage_N = (advantage_N - advantage_N.mean()) / (advantage_N.std(correction=0) + _TINY)
            numbers = zip(log_prob_N[kept_N].tolist(), advantage_N.tolist(), return_N.tolist(), strict=True)
            taken = (visits[i] for i in kept_N.tolist())
            return [Sample(query, action, *known) for (query, action), known in zip(taken, numbers, strict=True)]

    def _returns(self, windows: Sequence[Window], value_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each window: its steps' lambda-returns, and their indices among the visited states."""
        first = 0
        for window in windows:
            steps, visited = len(window), _visited(window)
            value_T = value_N[first : first + steps]
            last_value = value_N.new_zeros(1) if window.terminated else value_N[first + steps : first + visited]
            return_T = equations.lambda_returns(
                torch.tensor(window.rewards, dtype=torch.float64) * self._config.scale,
                torch.cat([value_T[1:], last_value]),
                self._config.gamma,
                self._config.gae_lambda,
            )
            yield return_T, torch.arange(first, first + steps)
            first += visited

    @torch.no_grad()
    def _evaluate(self, visits: Sequence[tuple[Query, int]]) -> Tensor:
        """log pi(a|s) of the action taken and V(s), shape (2, visits)."""
        with self._clock.phase("target"):
            queries, actions = zip(*visits, strict=True)
            values = self._model.evaluate(self._model.pack(queries))
            action_B = self._model.tensor(actions)
            return torch.stack([equations.taken(values.log_pi_BA, action_B), values.value_B])

    @override
    def collate(self, rows: Sequence[Sample]) -> PpoBatch:
        tensor = self._model.tensor
        return PpoBatch(
            packed=self._model.pack([row.query for row in rows]),
            action_B=tensor([row.action for row in rows]),
            old_log_prob_B=tensor([row.old_log_prob for row in rows], torch.float32),
            advantage_B=tensor([row.advantage for row in rows], torch.float32),
            return_B=tensor([row.return_ for row in rows], torch.float32),
        )

    @override
    def losses(self, batch: PpoBatch, update: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The joint loss of one minibatch, and metrics."""
        with self._clock.phase("forward"):
            values = self._model.evaluate(batch.packed)
            log_prob_B = equations.taken(values.log_pi_BA, batch.action_B)
            log_ratio_B = log_prob_B - batch.old_log_prob_B
            policy = equations.clipped_loss(log_ratio_B.exp(), batch.advantage_B, CLIP)
            value = equations.value_loss(values.value_B, batch.return_B)
            entropy = equations.entropy(values.log_pi_BA).mean()
            loss = policy + VALUE_COEF * value - self._config.entropy_coef * entropy
            log_ratio_B = log_ratio_B.detach()
            metrics = {
                "policy_loss": policy.detach(),
                "value_loss": value.detach(),
                "entropy": entropy.detach(),
                "value": values.value_B.detach().mean(),
                "return": batch.return_B.mean(),
                "clipped_share": ((log_ratio_B.exp() - 1).abs() > CLIP).float().mean(),
                "kl": (log_ratio_B.exp() - 1 - log_ratio_B).mean(),  # of the old policy from the new one
            }
        return loss, metrics

    @override
    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]


def _visited(window: Window) -> int:
    """The number of states whose value is needed: the steps', and the one after them unless the episode terminated."""
    return len(window) + (not window.terminated)
