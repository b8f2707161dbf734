"""A GPU where there is none: tensors of the CPU, some of which count as on `cuda:0`.

`with fake_gpu() as gpu:` marks what is made on or moved to `cuda`, by its storage, so that views and parameters share
the mark. Inside, every operation runs on the CPU, with the same result to the last bit, while

- `device` and `is_cuda` of a marked tensor answer as on a GPU, and so the code takes its CUDA branches;
- an operation on tensors of both devices raises `MixUp`, where CUDA would raise as well or copy in secret;
- `gpu.waits` counts by name what makes the host wait for the device: values read (`item`, `tolist`, `bool`), results
  whose size depends on values (an index that is a mask, `nonzero`), and copies in either direction, except those from
  pinned memory that were asked not to block.

It covers one thread, one device and autograd, and DeepSpeed's ranks if gloo joins them; not NCCL and vLLM, and not the
faults and the rounding of CUDA's own kernels. Streams and events do nothing, since every operation is over at once.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.cuda import nvtx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T, CPU, GPU = torch.Tensor, torch.device("cpu"), torch.device("cuda:0")
MEMORY = 80 << 30  # bytes

_SIZED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# Operations that are not elementwise, and still take a number from the CPU.
_TAKES_A_NUMBER = {"masked_fill", "masked_fill_", "fill", "fill_", "index_put_", "where"}


class MixUp(RuntimeError):
    """Tensors of both devices met, or the host touched the memory of a GPU."""


class Stream:
    """A stream or an event, whose work is always over."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def wait(self, *others: Stream) -> None:
        """Nothing is left to wait for; only `torch.cuda.synchronize` is counted."""

    wait_stream = wait_event = record = synchronize = wait

    def record_event(self, event: Stream | None = None) -> Stream:
        """An event after all that is queued."""
        return event or Stream()

    def query(self) -> bool:
        """Whether the work is over."""
        return True


class Storages:
    """A set of storages, which forgets those that are freed."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}

    def __contains__(self, tensor: object) -> bool:
        if not isinstance(tensor, T):
            return False
        found = self._known.get(_storage(tensor)._cdata)
        return found is not None and not found.expired()

    def put(self, tensor: T, there: bool = True) -> T:
        """`tensor`, whose storage is now in the set, or with `there` false is not."""
        storage = _storage(tensor)
        if there:
            self._known[storage._cdata] = StorageWeakRef(storage)
        else:
            self._known.pop(storage._cdata, None)
        return tensor


class FakeGpu(TorchDispatchMode):
    """Sees every operation: passes the mark on, refuses mixtures, counts waits."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.pinned = Storages(), Storages()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, T)]
        held = [tensor in self.held for tensor in given]
        name = func.overloadpacket.__name__
        if name == "copy_":  # in place: the mark stays where it is
            if held[0] != held[1]:
                self.count("copy_", given[1], held[1], kwargs.get("non_blocking", False) or True in args[2:])
            return func(*args, **kwargs)
        if any(held):
            self._check(func, name, [tensor for tensor, on in zip(given, held, strict=True) if not on])
            self._count_reads(name, args)
        if str(func) == "aten.mm.dtype":  # a product of bfloat16 in float32: the CPU has none
            return self.held.put(torch.mm(args[0].to(args[2]), args[1].to(args[2])))
        out = func(*args, **kwargs)
        if any(held):
            for tensor in tree_leaves(out):
                if isinstance(tensor, T):
                    self.held.put(tensor)
        return out

    def count(self, name: str, source: T, to_host: bool, non_blocking: bool) -> None:
        """A copy between the devices, which the host waits for unless it is queued from pinned memory."""
        if to_host or not (non_blocking and source in self.pinned):
            self.waits[f"{name} to the {'host' if to_host else 'GPU'}"] += 1

    def _check(self, func: Any, name: str, strangers: Sequence[T]) -> None:
        number = torch.Tag.pointwise in func.tags or name in _TAKES_A_NUMBER
        odd = [tuple(tensor.shape) for tensor in strangers if tensor.dim() or not number]
        if odd:
            raise MixUp(f"{func} takes tensors on cuda:0, and on the CPU {odd}")
        if strangers and name == "where" and torch._C._current_graph_task_id() == -1:
            # Copied to the GPU first, unlike elsewhere. Derivatives make their numbers there.
            self.waits["where of a number"] += 1

    def _count_reads(self, name: str, args: Any) -> None:
        if name == "_local_scalar_dense":
            self.waits["item"] += 1
        if name in _SIZED_BY_VALUES:
            self.waits[name] += 1
        if name == "repeat_interleave" and not isinstance(args[0], int):
            self.waits[name] += 1
        # A mask that one number is written to is filled, without its places.
        filled = name.startswith("index_put") and args[2].numel() == 1
        if name in _INDEXING and not filled:
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            self.waits["index by a mask"] += len(masks)


class _Places(TorchFunctionMode):
    """Sees every call from Python: answers for the device, and does what names one."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self._gpu = gpu
        self._answers: Mapping[Any, Callable[[], Any]] = {
            T.device.__get__: lambda: GPU,
            T.is_cuda.__get__: lambda: True,
            T.is_cpu.__get__: lambda: False,
            T.get_device: lambda: 0,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, first = dict(kwargs or {}), args[0] if args else None
        held = first in self._gpu.held
        if func in self._answers and held:
            return self._answers[func]()
        if func in (T.numpy, T.__array__) and held:
            raise MixUp("the host cannot read the memory of cuda:0; copy the tensor first")
        if func is T.pin_memory:
            if held:
                raise MixUp("only memory of the host can be pinned")
            return self._gpu.pinned.put(first.clone())
        if func is T.is_pinned:
            return first in self._gpu.pinned
        if func is T.tolist and held:
            self._gpu.waits["tolist"] += 1
            with torch._C.DisableTorchFunction():
                return first.tolist()
        if func in (T.cpu, T.cuda):
            return self._move(first, (CPU if func is T.cpu else GPU, *args[1:]), kwargs)
        if func is T.to:
            return self._move(first, args[1:], kwargs)
        if func is T.type and args[1:] and "cuda" in str(args[1]):
            raise NotImplementedError("tensor types that name a device")
        return self._make(func, args, kwargs)

    def _move(self, tensor: T, args: Sequence[Any], kwargs: dict[str, Any]) -> T:
        """`tensor.to(...)`: to a device, to another's, or of a type alone."""
        was, named = tensor in self._gpu.held, [v for v in (*args, kwargs.get("device")) if _is_place(v)]
        there = _is_gpu(named[0]) if named else was
        if any(isinstance(v, T) for v in args):
            there = any(v in self._gpu.held for v in args)
        plain = [CPU if _is_place(v) else v for v in args]
        out = tensor.to(*plain, **{k: CPU if k == "device" and _is_place(v) else v for k, v in kwargs.items()})
        if there == was:
            return out
        self._gpu.count("copy", tensor, was, bool(kwargs.get("non_blocking")) or True in args)
        return self._gpu.held.put(out.clone() if _storage(out)._cdata == _storage(tensor)._cdata else out, there)

    def _make(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Any other call, whose `device` says where its result is."""
        device = kwargs.get("device")
        if not _is_place(device):
            out = func(*args, **kwargs)
            if func is T.new_tensor and args[0] in self._gpu.held:
                self._gpu.waits["tensor from numbers"] += 1
                self._gpu.held.put(out)
            return out
        there = _is_gpu(device)
        out = func(*args, **{**kwargs, "device": CPU})
        if there and func in (torch.tensor, torch.as_tensor, T.new_tensor):
            self._gpu.waits["tensor from numbers"] += 1
        return self._gpu.held.put(out, there) if isinstance(out, T) else out


@contextlib.contextmanager
def fake_gpu(gpu: FakeGpu | None = None, *, hooks: bool = False) -> Iterator[FakeGpu]:
    """One GPU for the calling thread; with `gpu` the same as before, and what it holds.

    With `hooks` it is there for Python code within the backward pass, too, as DeepSpeed's hooks need.
    """
    gpu = gpu or FakeGpu()
    there = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: gpu.waits.update(["synchronize"]),
        "Stream": Stream,
        "Event": Stream,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 1 << 20,
        "reset_peak_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="NVIDIA H100 80GB HBM3", total_memory=MEMORY, major=9, minor=0, multi_processor_count=132
        ),
    }
    by_device = torch._C._group_tensors_by_device_and_dtype

    def group(tensors: list[list[T]], indices: bool = False) -> dict[Any, Any]:
        # Optimizers and clipping group by the true device; all of a group's are on the one of its first.
        found = by_device(tensors, indices)
        return {
            (GPU if group[0][0][0] in gpu.held else device, dtype): group for (device, dtype), group in found.items()
        }

    places, run_backward = _Places(gpu), torch.autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with places:  # for its hooks, since a call that is being answered does not see the mode
            return run_backward(*args, **kwargs)

    backward = mock.patch.object(torch.autograd, "_engine_run_backward", run)
    grouping = mock.patch.object(torch._C, "_group_tensors_by_device_and_dtype", group)
    profiling = mock.patch.multiple(nvtx, range_push=lambda *_: 0, range_pop=lambda: 0)
    streams = mock.patch.object(T, "record_stream")
    pinning = mock.patch.object(T, "pin_memory", torch._C.TensorBase.pin_memory)  # vLLM on a CPU replaces it for good
    loading = mock.patch.dict(os.environ, {"HF_DEACTIVATE_ASYNC_LOAD": "1"})  # transformers reads in threads
    patches = (loading, mock.patch.multiple(torch.cuda, **there), grouping, profiling, streams, pinning)
    with contextlib.ExitStack() as stack:
        for context in (*patches, *([backward] if hooks else []), places, gpu):
            stack.enter_context(context)
        yield gpu


def _storage(tensor: T) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()


def _is_place(value: object) -> bool:
    if isinstance(value, int):  # the number of a GPU
        return not isinstance(value, bool)
    return isinstance(value, str | torch.device) and str(value).startswith(("cuda", "cpu"))


def _is_gpu(place: object) -> bool:
    return isinstance(place, int) or str(place).startswith("cuda")
