"""The sections of a configuration; `experiment.py` puts them together."""

import math
import re
from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator
from typing_extensions import override

# Upper bounds far above any use turn a slip of the keyboard into a message, where it would exhaust memory.
Positive = Annotated[int, Field(gt=0, le=1_000_000_000)]
NonNegative = Annotated[int, Field(ge=0, le=1_000_000_000)]
Size = Annotated[int, Field(gt=0, le=16_384)]
# torch refuses numbers beyond float32's, such as the step of Adam, which is up to ten times the rate.
_MOST_FLOAT = 1e30
PositiveFloat = Annotated[float, Field(gt=0, le=_MOST_FLOAT)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=_MOST_FLOAT)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(max_length=10_000)]


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class EnvConfig(Section):
    """The environment and how many copies of it run in lockstep."""

    name: str = "playground"
    """A registered environment (`sacglam envs` lists them), your own factory as `package.module:attribute`, or
    `gymnasium:ID`."""
    options: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the environment, e.g. `size: full` for Playground-Text."""
    copies: Size = 32
    """Environments in lockstep; one scoring pass serves them all."""
    workers: NonNegative = 0
    """Processes that play the copies, for environments whose step takes a millisecond or more; at most one per
    copy. 0: the driver's own process."""
    repeats: bool = True
    """Whether an episode is a function of goal, seed and actions. If false, a resumed run drops open episodes."""


class LoraSettings(Section):
    """The low-rank adapter that is trained; the base model is frozen."""

    rank: Size = 16
    """Rank r of the update W + (alpha / r) B A."""
    alpha: PositiveFloat = 32.0
    """Numerator of the update's scale."""
    targets: str | list[str] = "all-linear"
    """Layers that get an adapter: names, or `all-linear` for all but the output layer."""
    layers: Size | None = None
    """Adapt only the last so many layers of a decoder-only model, where the backward pass then ends; None: all."""
    merged: bool = False
    """Compute (W + s B A) x, not W x + s B (A x): for models hardly wider than the rank, such as the built-in one."""

    @model_validator(mode="after")
    def _choosable(self) -> Self:
        if self.layers is not None and isinstance(self.targets, str) and self.targets != "all-linear":
            raise ValueError(
                f"model.lora.layers needs model.lora.targets all-linear or a list of names, not the pattern "
                f"{self.targets!r}"
            )
        return self


class ModelConfig(Section):
    """The language model that is both policy and critic."""

    name: str = "builtin"
    """`builtin` or `builtin-t5` (tiny models, included), a Hugging Face name, a local folder, or a `.gguf` file."""
    lora: LoraSettings = LoraSettings()
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base weights; log-softmax, heads and adapters are always float32."""
    quantize: Literal["none", "nf4"] = "none"
    """`nf4`: 4-bit base weights with double quantisation, computing in `dtype`. Needs bitsandbytes."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention kernel; both take the packed mask. A model that has no `sdpa` in transformers gets `eager`."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    bucket: Size = 8
    """Packed lengths are rounded up to a multiple of this; 8 suits a GPU's matrix units, 1 a CPU."""
    compile: bool = False
    """Compile each transformer layer when it first runs (`torch.compile`, for any shape). Needs a C++ compiler."""
    cache_mib: NonNegative = 0
    """MiB in which to keep what the layers below those of `lora.layers` compute, for states seen again; 0: none."""

    @model_validator(mode="after")
    def _cachable(self) -> Self:
        if self.cache_mib and self.lora.layers is None:
            raise ValueError(
                f"model.cache_mib ({self.cache_mib}) keeps what layers below the adapted ones compute, and all are "
                "adapted; set model.lora.layers, or model.cache_mib to 0"
            )
        return self

    @model_validator(mode="after")
    def _quantizable(self) -> Self:
        if self.quantize != "none" and self.lora.merged:
            raise ValueError(
                f"model.quantize {self.quantize} and model.lora.merged exclude each other: W + s B A would restore "
                "the full W in every pass; set model.lora.merged to false"
            )
        return self


class PromptConfig(Section):
    """How a state becomes the text that the model continues with an action."""

    template: Text = "Goal: {goal}\n{history}{observation}\nAction:"
    """The prompt, with `{goal}`, `{observation}`, and optionally `{actions}`, separated by commas, and `{history}`."""
    history: Annotated[int, Field(ge=0, le=1000)] = 0
    """Earlier steps of the episode in `{history}`, oldest first."""
    step: Text = "{observation}\nAction: {action}\n"
    """Each of these steps, with `{observation}` and `{action}`."""
    before_action: Text = " "
    """What precedes an action after the prompt."""
    chat: bool = False
    """Send the prompt as a user's message, in the chat template of the model's tokenizer."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        template = _fields("template", self.template, {"goal", "observation", "actions", "history"})
        step = _fields("step", self.step, {"observation", "action"})
        if hidden := sorted({"goal", "observation"} - template):
            raise ValueError(f"prompt.template lacks {{{hidden[0]}}}, which the agent would not see")
        if self.history and not ("history" in template and step):
            raise ValueError(
                f"prompt.history is {self.history}, but no earlier step would show: expected {{history}} in "
                "prompt.template, and {observation} or {action} in prompt.step"
            )
        return self


def _fields(key: str, text: str, known: set[str]) -> set[str]:
    """The fields of a template."""
    try:
        found = [field for _, *field in Formatter().parse(text) if field[0] is not None]
    except ValueError as error:
        raise ValueError(f"prompt.{key} is no template: {error}; write {{{{ and }}}} for braces") from error
    for name, spec, conversion in found:
        if name not in known or spec or conversion:
            expected = ", ".join(f"{{{field}}}" for field in sorted(known))
            raise ValueError(f"prompt.{key} has an unknown field {name!r}; expected {expected}")
    return {str(name) for name, *_ in found}


class CriticConfig(Section):
    """The Q function on the same model (paper, Section 2.2 and Appendix B)."""

    input: Literal["observation_action", "observation"] = "observation_action"
    """What the head reads: an action's last token (one Q value), or the prompt's last position (one per action)."""
    backbone: Literal["shared", "frozen", "separate"] = "shared"
    """Q gradients reach the actor's adapter (`shared`), only the head (`frozen`), or an adapter of their own."""
    num_critics: Annotated[int, Field(gt=0, le=100)] = 2
    """Independent Q functions; targets and actor use their minimum."""
    hidden: Annotated[list[Size], Field(max_length=16)] = Field(default=[1024, 1024])
    """Widths of the head's hidden layers."""
    score_weight: NonNegativeFloat = 0.0
    """Initial value, over the temperature, of a learned w in Q = MLP + w (log p(a) - its mean); 0: no such term."""
    max_actions: Size = 64
    """Outputs of the head with `input: observation`; a state with more actions is an error."""
    target_backbone: Literal["adapter", "online"] = "adapter"
    """What the target heads read: an average of the adapter, or the online one (saves one forward in four)."""


def _temperature(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int | float) and 1e-3 <= value <= 1e3):
        return value
    raise ValueError("expected a number from 0.001 to 1,000, or auto")


class PolicyConfig(Section):
    """How log-probabilities of actions become a policy."""

    length_normalised: bool = False
    """Divide an action's log-probability by its number of tokens."""
    score_eos: bool = False
    """Also score the end-of-sequence token after each action."""
    temperature: Annotated[float | Literal["auto"], BeforeValidator(_temperature)] = 1.0
    """Divides the scores before the softmax. `auto`: opens an almost deterministic start, and is 1 for any other."""


def _target_entropy(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"(\d{1,2}(\.\d{1,3})?|100)%", value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("expected a number of nats, or a percentage such as 22%")


class AlphaConfig(Section):
    """The entropy coefficient; defaults are those of the paper's SAC + HER (Table 3)."""

    init: PositiveFloat = 0.05
    """Initial value."""
    target_entropy: Annotated[float | str, BeforeValidator(_target_entropy)] = 0.01
    """Mean policy entropy at which alpha stays constant: nats, or as `22%` a share of the random policy's entropy.

    A share falls with the learning rates, if they decay."""
    lr: NonNegativeFloat = 2e-3
    """Adam's learning rate on log alpha; 0 keeps alpha fixed."""

    def target(self, random: float, decay: float = 1.0) -> float:
        """The target entropy in nats, where the random policy's is `random`; a share of that is scaled by `decay`."""
        value = self.target_entropy
        return float(value.rstrip("%")) / 100 * random * decay if isinstance(value, str) else value


_FINAL_SHARE = 0.1  # what `lr_decay` leaves at the end of the budget


class UpdateConfig(Section):
    """What the updates of SAC and PPO have in common."""

    type: Literal["sac", "ppo"]
    gamma: OpenFraction = 0.99
    """Discount per environment step."""
    batch_size: Annotated[int, Field(gt=0, le=1_000_000)] = 256
    """Steps in one gradient update; with `td_lambda` as many whole windows as it takes."""
    micro_batch_size: Positive | None = None
    """Steps in one forward and backward; gradients are accumulated over the batch.

    None: the whole batch at once; in one process, half as many whenever the GPU runs out of memory."""
    actor_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the adapters."""
    critic_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the heads of Q or V, and the critic's own adapter, if any."""
    lr_decay: bool = False
    """Decay both learning rates, and a relative target entropy, linearly to a tenth over the budget."""

    def decay(self, updates: int, total_updates: int) -> float:
        """What `lr_decay` leaves of a rate after so many of all updates: from 1 down to a tenth."""
        return 1.0 - (1.0 - _FINAL_SHARE) * min(1.0, updates / total_updates) if self.lr_decay else 1.0

    @property
    def window(self) -> int:
        """The most steps that are learnt of one row."""
        return 1

    @property
    def micro_batch_rows(self) -> int | None:
        """Rows in one forward and backward; None: all."""
        return self.micro_batch_size and max(1, self.micro_batch_size // self.window)


class SacConfig(UpdateConfig):
    """Soft actor-critic (paper, Tables 2 and 3)."""

    type: Literal["sac"] = "sac"
    n_step: Positive = 3
    """Rewards summed before bootstrapping (Eq. 3): the length of a sampled window."""
    td_lambda: Fraction | None = None
    """Learn every step of a window, towards its lambda-return; None: its first, towards its n-step return (Eq. 3)."""
    soft_target: bool = True
    """Values in the critic's target include the policy's entropy (Eq. 3). False: without it, and kept within [0, 1]."""
    self_imitation: NonNegativeFloat = 0.0
    """Weight of imitating steps whose episode, real or relabelled, returned more than their state's value."""
    relative_imitation: bool = False
    """Imitate by 1 - V / R in place of R - V: far from the goal, where both are small, as much as near it."""
    exploration: Fraction = 0.0
    """Share of the actions in training that are drawn uniformly."""
    update_interval: Positive = 32
    """Environment steps, over all copies together, between updates."""
    updates_per_interval: Positive = 2
    """Gradient updates per interval."""
    critic_weight: PositiveFloat = 1.0
    """Weight of the critic's loss relative to the actor's, in the adapter that they share."""
    max_grad_norm: PositiveFloat | None = None
    """Clip the norm of the whole gradient; None: no clipping, as in the paper."""
    tau: OpenFraction = 0.005
    """Step of the target's exponential moving average at each update."""
    warmup_updates: NonNegative = 20
    """Initial updates in which only the critic learns."""
    alpha: AlphaConfig = AlphaConfig()

    @model_validator(mode="after")
    def _imitates(self) -> Self:
        if self.relative_imitation and not self.self_imitation:
            raise ValueError(
                "algo.relative_imitation is a way of imitating, and algo.self_imitation is 0; set that to 2, say, or "
                "algo.relative_imitation to false"
            )
        return self

    @property
    @override
    def window(self) -> int:
        return 1 if self.td_lambda is None else self.n_step


class PpoConfig(UpdateConfig):
    """Proximal policy optimisation, the baseline (paper, Table 1)."""

    type: Literal["ppo"] = "ppo"
    gae_lambda: Fraction = 0.99
    """Lambda of the generalised advantage estimates."""
    update_interval: Positive = 2048
    """Environment steps, over all copies together, collected for one update."""
    epochs: Positive = 16
    """Passes over the collected steps."""
    clip: PositiveFloat = 0.2
    """The probability ratio is clipped to 1 +- this."""
    entropy_coef: NonNegativeFloat = 0.01
    """Weight of the policy's entropy in the loss."""
    value_coef: PositiveFloat = 0.5
    """Weight of the value loss."""
    normalise_advantages: bool = True
    """Scale an interval's advantages to mean 0 and standard deviation 1."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Clip the norm of the whole gradient; None: no clipping."""

    @property
    def updates_per_interval(self) -> int:
        """Gradient updates per interval."""
        return self.epochs * -(-self.update_interval // self.batch_size)


def _algorithm(values: Any) -> Any:
    """The algorithm's name in plain values or in a section; SAC by default."""
    if isinstance(values, dict):
        return values.get("type", "sac")
    return values.type if isinstance(values, SacConfig | PpoConfig) else "sac"


ALGORITHMS: Mapping[str, type[Section]] = {"sac": SacConfig, "ppo": PpoConfig}
AlgoConfig = Annotated[Annotated[SacConfig, Tag("sac")] | Annotated[PpoConfig, Tag("ppo")], Discriminator(_algorithm)]


class ReplayConfig(Section):
    """The replay buffer and hindsight relabelling; SAC only."""

    capacity: Annotated[int, Field(gt=0, le=100_000_000)] = 100_000
    """Steps kept, relabelled copies included; the oldest are overwritten."""
    min_size: Positive = 256
    """Steps needed before the first update."""
    random_steps: NonNegative = 0
    """Steps played at random before the first update, for which the model is not asked."""
    hindsight: bool = True
    """Also learn episodes towards the goals that they achieved on the way."""
    sampling: Literal["uniform", "ratio", "prior", "future", "graph"] = "ratio"
    """With a copy of an episode for each goal it achieved: `uniform` over the buffer, a fixed share of relabelled steps
    (`ratio`), or goal types as in the environment (`prior`). Without copies, so that the buffer reaches further back:
    a fixed share of the steps drawn gets a goal that its episode achieved later (`future`); or a goal that any episode
    achieved, to which a path is known, where episodes are joined at the states that they share (`graph`)."""
    hindsight_ratio: Fraction = 0.5
    """Share of relabelled steps in a batch with `sampling: ratio`, `future` or `graph`."""
    balanced: bool = False
    """With `sampling: future`, relabel as often with each type of goal, however rarely it is achieved."""
    last_steps: Positive | None = None
    """With `sampling: future`, relabel only so many steps up to the achievement; None: all on the way to it."""

    @property
    def joins(self) -> bool:
        """Whether episodes are joined to a graph."""
        return self.hindsight and self.sampling == "graph"


class EvalConfig(Section):
    """Evaluation on fresh episodes, outside the training clock."""

    episodes: Positive = 500
    """Fresh episodes before and after training; after it also on held-out goals, where the environment has some."""
    every_steps: NonNegative = 0
    """Environment steps between evaluations during training; 0: none."""
    every_episodes: Positive = 200
    """Episodes of each of these evaluations."""
    heldout: bool = False
    """In these evaluations, also play as many held-out goals, if the environment has any."""


class CheckpointConfig(Section):
    """Checkpoints for resuming."""

    every_steps: Positive = 2_000
    """Environment steps between checkpoints."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Checkpoints kept; at least two, so that a damaged one has a predecessor."""


class EnginesConfig(Section):
    """The engines that score the rollout's actions, each in its own process: vLLM or the packed forward."""

    type: Literal["auto", "vllm", "packed"] = "auto"
    """`vllm`, `packed` (our own forward pass, for any model), or `auto`: the faster one, measured as a run starts."""
    count: NonNegative = 0
    """Engines; 0: the learner's process scores, with the weights in training."""
    tensor_parallel: Positive = 1
    """GPUs per engine."""
    gpu_memory: OpenFraction = 0.85
    """Share of a GPU's memory that an engine takes (weights and prefix cache)."""
    cpu_cache_gib: PositiveFloat = 1.0
    """Prefix cache of an engine without a GPU, in GiB."""
    timeout_s: PositiveFloat = 60.0
    """Seconds without an answer after which an engine counts as hung."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds that an engine may take to start."""
    max_restarts: NonNegative = 10
    """Engine restarts allowed in one run, over all engines, before it ends."""
    parity_every: Positive = 50
    """Adapters between checks that engines and learner have the same policy; the first adapter is always checked."""
    parity_tolerance: PositiveFloat | None = None
    """Largest total variation between the policies, averaged over states; None: 1e-4 in float32, 0.15 in bfloat16."""


class LearnersConfig(Section):
    """The DeepSpeed ranks that learn."""

    count: NonNegative = 0
    """Ranks; 0: one learner in the driver's process, without DeepSpeed."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """What ranks shard (ZeRO): 0 nothing, 1 the optimizer's state, 2 also gradients, 3 also the base weights."""
    timeout_s: PositiveFloat = 1800.0
    """Seconds that an interval's updates may take before the learner counts as hung."""


class RuntimeConfig(Section):
    """Where the processes run and how they overlap."""

    lag: Annotated[int, Field(ge=0, le=1)] = 0
    """Intervals by which the engines' adapter may trail the learner; 1: the next rollout overlaps the update."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; None: start Ray on this machine if needed."""


class TrackingConfig(Section):
    """Aim, the run explorer, and the sample episodes it shows."""

    aim: bool | Literal["auto"] = "auto"
    """Mirror the run into Aim during training; `auto`: if Aim is installed."""
    repo: str | None = None
    """Folder that holds the Aim repository (`.aim`); None: the parent of the run's folder."""
    samples_every_steps: NonNegative = 1_600
    """Environment steps between lines of samples.jsonl: episodes as text, with probabilities and Q; 0: none."""
    samples_episodes: Positive = 4
    """Episodes of each line."""
