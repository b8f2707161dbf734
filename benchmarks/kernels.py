"""Kernels, bytes and FLOP of scoring and updates, counted without a GPU, and the time they would take on an H100.

python -m benchmarks.kernels
python -m benchmarks.kernels --models qwen --rows 128 --prompt-tokens 50 --actions 7

The real scorer and learner run on tensors without data (torch's meta device), and every operation that reaches torch's
dispatcher is counted as CUDA would run it: attention as one kernel, a multi-tensor operation as a few. By the roofline
below, a kernel takes as long as its FLOP or its bytes do, and all together at least as long as launching them. A table
goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from benchmarks import common, update
from sacglam.algos.ppo import Ppo, PpoConfig, Sample
from sacglam.algos.sac import Sac, SacConfig
from sacglam.clock import PhaseClock
from sacglam.config.sections import CriticConfig
from sacglam.learner.backend import Backend
from sacglam.learner.learner import Learner
from sacglam.models.actor_critic import ActorCritic, ActorValue
from sacglam.models.heads import PolicyHead
from sacglam.models.tokens import QueryTokenizer
from sacglam.prompt import query

# An H100 SXM by its data sheet, and the share of it that large kernels reach.
BYTES_PER_S = 0.8 * 3.35e12
BFLOAT16_PER_S = 0.6 * 989e12
FLOAT32_PER_S = 0.8 * 67e12  # without TF32, which would break the parity of engine and learner
# Time per launch by Python and autograd, one operation after another, measured on an H200: an update with 32 rows of
# Qwen2.5-0.5B's shape took 146 ms for 8,599 kernels, which were busy for 49 ms (docs/results/gpu).
LAUNCH_S = 17e-6

# Of a multi-tensor kernel: tensors by the number of lists, elements of a block, and blocks (MultiTensorApply.cuh).
_TENSORS, _CHUNK, _BLOCKS = {1: 110, 2: 64, 3: 48, 4: 36}, 65_536, 320
_MOVES_NOTHING = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_READS_SOME_ROWS = {"embedding", "index", "index_select", "gather", "index_put_", "index_add_"}
_PAPER_STEPS, _ROWS_PER_STEP = 400_000, 16  # configs/paper: SAC learns from 2 x 256 rows every 32 steps, PPO 16 times

COLUMNS = {
    "kernels": "kernels",
    "gigabytes": "GB",
    "tflop": "TFLOP",
    "milliseconds_busy": "ms busy",
    "milliseconds_h100": "ms",
    "peak_gigabytes": "peak GB",
    "hours_h100": "hours",
}
"""Of the table for people: keys of a row, and their units."""


@dataclass
class Count(TorchDispatchMode):
    """Counts what runs inside it on the meta device."""

    kernels: int = 0
    bytes: int = 0
    flop: int = 0
    seconds: float = 0.0
    """Of the kernels alone, one after the other."""
    live: int = 0
    """Bytes of the tensors that were seen and are still there, weights among them."""
    peak: int = 0
    _storages: Any = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def milliseconds(self) -> float:
        """By the roofline: what the kernels take, or what launching them takes."""
        return 1e3 * max(self.seconds, LAUNCH_S * self.kernels)

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = _value_of(func, args, kwargs)
        out = func(*args, **kwargs) if out is None else out
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_meta]
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_meta]
        self._hold([*tensors, *made])
        if (tensors or made) and not func.is_view and _name(func) not in _MOVES_NOTHING:
            self._add(func, args, kwargs, out, tensors, made)
        return out

    def _add(self, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor], made: list[Tensor]) -> None:
        sizes = [_bytes(t) for t in [*tensors, *made]]
        moved = sum(sizes)
        if _name(func) in _READS_SOME_ROWS:  # as many bytes as it writes, and the indices
            moved = sum(sizes[1:]) + min(sizes[0], sizes[-1])
        count = flop_registry.get(func._overloadpacket)
        flop = int(count(*args, **kwargs, out_val=out)) if count else 0
        rate = BFLOAT16_PER_S if tensors and tensors[0].dtype == torch.bfloat16 else FLOAT32_PER_S
        self.kernels += _launches(args) if _name(func).startswith("_foreach") else 1
        self.bytes += moved
        self.flop += flop
        self.seconds += max(moved / BYTES_PER_S, flop / rate)

    def _hold(self, tensors: Iterable[Tensor]) -> None:
        for storage in (t.untyped_storage() for t in tensors):
            if storage not in self._storages:
                self._storages.add(storage)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.live)

    def _free(self, size: int) -> None:
        self.live -= size


def _name(func: Any) -> str:
    name: str = func._schema.name.removeprefix("aten::")
    return name


def _bytes(tensor: Tensor) -> int:
    """Of its elements, those of an expanded one counted once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return math.prod(sizes) * tensor.element_size()


def _launches(args: Sequence[Any]) -> int:
    """Kernels of a multi-tensor operation: as many as its tensors and blocks of elements need."""
    lists = [arg for arg in args if isinstance(arg, list | tuple) and arg and isinstance(arg[0], Tensor)]
    blocks = sum(math.ceil(t.numel() / _CHUNK) for t in lists[0])
    return max(math.ceil(len(lists[0]) / _TENSORS[len(lists)]), math.ceil(blocks / _BLOCKS))


def _value_of(func: Any, args: Any, kwargs: Any) -> Any:
    """Made-up values where an operation's result depends on data, which tensors without data cannot give."""
    first = args[0] if args else None
    if not (isinstance(first, Tensor) and first.is_meta):
        return None
    name = _name(func)
    if name == "_local_scalar_dense":
        return first.dtype.is_floating_point and 1.0
    if name == "equal":
        return True
    if name == "_to_copy" and str(kwargs.get("device", "meta")) == "cpu":
        return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
    if name == "index_put_" and any(i is not None and i.dtype == torch.bool for i in args[1]):
        return first
    return None


class _AsOnCuda(TorchFunctionMode):
    """What sacglam and torch would do on a GPU: on the meta device torch would write attention out."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if func is Tensor.pin_memory:
            return args[0]
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].is_meta
        return func(*args, **(kwargs or {}))


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None, **_: Any
) -> Tensor:
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.where(bias, torch.zeros((), dtype=q.dtype, device=q.device), -torch.inf)
        bias = bias.expand(*q.shape[:-1], k.shape[-2])
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    attended: Tensor = kernel(q, k, v, bias, grad, scale=scale)[0]
    return attended


@contextlib.contextmanager
def counting() -> Iterator[Count]:
    """A count of what runs inside, with attention and multi-tensor operations as on CUDA."""
    with contextlib.ExitStack() as stack:
        for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            stack.enter_context(mock.patch(f"{module}._get_foreach_kernels_supported_devices", return_value=["meta"]))
        stack.enter_context(_AsOnCuda())
        yield stack.enter_context(Count())


def operations(options: argparse.Namespace, rows: int) -> dict[str, Callable[[], object]]:
    """Scoring of `rows` states, and an update of as many rows by SAC and by PPO."""
    words = common.word_tokenizer(common.model_config(options).vocab_size)
    tokenizer, policy, clock = QueryTokenizer(words, common.MAX_TOKENS), PolicyHead(), PhaseClock()
    with torch.device("meta"):
        lm = common.build_lm("packed", options, ActorCritic.adapters(CriticConfig()))
        actor_critic = ActorCritic(lm, tokenizer, policy, CriticConfig())
        actor_value = ActorValue(lm, tokenizer, policy, CriticConfig())
    rng = np.random.default_rng(0)
    sac = Sac(actor_critic, SacConfig(warmup_updates=0), 1, rng, clock)
    ppo = Ppo(actor_value, PpoConfig(), 1, rng, clock)

    windows = [update.one_step(row, options, options.actions) for row in range(rows)]
    queries = [query(w.goal, w.observations[0]) for w in windows]
    samples = [Sample(seen, w.actions[0], -1.0, 1.0, 1.0) for seen, w in zip(queries, windows, strict=True)]

    def step(model: Any, algorithm: Any, config: Any, rows: Sequence[Any]) -> Callable[[], object]:
        backend = Backend((model.actor_parameters(), model.critic_parameters()), config.max_grad_norm)
        learner = Learner(model, algorithm, backend, config, 1, clock)
        return lambda: learner._step(rows, learner.algorithm, learner.updates)

    return {
        "scoring": lambda: actor_critic.log_policy(queries),
        "sac": step(actor_critic, sac, sac._config, windows),
        "ppo": step(actor_value, ppo, ppo._config, samples),
    }


def measured(options: argparse.Namespace, rows: int) -> Iterator[dict[str, Any]]:
    """A row for each operation."""
    with counting():
        runs = operations(options, rows)
    acting = 0.0
    for name, run in runs.items():
        with counting():
            run()  # Adam creates its moments
        with counting() as count:
            run()
        took = count.milliseconds
        acting = acting or took
        hours = round(_PAPER_STEPS * (acting + _ROWS_PER_STEP * took) / rows / 3.6e6, 2)
        row = {
            "model": options.model_shape,
            "operation": name,
            "rows": rows,
            "kernels": count.kernels,
            "gigabytes": round(count.bytes / 1e9, 1),
            "tflop": round(count.flop / 1e12, 2),
            "milliseconds_busy": round(1e3 * count.seconds, 1),
            "milliseconds_h100": round(took, 1),
            "peak_gigabytes": round(count.peak / 1e9, 1),
            "hours_h100": None if name == "scoring" else hours,
        }
        common.log(table_line(row))
        yield row


def table_line(row: dict[str, Any]) -> str:
    """The row for people."""
    cells = [row[name] or "" for name in COLUMNS]
    return f"{row['model']:10}{row['operation']:8}{row['rows']:6}" + "".join(f"{cell:>11}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=[*common.SHAPES, *common.T5_SHAPES], default=["smollm", "qwen", "t5-base"]
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--layers", type=int, help="layers instead of the shape's own number")
    parser.add_argument("--actions", type=int, default=7, help="as Playground's states have")
    parser.add_argument("--prompt-tokens", type=int, default=45)
    parser.add_argument("--action-tokens", type=int, default=4)
    parser.add_argument("--bucket", type=int, default=8, help="packed lengths are multiples of this")
    options = parser.parse_args(namespace=argparse.Namespace(device="meta", alike=0))
    common.log(f"{'model':10}{'':8}{'rows':>6}" + "".join(f"{unit:>11}" for unit in COLUMNS.values()))
    found = []
    for model, rows in itertools.product(options.models, options.rows):
        found += measured(argparse.Namespace(**vars(options), model_shape=model), rows)
    common.emit(found)


if __name__ == "__main__":
    main()
