"""What differs between learning in one process and on several ranks; this is the version for one process."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from sacglam.models.agent_model import under

P = ParamSpec("P")
Result = TypeVar("Result")
Row = TypeVar("Row")
Moments = dict[int, dict[str, Tensor]]
"""Adam's `step`, `exp_avg` and `exp_avg_sq` by the parameter's index over all groups; whole tensors."""


def named(moments: Moments) -> dict[str, Tensor]:
    """Adam's state as `adam.INDEX.NAME`, copied to the CPU."""
    return {f"adam.{i}.{name}": each.to("cpu", copy=True) for i, of in moments.items() for name, each in of.items()}


def moments_in(tensors: Mapping[str, Tensor]) -> Moments:
    """Adam's state from tensors that include what `named` returned."""
    moments: Moments = defaultdict(dict)
    for name, tensor in under("adam", tensors).items():
        index, _, moment = name.partition(".")
        moments[int(index)][moment] = tensor
    return dict(moments)


def micro_batches(
    batch: Sequence[Row], rank: int, world: int, size: int | None, steps: Callable[[Row], int] = lambda row: 1
) -> list[tuple[Sequence[Row], float]]:
    """The micro-batches of `rank`, at most `size` rows each (None: all at once), the same number on every rank.

    Each comes with the weight of its mean loss: its share of the whole batch's steps, where `steps` counts a row's.

    Rows are dealt in turn, so ranks differ by at most one row. A rank that runs out of rows repeats the batch's first
    row with weight 0, as `Backend` requires.
    """
    own = batch[rank::world]
    most = -(-len(batch) // world)  # the most rows that any rank has
    size = size or most
    parts = [own[i : i + size] for i in range(0, most, size)]
    total = sum(map(steps, batch))
    return [(rows or batch[:1], sum(map(steps, rows)) / total) for rows in parts]


class Backend:
    """Gradients, optimizer and collectives of one rank; this class serves the only rank of a single process.

    Where weights are sharded (ZeRO stage 3), each call of a module is a collective, which gathers the weights that the
    module owns. So one rule holds for all code that computes with weights: **every rank makes the same calls in the
    same order, and a weight is used only in a call of the module that owns it.** A rank with nothing to compute makes
    the calls with other data, at weight 0.
    """

    rank = 0
    """This rank, from 0."""
    world = 1
    """Number of ranks."""

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], max_grad_norm: float | None) -> None:
        """Adam over groups of parameters, each with its learning rate. `max_grad_norm` None: no clipping."""
        # One kernel for many small tensors. Meta tensors, whose work `benchmarks.kernels` counts, have no such kernel.
        fused = not any(parameter.is_meta for group in groups for parameter in group)
        self.optimizer = torch.optim.Adam([{"params": list(group)} for group in groups], fused=fused or None)
        self._max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm

    @property
    def can_start_over(self) -> bool:
        """Whether a pass that ran out of memory may be repeated; other ranks would wait for it in a collective."""
        return self.world == 1

    def as_forward(self, function: Callable[P, Result]) -> Callable[P, Result]:
        """`function` as a forward pass, during which the modules that it calls have their weights.

        If `backward` follows, the result must be a tuple that contains the loss.
        """
        return function

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradient of one micro-batch's part of the loss; `last` marks the last one before `step`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The values summed over ranks, on the CPU; the same on all ranks to the last bit."""
        return values.cpu()

    def step(self, rates: Sequence[float | None]) -> float:
        """Clip, take one Adam step at each group's rate, and clear the gradient; returns its norm over all ranks.

        A group with rate None had no gradient, and its Adam does not count the step. If the norm is not finite, no
        weight or moment changes.
        """
        self._set_rates(rates)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm).item()
        if math.isfinite(norm):
            self._step_optimizer()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _set_rates(self, rates: Sequence[float | None]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate or 0.0

    def _step_optimizer(self) -> None:
        self.optimizer.step()

    def gathered(self, change: bool = False) -> AbstractContextManager[None]:
        """A context in which weights and targets are whole tensors; with `change` they may be set."""
        return nullcontext()

    @torch.no_grad()
    def lerp(self, targets: Sequence[nn.Parameter], online: Sequence[nn.Parameter], share: float) -> None:
        """targets <- (1 - share) targets + share online, without gradient."""
        torch._foreach_lerp_(list(targets), list(online), share)  # on a GPU a few kernels for hundreds of tensors

    def moments(self) -> Moments:
        """Adam's state; parameters that never had a gradient are left out."""
        return self.optimizer.state_dict()["state"]

    def load_moments(self, moments: Moments) -> None:
        """Restore what `moments()` gave, on any number of ranks."""
        # Copies, since the optimizer would otherwise update the given tensors in place.
        state = {index: {name: tensor.clone() for name, tensor in of.items()} for index, of in moments.items()}
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
