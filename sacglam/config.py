"""The configuration: frozen, unknown keys refused, read from YAML with dotted overrides. Imports no torch.

Defaults are the paper's (Tables 2 and 3, Appendix C) where it gives them; `configs/` holds whole experiments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sacglam.errors import ConfigError

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class EnvConfig(Section):
    """The world and how many copies of it play in lockstep."""

    name: str = "playground"
    """A registered environment (`sacglam envs` lists them), or your own factory as `package.module:attribute`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the environment, e.g. `size: full` for Playground-Text."""
    copies: Positive = 32
    """Environments played in lockstep; one scoring pass serves them all."""


class LoraSettings(Section):
    """The low-rank adapter that learns; the base model is frozen."""

    rank: Positive = 16
    """Rank r of the update W + (alpha / r) B A."""
    alpha: PositiveFloat = 32.0
    """Numerator of the update's scale."""
    targets: str | list[str] = "all-linear"
    """Layers that get an adapter: names, or `all-linear` for all but the output layer."""
    merged: bool = False
    """Compute (W + s B A) x, not W x + s B (A x): for models hardly wider than the rank, such as the built-in."""


class ModelConfig(Section):
    """The language model that is policy and critic."""

    name: str = "builtin"
    """`builtin` and `builtin-t5` (tiny models that come with sacglam), a Hugging Face name, or a local folder."""
    lora: LoraSettings = LoraSettings()
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base weights; log-softmax, heads and adapters are always float32."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention kernel; both take the packed mask. `eager` is faster for the smallest models on CPU."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    bucket: Positive = 32
    """Packed lengths are rounded up to a multiple of this, so that kernels meet few shapes."""


class CriticConfig(Section):
    """The Q function on the same model (paper, Section 2.2 and Appendix B)."""

    input: Literal["observation_action", "observation"] = "observation_action"
    """What the head reads: an action's last token (one Q value), or the prompt's last position (one per action)."""
    backbone: Literal["shared", "frozen", "separate"] = "shared"
    """Whether Q gradients reach the actor's adapter (`shared`), the head alone (`frozen`) or an own adapter."""
    num_critics: Positive = 2
    """Independent Q functions; targets and actor use their minimum."""
    hidden: list[Positive] = [1024, 1024]
    """Widths of the head's hidden layers."""
    max_actions: Positive = 64
    """Outputs of the head with `input: observation`; a state with more actions is an error."""
    target_backbone: Literal["adapter", "online"] = "adapter"
    """What the target heads read: an average of the adapter, or the online one (saves one forward in four)."""


class PolicyConfig(Section):
    """How log-probabilities of actions become a policy."""

    length_normalised: bool = False
    """Divide an action's log-probability by its number of tokens."""
    score_eos: bool = False
    """Score the end-of-sequence token after each action, too."""
    temperature: PositiveFloat = 1.0
    """Divides the scores before the softmax."""


class AlphaConfig(Section):
    """The entropy coefficient; defaults are those of the paper's SAC + HER (Table 3)."""

    init: PositiveFloat = 0.05
    """First value."""
    target_entropy: float = 0.01
    """Mean policy entropy, in nats, at which alpha rests."""
    lr: Annotated[float, Field(ge=0)] = 2e-3
    """Adam's learning rate on log alpha; 0 keeps alpha fixed."""


class SacConfig(Section):
    """Soft actor-critic (paper, Tables 2 and 3)."""

    type: Literal["sac"] = "sac"
    gamma: OpenFraction = 0.99
    """Discount per environment step."""
    n_step: Positive = 3
    """Rewards summed before bootstrapping (Eq. 3)."""
    batch_size: Positive = 256
    """Transitions in one update."""
    micro_batch_size: Positive | None = None
    """Rows in one forward and backward; gradients are accumulated over the batch. None: the whole batch at once."""
    update_interval: Positive = 32
    """Environment steps, over all copies together, between updates."""
    updates_per_interval: Positive = 2
    """Gradient updates at each interval."""
    actor_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the adapters."""
    critic_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the critic heads (and the critic's own adapter, if it has one)."""
    lr_decay: bool = False
    """Let both learning rates fall linearly to a tenth over the budget."""
    max_grad_norm: PositiveFloat | None = None
    """Clip the norm of the whole gradient; None: no clipping, as in the paper."""
    tau: OpenFraction = 0.005
    """Step of the target's exponential moving average at each update."""
    warmup_updates: NonNegative = 20
    """First updates, in which only the critic learns."""
    alpha: AlphaConfig = AlphaConfig()


class ReplayConfig(Section):
    """The replay buffer and hindsight relabelling."""

    capacity: Positive = 100_000
    """Transitions kept; the oldest go first."""
    min_size: Positive = 256
    """Transitions needed before the first update."""
    hindsight: bool = True
    """Add every episode once more for each goal it achieved (strategy `future`)."""
    sampling: Literal["uniform", "ratio", "prior"] = "ratio"
    """`uniform` over the buffer, a fixed share of relabelled transitions, or goal types as in the environment."""
    hindsight_ratio: Fraction = 0.5
    """Share of relabelled transitions in a batch with `sampling: ratio`."""


class EvalConfig(Section):
    """Evaluation on fresh episodes, outside the training clock."""

    episodes: Positive = 500
    """Fresh episodes before and after the training."""
    every_steps: NonNegative = 0
    """Environment steps between evaluations during the training; 0: none."""
    every_episodes: Positive = 200
    """Episodes of those."""


class CheckpointConfig(Section):
    """Checkpoints for resuming."""

    every_steps: Positive = 2_000
    """Environment steps between checkpoints."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Checkpoints kept; never fewer than two, so that a damaged one has a predecessor."""


class EnginesConfig(Section):
    """The engines that score the rollout's actions, each in a process of its own; vLLM or the packed forward."""

    type: Literal["auto", "vllm", "packed"] = "auto"
    """`vllm`, `packed` (our own forward pass, for any model), or `auto`: vLLM where it can serve it."""
    count: NonNegative = 0
    """Engines; 0: the learner's own process scores, with the very weights that learn."""
    tensor_parallel: Positive = 1
    """GPUs that one engine is spread over."""
    gpu_memory: OpenFraction = 0.85
    """Share of a GPU's memory that an engine takes (weights and prefix cache)."""
    cpu_cache_gib: PositiveFloat = 1.0
    """Prefix cache of an engine without a GPU, in GiB."""
    timeout_s: PositiveFloat = 60.0
    """Seconds without an answer after which an engine counts as hung."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds that an engine may take to start."""
    max_restarts: NonNegative = 10
    """Times that the engines together may be restarted in one run before it ends."""
    parity_every: Positive = 50
    """Adapters between two checks that the engines' policy is the learner's; the first one is always checked."""
    parity_tolerance: PositiveFloat | None = None
    """Largest total variation between both policies on a fixed state; None: 1e-4 in float32, 0.05 in bfloat16."""


class LearnersConfig(Section):
    """The DeepSpeed ranks that learn."""

    count: NonNegative = 0
    """Ranks; 0: one learner in the driver's process, without DeepSpeed."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """What the ranks share out (ZeRO): 0 nothing, 1 the optimizer's state, 2 gradients, 3 the base weights, too."""
    timeout_s: PositiveFloat = 1800.0
    """Seconds that an interval's updates may take before the learner counts as hung."""


class RuntimeConfig(Section):
    """Where the processes run and how they overlap."""

    lag: Annotated[int, Field(ge=0, le=1)] = 0
    """Intervals by which the engines' adapter may trail the learner: 1 lets the next rollout run during the update."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; None: a Ray of its own on this machine, if one is needed."""


class Config(Section):
    """One experiment."""

    seed: NonNegative = 0
    """Seeds environments, policy, replay and initial weights."""
    steps: Positive = 400_000
    """Budget in environment steps over all copies."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: NonNegative = 0
    """CPU threads of a learner's process; 0: its share of the cores, and 4 at most without engines."""
    log_every_steps: Positive = 320
    """Environment steps between lines of metrics.jsonl."""
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    critic: CriticConfig = CriticConfig()
    policy: PolicyConfig = PolicyConfig()
    algo: SacConfig = SacConfig()
    replay: ReplayConfig = ReplayConfig()
    evaluation: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engines: EnginesConfig = EnginesConfig()
    learners: LearnersConfig = LearnersConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.algo.update_interval % self.env.copies:
            raise ValueError(
                f"algo.update_interval ({self.algo.update_interval}) must be a multiple of env.copies "
                f"({self.env.copies}), because the copies step together"
            )
        if self.replay.min_size > self.replay.capacity:
            raise ValueError(
                f"replay.min_size ({self.replay.min_size}) exceeds replay.capacity ({self.replay.capacity}): "
                "no update would ever run"
            )
        return self

    @model_validator(mode="after")
    def _placeable(self) -> Config:
        if self.learners.count and not self.engines.count:
            raise ValueError(
                f"learners.count ({self.learners.count}) needs engines to score the rollout; set engines.count to 1"
            )
        if self.runtime.lag and not self.learners.count:
            raise ValueError(
                "runtime.lag needs engines and learner ranks: in one process a rollout and an update cannot overlap; "
                "set it to 0, or engines.count and learners.count to 1"
            )
        if self.engines.tensor_parallel > 1 and (not self.engines.count or self.engines.type == "packed"):
            raise ValueError("engines.tensor_parallel needs vLLM engines; set it to 1, or engines.count to 1")
        if self.runtime.address is not None and not self.engines.count:
            raise ValueError("runtime.address needs engines to place in the cluster; set engines.count to 1")
        if self.engines.count and ":" in self.device:
            raise ValueError(
                f"device {self.device!r} names one GPU, but engines and ranks are each given their own; take cuda"
            )
        if self.learners.count > self.algo.batch_size:
            raise ValueError(
                f"learners.count ({self.learners.count}) exceeds algo.batch_size ({self.algo.batch_size}): "
                "a rank would have nothing to learn from"
            )
        if self.learners.zero_stage == 3 and self.learners.count and self.model.lora.merged:
            raise ValueError("learners.zero_stage 3 and model.lora.merged exclude each other; set merged to false")
        return self

    def to_yaml(self) -> str:
        """All values, resolved, as YAML that `load` reads back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file (none: the quickstart) and apply overrides such as `algo.gamma=0.9`.

    Raises:
        ConfigError: the file cannot be read, an unknown key (names the nearest), a value of the wrong type or range.
    """
    source = quickstart_path() if path is None else path
    try:
        values = yaml.safe_load(source.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {source}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"expected {source} to hold a mapping of settings, got {type(values).__name__}")
    for override in overrides:
        _apply(values, override)
    return parse(values)


def parse(values: Mapping[str, Any]) -> Config:
    """Validate plain values.

    Raises:
        ConfigError: one line for each fault, unknown keys with the nearest known one.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault) for fault in error.errors())) from error


def override(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with some values replaced.

    Raises:
        ConfigError: as for `load`.
    """
    values = config.model_dump(mode="json")
    for each in overrides:
        _apply(values, each)
    return parse(values)


def quickstart_path() -> Path:
    """The configuration that `sacglam train` uses when it is given none."""
    return Path(__file__).parent / "quickstart.yaml"


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"expected an override as key=value, e.g. algo.gamma=0.9; got {override!r}")
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {section!r} is a value, not a section")
        values = inner
    try:
        values[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {error}") from error


def _explain(fault: Any) -> str:
    path = [str(part) for part in fault["loc"]]
    where = ".".join(path)
    if fault["type"] == "extra_forbidden":
        known = list(_fields_at(path[:-1]))
        near = get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {'.'.join([*path[:-1], near[0]])!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {where!r}; {hint}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {message} (got {fault['input']!r})" if where else message


def _fields_at(path: Sequence[str]) -> Mapping[str, Any]:
    section: Any = Config
    for part in path:
        section = section.model_fields[part].annotation
    fields: Mapping[str, Any] = section.model_fields
    return fields
