"""The judge's model: whether a transition achieved a goal, learned from what the environment said, or simply asked."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sacglam.config import Config
from sacglam.learner.backend import Backend
from sacglam.learner.learner import micro_batches
from sacglam.models.agent_model import AgentModel, check_forms
from sacglam.models.heads import QHeads
from sacglam.models.packed_lm import JUDGE
from sacglam.types import Example, Query

_BATCH, _NEGATIVES = 16, 24  # transitions in an update, and most goals for each that it did not achieve
_POOL, _NEAR = 256, 32  # goals that are compared with a transition, and those that count as near
_ROWS = 32  # transitions in one pass, which must fit next to an update's memory
QUESTIONS = (
    "\nDid this action achieve this goal? Answer yes or no:",
    "\nQuestion: has the goal just been reached by the action? Answer:",
)
_FINAL_SHARE = 0.1  # of the learning rate, which falls linearly


class Judge:
    """An adapter and a critic's head of its own on the agent's language model.

    A transition is the prompt and goals are the actions, so one packed pass judges all of them. The head's value of a
    goal is the log-odds that the transition achieved it.
    """

    def __init__(self, model: AgentModel, config: Config, backend: Backend) -> None:
        """`model` has the adapter `JUDGE`; the head begins at random, from torch's global generator."""
        self._model, self._backend, self._rate = model, backend, config.algo.critic_lr
        settings = config.critic.model_copy(update={"num_critics": 1, "input": "observation_action"})
        self._head = QHeads(model.lm.hidden_size, settings).to(model.device)
        head = {f"judge.head.{name}": each for name, each in self._head.named_parameters()}
        adapter = {f"judge.lora.{name}": each for name, each in model.lm.adapter_parameters(JUDGE).items()}
        self._parameters: dict[str, nn.Parameter] = head | adapter
        self._train(False)  # the agent's updates leave it alone

    def judge(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """For each transition the probability that it achieved each goal, (A,)."""
        judged: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(queries), _ROWS):
            some = queries[start : start + _ROWS]
            with torch.no_grad():
                rows = self._log_odds(some).sigmoid().cpu().numpy()
            judged += [row[: len(query.actions)] for row, query in zip(rows, some, strict=True)]
        return judged

    def learn(self, examples: Sequence[Example], goals: Sequence[str], updates: int, seed: int) -> None:
        """Take `updates` gradient steps on batches drawn from `seed`; half of their transitions achieved something.

        Goals that were not achieved are drawn from `goals`.
        """
        self._train(True)
        optimizer = torch.optim.Adam(self._parameters.values(), self._rate)
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _FINAL_SHARE, updates)
        batches = _batches(examples, goals, np.random.default_rng(seed))
        for _ in range(updates):
            for part in micro_batches(next(batches), self._backend.rank, self._backend.world, _ROWS):
                (self._loss(part.rows) * part.weight).backward()  # type: ignore[no-untyped-call]
            self._add_gradients()
            optimizer.step()
            optimizer.zero_grad()
            falling.step()
        self._train(False)

    def state(self) -> dict[str, Tensor]:
        """All weights by name."""
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state()` returned.

        Raises:
            CheckpointError: it is of another model, adapter or critic.
        """
        check_forms(state, self.state())
        for name, parameter in self._parameters.items():
            parameter.copy_(state[name])

    def _train(self, trains: bool) -> None:
        for parameter in self._parameters.values():
            parameter.requires_grad_(trains)

    def _add_gradients(self) -> None:
        """Sum the gradients of all ranks, each of which had its part of the batch."""
        if self._backend.world == 1:
            return
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        sums = self._backend.all_reduce_sum(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(sums, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _loss(self, rows: "Sequence[Row]") -> Tensor:
        """Cross-entropy, summed over a transition's achieved and other goals, mean over transitions."""
        prompt = self._model.prompt
        queries = [prompt.judged(example.transition, (*example.achieved, *others)) for example, others in rows]
        log_odds_BA = self._log_odds(queries)
        exists_BA, achieved_BA = torch.zeros_like(log_odds_BA), torch.zeros_like(log_odds_BA)
        for row, ((example, _), query) in enumerate(zip(rows, queries, strict=True)):
            exists_BA[row, : len(query.actions)] = 1.0
            achieved_BA[row, : len(example.achieved)] = 1.0
        loss_BA = F.binary_cross_entropy_with_logits(log_odds_BA, achieved_BA, exists_BA, reduction="none")
        return loss_BA.sum(dim=1).mean()

    def _log_odds(self, queries: Sequence[Query]) -> Tensor:
        """(B, A), 0 on padding."""
        log_odds_BA: Tensor = self._head(self._model.lm.forward(self._model.pack(queries), JUDGE))[0]
        return log_odds_BA


class Scored:
    """The language model before training as a judge: log P(yes) - log P(no) after each of two questions.

    The lower of the two counts, so that they must agree. One packed pass asks one of them about all goals of a
    transition. Its adapter is never trained, which leaves the model as it was.
    """

    def __init__(self, model: AgentModel, config: Config, backend: Backend) -> None:
        self._model = model
        for parameter in model.lm.adapter_parameters(JUDGE).values():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def judge(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """For each transition the probability that it achieved each goal, (A,)."""
        return [
            torch.stack([self.log_odds(query, question) for question in QUESTIONS]).amin(0).sigmoid().cpu().numpy()
            for query in queries
        ]

    def log_odds(self, query: Query, question: str) -> Tensor:
        """log P(yes) - log P(no) after `question` about each goal, (A,)."""
        answers = tuple(f"{goal}{question} {answer}" for goal in query.actions for answer in ("yes", "no"))
        output = self._model.lm.forward(self._model.pack([Query(query.prompt, answers)]), JUDGE)
        yes_A, no_A = output.log_probs_BA[0].view(-1, 2).unbind(1)
        return yes_A - no_A

    def learn(self, examples: Sequence[Example], goals: Sequence[str], updates: int, seed: int) -> None:
        """It does not learn."""

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Nothing to restore."""


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

    These are the ones that a judge confuses. Goals achieved earlier in the episode are left out.
    """
    left = [goal for goal in words if goal not in example.achieved and goal not in example.earlier]
    some, own = _draw(left, _POOL, rng), _words(" ".join([example.transition, *example.achieved]))
    near = sorted(some, key=lambda goal: len(own & words[goal]), reverse=True)[:_NEAR]
    return list(dict.fromkeys(_draw(near, _NEGATIVES // 2, rng) + _draw(some, _NEGATIVES // 2, rng)))


def _draw(goals: Sequence[str], most: int, rng: np.random.Generator) -> list[str]:
    return [goals[i] for i in rng.choice(len(goals), min(most, len(goals)), replace=False)]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))
