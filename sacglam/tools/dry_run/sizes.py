"""How large a training's parts are: parameters and bytes of the model as loaded, and memory by process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from sacglam.config import Config
from sacglam.models.agent_model import AgentModel
from sacglam.runtime.placement import Plan
from sacglam.tools.dry_run.calibrate import Calibration
from sacglam.tools.dry_run.random_rollout import rows_of_an_update
from sacglam.tools.profile.memory import total_bytes

_ADAM_STATES = 2  # first and second moment, in the parameter's own type


@dataclass(frozen=True)
class Sizes:
    """Parameters and bytes of the model."""

    base: int
    base_bytes: int
    adapters: int
    """Trained LoRA weights."""
    adapters_bytes: int
    heads: int
    heads_bytes: int
    target: int
    """What follows: LoRA weights and heads of the target."""
    target_bytes: int

    @property
    def trained_bytes(self) -> int:
        """Bytes of all that learns."""
        return self.adapters_bytes + self.heads_bytes


def sizes_of(model: AgentModel) -> Sizes:
    """Read off the model's tensors."""
    learned = model.state()
    target = [t for name, t in learned.items() if _is_target(name)]
    adapters = [t for name, t in learned.items() if name.startswith("lora.") and not _is_target(name)]
    heads = [t for name, t in learned.items() if name.startswith("heads.")]
    ours = {tensor.data_ptr() for tensor in learned.values()}
    return Sizes(*_base_size(model.lm.module, ours), *_size(adapters), *_size(heads), *_size(target))


def _base_size(module: nn.Module, ours: set[int]) -> tuple[int, int]:
    """Parameters and bytes of all tensors but `ours`; a quantised layer's are those that it multiplies as."""
    elements = {
        parameter.data_ptr(): part.in_features * part.out_features
        if isinstance(part, nn.Linear) and not parameter.is_floating_point()
        else parameter.numel()
        for part in module.modules()
        for parameter in part.parameters(recurse=False)
    }
    # Scales of quantised layers are no parameters, but part of the state; a tied tensor is there twice.
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in module.state_dict().values()}
    parameters, held = (sum(size for at, size in found.items() if at not in ours) for found in (elements, tensors))
    return parameters, held


def _is_target(name: str) -> bool:
    part, adapter = name.split(".")[:2]
    return part == "target_heads" or (part == "lora" and adapter.endswith("_target"))


def _size(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """Elements and bytes."""
    found = list(tensors)
    return sum(t.numel() for t in found), sum(t.nbytes for t in found)


@dataclass(frozen=True)
class Share:
    """One part of a process's memory; `size` None where it is not known here."""

    part: str
    size: int | None


@dataclass(frozen=True)
class Process:
    """A kind of process, how many there are, and what each holds."""

    name: str
    count: int
    shares: Sequence[Share]

    @property
    def known(self) -> int:
        """Bytes of the parts that are known."""
        return sum(share.size or 0 for share in self.shares)


def memory(
    config: Config, where: Plan, sizes: Sizes, calibration: Calibration | None, replay: int, libraries: int | None
) -> list[Process]:
    """What each process of a training holds. `calibration` None: the training's device is not here."""
    driver = [Share("Python and libraries", libraries), Share("replay", replay)]
    learner = _learner(config, max(1, where.learners), sizes, calibration)
    engines = [Process("engine", where.engines, _engine(config, where, sizes, calibration))] if where.engines else []
    if where.learners:
        return [Process("driver", 1, driver), *engines, Process("learner rank", where.learners, learner)]
    if not engines:
        states = f"scoring {config.env.copies} states (not while learning)"
        learner.append(Share(states, _scoring(config, calibration, 1)))
    name = "driver and learner" if engines else "one process"
    if where.device == "cpu":
        return [Process(name, 1, [*driver, *learner]), *engines]
    return [Process(f"{name}: host", 1, driver), Process(f"{name}: GPU", 1, learner), *engines]


def _learner(config: Config, ranks: int, sizes: Sizes, calibration: Calibration | None) -> list[Share]:
    """Of one rank; ZeRO shares out the optimizer from stage 1, gradients from 2, weights from 3."""
    stage = config.learners.zero_stage if config.learners.count else 0
    weights, gradients, optimizer = (ranks if stage >= least else 1 for least in (3, 2, 1))
    rows = rows_in_one_pass(config, ranks)
    follows = [Share("target: adapters and heads", sizes.target_bytes)] if sizes.target else []
    return [
        Share("base weights", sizes.base_bytes // weights),
        Share("LoRA adapters", sizes.adapters_bytes // weights),
        Share("critic heads", sizes.heads_bytes),
        *follows,
        Share("gradients", sizes.trained_bytes // gradients),
        Share("optimizer: Adam's moments", _ADAM_STATES * sizes.trained_bytes // optimizer),
        Share(f"activations of one micro-batch ({rows} rows)", _activations(config, sizes, calibration, rows)),
    ]


def rows_in_one_pass(config: Config, ranks: int) -> int:
    """Rows of a batch that one rank takes through the model at once."""
    own = -(-rows_of_an_update(config) // ranks)
    return min(own, config.algo.micro_batch_size or own)


def _activations(config: Config, sizes: Sizes, calibration: Calibration | None, rows: int) -> int | None:
    """The peak of the update that was taken, less its gradients, in proportion to the rows."""
    if calibration is None or calibration.update.peak is None:
        return None
    taken = min(calibration.update.size, config.algo.micro_batch_size or calibration.update.size)
    return max(0, calibration.update.peak - sizes.trained_bytes) * rows // taken


def _scoring(config: Config, calibration: Calibration | None, engines: int) -> int | None:
    if calibration is None or calibration.scoring.peak is None:
        return None
    return calibration.scoring.peak * -(-config.env.copies // engines) // calibration.scoring.size


def _engine(config: Config, where: Plan, sizes: Sizes, calibration: Calibration | None) -> list[Share]:
    weights = Share("base weights", sizes.base_bytes // where.tensor_parallel)
    if config.engines.type == "packed":
        states = -(-config.env.copies // where.engines)
        pass_ = Share(f"packed forward of {states} states", _scoring(config, calibration, where.engines))
        return [weights, Share("LoRA adapter", sizes.adapters_bytes), pass_]
    if where.device == "cpu":
        return [weights, Share("KV cache", round(config.engines.cpu_cache_gib * 2**30))]
    cache = None
    if calibration is not None:  # the GPU is here
        cache = round(config.engines.gpu_memory * total_bytes("cuda")) - sizes.base_bytes // where.tensor_parallel
    return [weights, Share(f"KV cache: the rest of {config.engines.gpu_memory:.0%} of its GPU", cache)]
