"""SAC-GLAM: discrete soft actor-critic on a language model's candidate actions (paper, Section 2)."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from sacglam.algos import equations
from sacglam.algos.base import Algorithm
from sacglam.algos.sac_settings import OffPolicyConfig, SacConfig
from sacglam.models.actor_critic import ActorCritic, Lerp, PolicyAndQ
from sacglam.models.agent_model import AgentModel
from sacglam.replay.graph import UNTRIED
from sacglam.types import Window


@dataclass(frozen=True)
class SacBatch:
    """W windows ready for the model; B of their steps are trained on: all steps of each window, or only its first.

    Windows are aligned at their ends: the last step of each is in the last column of `reward_WT`.
    """

    packed: Any  # the B states in which the learnt steps were taken
    action_B: Tensor
    place_B: Tensor  # index of each learnt step in the flattened (W, T)
    reward_WT: Tensor
    return_after_W: Tensor
    bootstraps_W: Tensor  # bool: the window did not end in termination
    last_packed: Any  # the states after the windows that bootstrap
    hindsight_share: float = 0.0
    known_BA: Tensor | None = None  # action values from the replay graph
    bound_B: Tensor | None = None  # lower bounds on the targets
    shown_BA: Tensor | None = None  # action values known from imitated demonstrations; -inf elsewhere


class OffPolicy(Algorithm):
    """Updates of an `ActorCritic` with SAC's critic; a subclass adds the actor's losses."""

    model_class: ClassVar[type[AgentModel]] = ActorCritic

    _model: ActorCritic
    _config: OffPolicyConfig

    @abstractmethod
    def actor_losses(self, values: PolicyAndQ, batch: SacBatch) -> dict[str, tuple[float, Tensor]]:
        """The actor's losses by name, each with its weight. `values` are those at the learnt steps."""

    @override
    def losses(self, batch: SacBatch, update: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum of critic and actor losses from one forward pass; in the warm-up, only the critic's."""
        with self._clock.phase("target"):
            # Windows that end in termination need no forward pass: after them the value is 0.
            value_X = self.target_value(self._model.bootstrap(batch.last_packed))  # X: the windows that bootstrap
            last_value_W = torch.zeros_like(batch.return_after_W).masked_scatter(batch.bootstraps_W, value_X)
        with self._clock.phase("forward"):
            values, loss, metrics = self._critic_losses(batch, last_value_W)
            actor = {} if self._warming_up(update) else self.actor_losses(values, batch)
            for name, (weight, part) in actor.items():
                loss = loss + weight * part
                metrics[f"{name}_loss"] = part.detach()
        return loss, metrics

    def _critic_losses(self, batch: SacBatch, last_value_W: Tensor) -> tuple[PolicyAndQ, Tensor, dict[str, Tensor]]:
        """Policy and Q at the learnt steps, the critic's weighted loss towards its n-step or lambda target, metrics.

        `last_value_W` are the target values of the states after the windows.
        """
        value_WT = torch.zeros_like(batch.reward_WT)
        if self._config.td_lambda is None:
            values = self._model.evaluate(batch.packed, batch.action_B)
        else:
            values, at_targets = self._model.evaluate_with_target(batch.packed, batch.action_B)
            value_B = self.target_value(at_targets)
            value_WT = value_WT.flatten().index_copy(0, batch.place_B, value_B).view_as(value_WT)
        target_B = self._targets(batch, torch.cat([value_WT[:, 1:], last_value_W[:, None]], dim=1))
        critic = equations.critic_loss(values.q_CBA, batch.action_B, target_B)
        metrics = {
            "critic_loss": critic.detach(),
            "entropy": equations.entropy(values.log_pi_BA.detach()).mean(),
            "random_entropy": equations.uniform_entropy(values.log_pi_BA.detach()).mean(),
            "q": equations.taken(values.q_CBA.detach(), batch.action_B).mean(),
            "target": target_B.mean(),
            "batch_hindsight_share": torch.full_like(critic, batch.hindsight_share, dtype=torch.float64),
        }
        return values, self._config.critic_weight * critic, metrics

    @torch.no_grad()
    def target_value(self, values: PolicyAndQ) -> Tensor:
        """V in the critic's target, shape (B,)."""
        value_B = equations.soft_value(values.log_pi_BA, values.q_CBA, 0.0)
        return value_B.clamp(0.0, 1.0) if self._config.goal_rewards else value_B  # a goal's returns are in [0, 1]

    def _targets(self, batch: SacBatch, next_value_WT: Tensor) -> Tensor:
        """y of each learnt step, shape (B,): its n-step return (Eq. 3) or, with `td_lambda`, its lambda-return.

        `next_value_WT` are the target values of the states after each step. The value of a path in the replay graph is
        a lower bound on the target.
        """
        lambda_ = 1.0 if self._config.td_lambda is None else self._config.td_lambda
        target_WT = equations.lambda_returns(batch.reward_WT, next_value_WT, self._config.gamma, lambda_)
        target_B = target_WT.flatten()[batch.place_B]
        return target_B if batch.bound_B is None else torch.maximum(target_B, batch.bound_B)

    def _with_known(self, q_CBA: Tensor, batch: SacBatch) -> Tensor:
        """Q with tried actions at the replay graph's value; with own rewards, at the larger of the two."""
        if (known_BA := batch.known_BA) is None:
            return q_CBA
        value_CBA = known_BA if self._config.goal_rewards else torch.maximum(known_BA, q_CBA)
        return torch.where(known_BA > UNTRIED, value_CBA, q_CBA)

    @override
    def learnt_steps(self, row: Window) -> int:
        return self._config.learnt_steps(row)

    @override
    def collate(self, rows: Sequence[Window]) -> SacBatch:
        width, tensor, query = max(map(len, rows)), self._model.tensor, self._model.prompt.at
        scale = self._config.scale
        learnt = [(number, w, t) for number, w in enumerate(rows) for t in range(self.learnt_steps(w))]
        # `Backend` requires the same passes for any rows, so there is always a state to bootstrap from. If no window
        # needs one, this is a window's first state, which `bootstraps_W` then ignores.
        last = [query(w, len(w)) for w in rows if not w.terminated]
        shown = [self._shown(w, t) for _, w, t in learnt] if any(w.imitated for w in rows) else []
        return SacBatch(
            packed=self._model.pack([query(w, t) for _, w, t in learnt]),
            action_B=tensor([w.actions[t] for _, w, t in learnt]),
            place_B=tensor([(number + 1) * width - len(w) + t for number, w, t in learnt]),
            reward_WT=tensor([(0.0,) * (width - len(w)) + w.rewards for w in rows], torch.float32) * scale,
            return_after_W=tensor([w.return_after for w in rows], torch.float32) * scale,
            bootstraps_W=tensor([not w.terminated for w in rows]),
            last_packed=self._model.pack(last or [query(rows[0], 0)]),
            hindsight_share=sum(w.source == "hindsight" for _, w, _ in learnt) / len(learnt),
            known_BA=self._padded([w.known[t] for _, w, t in learnt]) * scale if rows[0].known else None,
            bound_B=tensor([w.bounds[t] for _, w, t in learnt], torch.float32) * scale if rows[0].known else None,
            shown_BA=self._padded(shown) * scale if shown else None,
        )

    def _shown(self, w: Window, t: int) -> tuple[float, ...]:
        """The known action values at an imitated step: the graph's or, without one, the demonstration's return.

        Only with goal rewards: a return of the environment's own rewards may be that of a failure.
        """
        if w.imitated and w.known:
            return w.known[t]
        values = [UNTRIED] * len(w.observations[t].actions)
        if w.imitated and self._config.goal_rewards:
            earned = [*w.rewards[t:], w.return_after]
            values[w.actions[t]] = sum(self._config.gamma**i * reward for i, reward in enumerate(earned))
        return tuple(values)

    def _padded(self, known: Sequence[tuple[float, ...]]) -> Tensor:
        actions = max(map(len, known))
        return self._model.tensor([(*row, *[UNTRIED] * (actions - len(row))) for row in known], torch.float32)

    @override
    def trains_actor(self, update: int) -> bool:
        # During the warm-up only the critic's gradients may reach the actor's adapter.
        return self._model.critic_trains_actor or not self._warming_up(update)

    def _warming_up(self, update: int) -> bool:
        return update < self._config.warmup_updates

    @override
    def after_step(self, metrics: dict[str, float], update: int, lerp: Lerp) -> dict[str, float]:
        with self._clock.phase("target"):
            self._model.update_target(self._config.tau, lerp)
        return {}


class EntropyCoefficient:
    """alpha > 0, learned through its logarithm by Adam towards a target entropy (paper, Appendix C)."""

    def __init__(self, init: float, lr: float) -> None:
        """`lr` 0 keeps alpha fixed."""
        self._log_alpha = torch.tensor(math.log(init), dtype=torch.float64, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._log_alpha], lr=lr)

    @property
    def alpha(self) -> float:
        """The current coefficient."""
        return float(self._log_alpha.detach().exp())

    def update(self, entropy: float, target: float) -> None:
        """One step, given the mean policy entropy of a batch and its target, in nats."""
        self._optimizer.zero_grad()
        equations.alpha_loss(self._log_alpha, entropy, target).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def state(self) -> dict[str, Any]:
        """log alpha and Adam's moments as plain numbers."""
        moments = self._optimizer.state.get(self._log_alpha, {})
        return {"log_alpha": float(self._log_alpha.detach()), "adam": {k: float(v) for k, v in moments.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state()` gave."""
        if set(state["adam"]) not in (set(), {"step", "exp_avg", "exp_avg_sq"}):
            raise ValueError(f"expected all of Adam's moments of log alpha, got {state['adam']}")
        with torch.no_grad():
            self._log_alpha.fill_(state["log_alpha"])
        moments = {name: torch.tensor(value, dtype=torch.float64) for name, value in state["adam"].items()}
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: moments} if moments else {}})


class Sac(OffPolicy):
    """The updates of SAC-GLAM."""

    _config: SacConfig

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.alpha = EntropyCoefficient(self._config.alpha.init, self._config.alpha.lr)

    @override
    @torch.no_grad()
    def target_value(self, values: PolicyAndQ) -> Tensor:
        if self._config.soft_target:
            return equations.soft_value(values.log_pi_BA, values.q_CBA, self.alpha.alpha)
        return super().target_value(values)

    @override
    def actor_losses(self, values: PolicyAndQ, batch: SacBatch) -> dict[str, tuple[float, Tensor]]:
        q_CBA, weight = values.q_CBA.detach(), self._config.self_imitation
        for known_BA in (batch.known_BA, batch.shown_BA):
            if known_BA is not None:
                q_CBA = equations.at_least(q_CBA, known_BA, self._config.unreachable_value)
        q_CBA = self._capped(q_CBA, batch)
        actor = equations.actor_loss(values.log_pi_BA, q_CBA, self.alpha.alpha)
        losses = {"actor": (1.0, actor)}
        return losses | {"imitation": (weight, self._imitation_loss(values, batch))} if weight else losses

    def _capped(self, q_CBA: Tensor, batch: SacBatch) -> Tensor:
        """Q, capped for actions that demonstrations did not take (`equations.capped_untried`)."""
        if batch.shown_BA is None:
            return q_CBA
        return equations.capped_untried(q_CBA, batch.shown_BA, self._config.gamma, self._config.unreachable_value)

    def _imitation_loss(self, values: PolicyAndQ, batch: SacBatch) -> Tensor:
        """Imitate actions that return more than their state's value: those taken or, with a graph, the best known."""
        if batch.known_BA is not None:
            return_B, log_prob_B = equations.best_known(
                values.log_pi_BA, batch.known_BA, self._config.unreachable_value
            )
        else:
            # The return to the end of the episode, even if the window ends earlier.
            following_WT = torch.zeros_like(batch.reward_WT)
            following_WT[:, -1] = batch.return_after_W
            return_WT = equations.lambda_returns(batch.reward_WT, following_WT, self._config.gamma, 1.0)
            return_B = return_WT.flatten()[batch.place_B]
            log_prob_B = equations.taken(values.log_pi_BA, batch.action_B)
        q_CBA = self._capped(self._with_known(values.q_CBA.detach(), batch), batch)
        value_B = equations.soft_value(values.log_pi_BA.detach(), q_CBA, 0.0)
        advantage_B = equations.relative_advantage(return_B, value_B, values.log_pi_BA.detach(), q_CBA)
        return equations.imitation_loss(log_prob_B, advantage_B)

    @override
    def after_step(self, metrics: dict[str, float], update: int, lerp: Lerp) -> dict[str, float]:
        super().after_step(metrics, update, lerp)
        if not self._warming_up(update):
            decay = self._config.decay(update, self._total_updates)
            self.alpha.update(metrics["entropy"], self._config.alpha.target(metrics["random_entropy"], decay))
        return {"alpha": self.alpha.alpha}

    @override
    def state(self) -> dict[str, Any]:
        return {"alpha": self.alpha.state()}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self.alpha.load_state(state["alpha"])
