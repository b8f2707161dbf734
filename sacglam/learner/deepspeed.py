"""Learning on several ranks with DeepSpeed's ZeRO. The only file that knows DeepSpeed."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from sacglam.errors import LearnerError
from sacglam.learner.backend import Backend, Moments, P, Result

PERSISTENT_ELEMENTS = 100_000
"""With ZeRO, parameters up to this size (biases, norms, most LoRA matrices) stay whole between uses."""
_BUCKET_ELEMENTS = 50_000_000  # of gradients reduced at once; DeepSpeed's 5e8 would be a buffer of 2 GB
_MOMENTS = ("exp_avg", "exp_avg_sq")


def init_distributed(rank: int, world: int, meeting: str, device: str, timeout_s: float) -> None:
    """Join the group of `world` ranks; NCCL on CUDA, gloo on CPU. Call it once per process.

    `meeting` is `tcp://address:port`, or `file://path` for ranks that share a file system. A collective fails if a rank
    does not join it within `timeout_s`.

    Raises:
        LearnerError: DeepSpeed cannot be imported.
    """
    chosen = torch.device(device)
    index = chosen.index or 0  # Ray shows each rank its own GPU only
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(index)}
    os.environ |= {"DS_ACCELERATOR": chosen.type}
    try:
        import deepspeed
        import deepspeed.ops
        from deepspeed.utils import groups
    except ImportError as error:
        raise LearnerError(
            f"learner ranks need DeepSpeed, which cannot be imported ({error}); see docs/start/install.md, or set "
            "learners.count to 0"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed calls functions that torch is about to rename.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    if chosen.type == "cpu":
        # Keeps DeepSpeed from looking for operators that it could compile.
        deepspeed.ops.__compatible_ops__ = {}
    else:
        torch.cuda.set_device(index)
    timeout = timedelta(seconds=timeout_s)
    deepspeed.init_distributed(
        "gloo" if chosen.type == "cpu" else "nccl",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timeout,
        init_method=meeting,
        rank=rank,
        world_size=world,
    )
    # The group for ZeRO's collectives, which with DeepSpeed would have torch's time-out of many minutes.
    groups._WORLD_GROUP = dist.new_group(timeout=timeout)


def engine_config(stage: int, world: int, max_grad_norm: float | None) -> dict[str, Any]:
    """DeepSpeed's configuration for ZeRO's `stage`, 0 (without ZeRO) or 3.

    The learner itself counts micro-batches, and weights keep their types. Without ZeRO the backend clips gradients.
    """
    return {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_grad_norm if max_grad_norm and stage else 0.0,
        "zero_allow_untested_optimizer": True,
        "timers": {"throughput": {"enabled": False}},  # it waits for the GPU in every forward pass
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": _BUCKET_ELEMENTS,
            "allgather_bucket_size": _BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": PERSISTENT_ELEMENTS,
        },
    }


class _Root(nn.Module):
    """The module that DeepSpeed wraps; what it runs is set before each pass."""

    compute: Callable[[], Any]

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> Any:
        return self.compute()


class DeepSpeedBackend(Backend):
    """One of several ranks. With ZeRO (stage 3) each holds a part of the base weights, gradients and moments.

    Stages 1 and 2 are left out: a frozen model's gradients and moments are small.
    """

    def __init__(
        self,
        module: nn.Module,
        learned: Sequence[nn.Parameter],
        groups: Sequence[Sequence[nn.Parameter]],
        max_grad_norm: float | None,
        sharded: bool,
    ) -> None:
        """`module` has all weights; `learned` are the trained ones and their targets, `groups` those for the optimizer.

        `init_distributed` must have been called. All ranks begin with the weights of rank 0.
        """
        import deepspeed

        super().__init__(groups, max_grad_norm)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._sharded = sharded
        self._learned = list(learned)
        self._groups = [list(group) for group in groups]
        self._root = _Root(module)
        self._engine, *_ = deepspeed.initialize(
            model=self._root,
            optimizer=self.optimizer,
            config=engine_config(3 if sharded else 0, self.world, max_grad_norm),
            dist_init_required=False,
        )
        if sharded:
            # Adam's state begins now rather than at its first step, since a checkpoint may be loaded before that.
            for flat in self._engine.optimizer.fp32_partitioned_groups_flat:
                moments = {name: torch.zeros_like(flat) for name in _MOMENTS}
                # A fused Adam needs its step counts on the device of the moments.
                self.optimizer.state[flat] = {"step": torch.zeros((), device=flat.device), **moments}

    @property
    @override
    def can_start_over(self) -> bool:
        return self.world == 1 and not self._sharded  # an interrupted backward pass leaves gradients marked as reduced

    @override
    def as_forward(self, function: Callable[P, Result]) -> Callable[P, Result]:
        def run(*args: P.args, **kwargs: P.kwargs) -> Result:
            # Inside the engine's forward pass, whose hooks gather what is sharded.
            self._root.compute = partial(function, *args, **kwargs)
            return self._engine()

        return run

    @override
    def backward(self, loss: Tensor, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks, but these are parts of one mean, to be summed.
        self._engine.backward(loss * self.world, scale_wrt_gas=False)

    @override
    def all_reduce_sum(self, values: Tensor) -> Tensor:
        sums = values.to(self._engine.device, copy=True)
        dist.all_reduce(sums)
        return sums.cpu()

    @override
    def step(self, rates: Sequence[float | None]) -> float:
        # Plain torch skips parameters that have no gradient. DeepSpeed gives them zeros and counts the step, which
        # would spoil Adam's moments and its bias correction, so these groups get their state back.
        idle = [group for group, rate in enumerate(rates) if rate is None]
        kept = {id(state): {n: each.clone() for n, each in state.items()} for g in idle for state in self._states(g)}
        if self._sharded:
            # ZeRO's optimizer clips by itself, and skips a step whose norm is not finite.
            self._set_rates(rates)
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm())
        else:
            norm = super().step(rates)
        for state in [state for group in idle for state in self._states(group)]:
            before = kept.get(id(state))  # None if this was its first step
            for name, tensor in state.items():
                tensor.copy_(before[name] if before else torch.zeros_like(tensor))
        return norm

    @override
    def _step_optimizer(self) -> None:
        self._engine.step()

    def _states(self, group: int) -> list[dict[str, Tensor]]:
        """Adam's state of a group on this rank: of each of its parameters, or of one flat tensor for all of them."""
        if self._sharded:
            return [list(self.optimizer.state.values())[group]]
        return [self.optimizer.state[p] for p in self._groups[group] if p in self.optimizer.state]

    @override
    @contextmanager
    def gathered(self, change: bool = False) -> Iterator[None]:
        from deepspeed.runtime.zero import GatheredParameters

        if self._sharded:  # a pass without gradient may have prefetched weights that it did not use
            self._engine.optimizer.parameter_offload.get_param_coordinator()._clean_inflight_param_registry()
        modifier = 0 if change else None  # every rank sets the same values; rank 0's are then taken
        with GatheredParameters(self._learned, modifier_rank=modifier, enabled=self._sharded):
            yield
        if change and self._sharded:
            self._engine.optimizer.refresh_fp32_params()  # the copies that Adam steps

    @override
    def lerp(self, targets: Sequence[Any], online: Sequence[Any], share: float) -> None:
        if not self._sharded:
            super().lerp(targets, online, share)
            return
        # Each rank averages its own shards, since gathering would broadcast each tensor.
        torch._foreach_lerp_([p.ds_tensor for p in targets], [p.ds_tensor for p in online], share)
        if targets and targets[0].ds_tensor.is_cuda:  # the next gather reads them on another stream
            torch.cuda.current_stream().synchronize()
        stale = [p for p in targets if p.data.numel()]
        if stale:
            stale[0].partition(stale)  # gathered again when they are next used

    @override
    def moments(self) -> Moments:
        if not self._sharded:
            return super().moments()
        from deepspeed.utils import safe_get_full_optimizer_state

        return {
            index: {"step": step, **{name: safe_get_full_optimizer_state(p, name) for name in _MOMENTS}}
            for index, (p, step) in enumerate(self._steps())
            if step
        }

    def _steps(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter with the step count of its group."""
        for number, group in enumerate(self._groups):
            [state] = self._states(number)
            yield from ((parameter, state["step"]) for parameter in group)

    @override
    def load_moments(self, moments: Moments) -> None:
        if not self._sharded:
            super().load_moments(moments)
            return
        for index, (parameter, step) in enumerate(self._steps()):
            found = moments.get(index, {})
            step.fill_(found.get("step", torch.zeros(())))
            for name in _MOMENTS:
                self._set_moment(parameter, name, found.get(name))

    def _set_moment(self, parameter: nn.Parameter, name: str, value: Tensor | None) -> None:
        """Set this rank's part of a moment from the whole tensor (None: zeros)."""
        from deepspeed import utils

        part = torch.zeros_like(utils.safe_get_local_optimizer_state(parameter, name))
        if value is not None:
            # Cut here, since DeepSpeed cannot cut a tensor whose size is not a multiple of the number of ranks.
            own = value.flatten()[self.rank * len(part) :][: len(part)]
            part[: len(own)] = own.to(part.device)
        utils.safe_set_local_optimizer_state(parameter, part, name)
