"""Models that judge whether a transition achieved a goal: one trained on verdicts, one prompted without training."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from sacglam.config import Config
from sacglam.learner.backend import Backend
from sacglam.learner.classifier import AdapterAndHead, Classifier
from sacglam.models.agent_model import AgentModel
from sacglam.models.heads import QHeads
from sacglam.types import Example, Query

_BATCH, _NEGATIVES = 16, 24  # transitions per update, and at most this many unachieved goals for each
_POOL, _NEAR = 256, 32  # goals compared with a transition, and those of them that count as near
QUESTIONS = (
    "\nDid this action achieve this goal? Answer yes or no:",
    "\nQuestion: has the goal just been reached by the action? Answer:",
)
_FINAL_SHARE = 0.1  # of the learning rate, which falls linearly


class Judge(AdapterAndHead):
    """Its own adapter and critic's head; a query's prompt is a transition, and its actions are goals.

    The head's value of a goal is the log-odds that the transition achieved it.
    """

    adapters: ClassVar[Sequence[str]] = ("judge",)

    def __init__(self, model: AgentModel, config: Config, backend: Backend) -> None:
        """The head is initialised from torch's global generator."""
        settings = config.critic.model_copy(update={"num_critics": 1, "input": "observation_action"})
        head = QHeads(model.lm.hidden_size, settings, relative=False)  # a verdict depends on no other goal
        super().__init__(model, "judge", head, backend)
        self._prompt, self._rate = model.prompt, config.algo.critic_lr

    def learn(self, examples: Sequence[Example], goals: Sequence[str], updates: int, seed: int) -> None:
        """Take `updates` gradient steps on batches from `seed`; at least half of each achieved something if any did.

        Goals that were not achieved are drawn from `goals`.
        """
        optimizer = torch.optim.Adam(self.parameters.values(), self._rate)
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _FINAL_SHARE, updates)
        batches = _batches(examples, goals, np.random.default_rng(seed))
        for _ in range(updates):
            self.add_gradient(next(batches), self.loss)
            optimizer.step()
            optimizer.zero_grad()
            falling.step()

    def loss(self, rows: "Sequence[Row]") -> Tensor:
        """Cross-entropy, summed over a transition's achieved and other goals, mean over transitions."""
        queries = [self._prompt.judged(example.transition, (*example.achieved, *others)) for example, others in rows]
        log_odds_BA = self.log_odds(queries)
        place_A = torch.arange(log_odds_BA.shape[1])
        exists_BA = (place_A < torch.tensor([len(query.actions) for query in queries])[:, None]).to(log_odds_BA)
        achieved_BA = (place_A < torch.tensor([len(example.achieved) for example, _ in rows])[:, None]).to(log_odds_BA)
        loss_BA = F.binary_cross_entropy_with_logits(log_odds_BA, achieved_BA, exists_BA, reduction="none")
        return loss_BA.sum(dim=1).mean()


class Scored(Classifier):
    """The language model before training as a judge: log P(yes) - log P(no) after each of two questions.

    The lower of the two counts, so both must say yes. One packed pass asks one question about all goals of a
    transition. Its adapter is never trained, so the model stays as it was.
    """

    adapters: ClassVar[Sequence[str]] = ("judge",)

    def __init__(self, model: AgentModel, config: Config, backend: Backend) -> None:
        self._model = model
        for parameter in model.lm.adapter_parameters("judge").values():
            parameter.requires_grad_(False)

    @override
    @torch.no_grad()
    def predict(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """For each transition the probability that it achieved each goal, (A,)."""
        return [
            torch.stack([self.log_odds(query, question) for question in QUESTIONS]).amin(0).sigmoid().cpu().numpy()
            for query in queries
        ]

    def log_odds(self, query: Query, question: str) -> Tensor:
        """log P(yes) - log P(no) after `question` about each goal, (A,)."""
        answers = tuple(f"{goal}{question} {answer}" for goal in query.actions for answer in ("yes", "no"))
        output = self._model.lm.forward(self._model.pack([Query(query.prompt, answers)]), "judge")
        yes_A, no_A = output.log_probs_BA[0].view(-1, 2).unbind(1)
        return yes_A - no_A


Row = tuple[Example, Sequence[str]]
"""A transition, and some goals that it did not achieve."""


def _batches(examples: Sequence[Example], goals: Sequence[str], rng: np.random.Generator) -> Iterator[list[Row]]:
    eventful = [example for example in examples if example.achieved] or examples
    words = {goal: _words(goal) for goal in goals}
    while True:
        drawn = [some[i] for some in (eventful, examples) for i in rng.integers(len(some), size=_BATCH // 2)]
        yield [(each, _others(each, words, rng)) for each in drawn]


def _others(example: Example, words: Mapping[str, frozenset[str]], rng: np.random.Generator) -> list[str]:
    """Goals that were not achieved: half are drawn from those that share most words with the transition.

    A judge confuses these most easily. Goals achieved earlier in the episode are left out.
    """
    left = [goal for goal in words if goal not in example.achieved and goal not in example.earlier]
    some, own = _draw(left, _POOL, rng), _words(" ".join([example.transition, *example.achieved]))
    near = sorted(some, key=lambda goal: len(own & words[goal]), reverse=True)[:_NEAR]
    return list(dict.fromkeys(_draw(near, _NEGATIVES // 2, rng) + _draw(some, _NEGATIVES // 2, rng)))


def _draw(goals: Sequence[str], most: int, rng: np.random.Generator) -> list[str]:
    return [goals[i] for i in rng.choice(len(goals), min(most, len(goals)), replace=False)]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))
