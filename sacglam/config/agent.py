"""The world, and the agent that acts in it: language model, critic, policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sacglam.config.section import Positive, PositiveFloat, Section


class EnvConfig(Section):
    """The world and how many copies of it play in lockstep."""

    name: str = "playground"
    """A registered environment (`sacglam envs` lists them), or your own factory as `package.module:attribute`."""
    options: dict[str, Any] = Field(default={})
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
    quantize: Literal["none", "nf4"] = "none"
    """`nf4`: base weights of the layers in 4 bits, doubly quantised; products are in `dtype`. Needs bitsandbytes."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention kernel; both take the packed mask."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    bucket: Positive = 32
    """Packed lengths are rounded up to a multiple of this, so that kernels meet few shapes."""

    @model_validator(mode="after")
    def _quantizable(self) -> ModelConfig:
        if self.quantize != "none" and self.lora.merged:
            raise ValueError(
                f"model.quantize {self.quantize} and model.lora.merged exclude each other: W + s B A would bring back "
                "the whole W in every pass; set model.lora.merged to false"
            )
        return self


class CriticConfig(Section):
    """The Q function on the same model (paper, Section 2.2 and Appendix B)."""

    input: Literal["observation_action", "observation"] = "observation_action"
    """What the head reads: an action's last token (one Q value), or the prompt's last position (one per action)."""
    backbone: Literal["shared", "frozen", "separate"] = "shared"
    """Whether Q gradients reach the actor's adapter (`shared`), the head alone (`frozen`) or an own adapter."""
    num_critics: Positive = 2
    """Independent Q functions; targets and actor use their minimum."""
    hidden: list[Positive] = Field(default=[1024, 1024])
    """Widths of the head's hidden layers."""
    score_weight: Annotated[float, Field(ge=0)] = 0.0
    """First value of a learned w in Q = MLP + w (log p(a) - its mean over the actions); 0: no such term (the paper)."""
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
