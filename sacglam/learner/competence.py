"""Competence: how likely the agent is to achieve a goal that it pursues (MAGELLAN, Gaven et al., 2025)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sacglam.config import Config
from sacglam.config.sections import CriticConfig
from sacglam.learner.backend import Backend, moments_in, named
from sacglam.learner.classifier import AdapterAndHead
from sacglam.models.agent_model import AgentModel, joined, under
from sacglam.models.heads import QHeads
from sacglam.types import Attempts, Query

_HEAD = CriticConfig(num_critics=1, hidden=[128])
_RATE = 3e-4
_AT_FIRST = -4.6  # log-odds of 0.01: an untried goal is not mastered, so failing at it changes nothing
_DELAY = 50  # updates between copies; progress is measured against one that is one to two delays old


class Competence:
    """P(success | goal), and what it was some updates ago: each an adapter and a head on the agent's language model."""

    adapters: ClassVar[Sequence[str]] = ("competence", "competence_before")

    def __init__(self, model: AgentModel, config: Config, backend: Backend) -> None:
        """Both start with the same head, initialised from torch's global generator."""
        self._now, self._before = (
            AdapterAndHead(model, adapter, QHeads(model.lm.hidden_size, _HEAD, nn.Tanh), backend)
            for adapter in self.adapters
        )
        self._now.parameters["head.critics.0.2.bias"].data.fill_(_AT_FIRST)
        self._next = self._now.state()  # what `_before` becomes next
        self._before.load_state(self._next)
        self._optimizer = Backend([list(self._now.parameters.values())], None)
        self._updates = 0

    def predict(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """For each query the competence at its goals, now and before: (2, A)."""
        both = [each.predict(queries) for each in (self._now, self._before)]
        return [np.stack(of_query) for of_query in zip(*both, strict=True)]

    def learn(self, attempted: Sequence[Attempts]) -> None:
        """One gradient step: see `loss`."""
        self._now.add_gradient(attempted, self.loss, lambda each: sum(each.attempts))
        self._optimizer.step([_RATE])
        self._updates += 1
        if self._updates % _DELAY == 0:
            self._before.load_state(self._next)
            self._next = self._now.state()

    def loss(self, attempted: Sequence[Attempts]) -> Tensor:
        """sum_g (n_g log(1 + e^z_g) - w_g z_g) / sum_g n_g: cross-entropy of w_g successes in n_g attempts."""
        z_BA = self._now.log_odds([each.query for each in attempted])
        attempts_BA = pad_sequence([torch.tensor(each.attempts) for each in attempted], batch_first=True).to(z_BA)
        successes_BA = pad_sequence([torch.tensor(each.successes) for each in attempted], batch_first=True).to(z_BA)
        return (attempts_BA * F.softplus(z_BA) - successes_BA * z_BA).sum() / attempts_BA.sum()

    def state(self) -> dict[str, Tensor]:
        """Both, the next copy to compare with, Adam's moments and the number of updates."""
        tensors = joined({"now": self._now.state(), "before": self._before.state(), "next": self._next})
        return tensors | named(self._optimizer.moments()) | {"updates": torch.tensor(self._updates)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """See `Classifier.load_state`."""
        self._now.load_state(under("now", state))
        self._before.load_state(under("before", state))
        self._next = under("next", state)
        self._optimizer.load_moments(moments_in(state))
        self._updates = int(state["updates"])
