"""The size of a run: parameters and bytes of the loaded model, and memory by process."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from sacglam.config import Config
from sacglam.memory import CPU_CACHE_BYTES, kept_states_bytes, total_bytes
from sacglam.models.agent_model import AgentModel
from sacglam.runtime.placement import Plan
from sacglam.tools.dry_run.calibrate import Calibration

_ADAM_STATES = 2  # first and second moment, in the parameter's own type


class Size(NamedTuple):
    """Parameters and bytes of a group of tensors."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of the frozen base, the trained LoRA weights and critic heads, and the target network's copies of both."""

    base: Size
    adapters: Size
    heads: Size
    target: Size

    @property
    def trained_bytes(self) -> int:
        """Bytes of everything with a gradient."""
        return self.adapters.bytes + self.heads.bytes


def sizes_of(model: AgentModel) -> Sizes:
    """Measure the model's tensors; of a quantised layer, the unpacked parameters are counted."""
    kinds: dict[str, list[Tensor]] = defaultdict(list)
    loras = 0
    for name, tensor in model.state().items():
        part, adapter = name.split(".")[:2]
        target = part == "target_heads" or adapter.endswith("_target")
        kinds["target" if target else part].append(tensor)
        loras += tensor.numel() if part == "lora" else 0
    base = next(module for module in model.lm.module.modules() if isinstance(module, PreTrainedModel))
    # Scales of quantised layers are in the state but are not parameters; tied tensors appear twice.
    tensors = {tensor.data_ptr(): tensor.nbytes for name, tensor in base.state_dict().items() if "lora_" not in name}
    frozen = Size(base.num_parameters() - loras, sum(tensors.values()))
    return Sizes(frozen, *(_size(kinds[kind]) for kind in ("lora", "heads", "target")))


def _size(tensors: Sequence[Tensor]) -> Size:
    return Size(sum(tensor.numel() for tensor in tensors), sum(tensor.nbytes for tensor in tensors))


@dataclass(frozen=True)
class Process:
    """A kind of process: how many there are, and the bytes of each part of one; None if unknown here."""

    name: str
    count: int
    parts: Mapping[str, int | None]

    @property
    def known(self) -> int:
        """Total bytes of the known parts."""
        return sum(size or 0 for size in self.parts.values())


def memory(
    config: Config, where: Plan, sizes: Sizes, calibration: Calibration | None, libraries: int | None
) -> list[Process]:
    """Memory of each process of a run; `calibration` is None if this machine lacks the run's device."""
    driver = {"Python and libraries": libraries}
    learner = _learner(config, max(1, where.learners), sizes, calibration)
    engines = []
    if where.engines:
        engines = [Process("engine", where.engines, _engine(config, where, sizes, calibration is not None))]
    else:
        states = -(-config.env.copies // max(1, where.learners))
        scoring = calibration.scoring if calibration else None
        peak = None if scoring is None or scoring.peak is None else scoring.peak * states // scoring.size
        *_, activations = learner  # which scoring does not need at the same time
        if peak is not None and peak > (learner[activations] or 0):
            del learner[activations]
            learner[f"activations while scoring {states} states"] = peak
    if where.learners:
        return [Process("driver", 1, driver), *engines, Process("learner rank", where.learners, learner)]
    name = "driver and learner" if engines else "one process"
    if where.device == "cpu":
        return [Process(name, 1, {**driver, **learner}), *engines]
    return [Process(f"{name}: host", 1, driver), Process(f"{name}: GPU", 1, learner), *engines]


def _learner(config: Config, ranks: int, sizes: Sizes, calibration: Calibration | None) -> dict[str, int | None]:
    """Memory of one rank; ZeRO 3 shards weights, gradients and the optimizer."""
    shards = ranks if config.sharded else 1
    rows = rows_in_one_pass(config, ranks)
    activations = None
    if calibration and calibration.update.peak is not None:  # the peak, less its gradients, in proportion to the rows
        measured = min(calibration.update.size, config.algo.micro_batch_size or calibration.update.size)
        activations = max(0, calibration.update.peak - sizes.trained_bytes) * rows // measured
    return {
        "base weights": sizes.base.bytes // shards,
        "LoRA adapters": sizes.adapters.bytes // shards,
        "critic heads": sizes.heads.bytes,
        **({"target: adapters and heads": sizes.target.bytes} if sizes.target.bytes else {}),
        "gradients": sizes.trained_bytes // shards,
        "optimizer: Adam's moments": _ADAM_STATES * sizes.trained_bytes // shards,
        **({"hidden states of frozen layers": kept_states_bytes()} if config.keeps_states else {}),
        f"activations of one micro-batch ({rows} rows)": activations,
    }


def _engine(config: Config, where: Plan, sizes: Sizes, has_device: bool) -> dict[str, int | None]:
    weights, share = sizes.base.bytes // where.tensor_parallel, config.engine_memory
    if where.device == "cpu":
        return {"base weights": weights, "KV cache": CPU_CACHE_BYTES}
    cache = round(share * total_bytes("cuda")) - weights if has_device else None
    return {"base weights": weights, f"KV cache: the rest of {share:.0%} of its GPU": cache}


def rows_in_one_pass(config: Config, ranks: int) -> int:
    """Batch rows that one rank passes through the model at once."""
    own = -(-config.algo.rows // ranks)
    return min(own, config.algo.micro_batch_size or own)
