"""The sections of a configuration, except the algorithm's; `experiment.py` puts them together."""

from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, SerializeAsAny, model_validator

from sacglam.config.kinds import Hindsight
from sacglam.config.section import (
    NonNegative,
    NonNegativeFloat,
    OpenFraction,
    Positive,
    PositiveFloat,
    Section,
    Size,
    Text,
)
from sacglam.types import GOAL_REWARDS, Rewards

BUILT_IN = ("builtin", "builtin-t5")
"""Names of the models in this package."""


class EnvConfig(Section):
    """The environment and how many copies of it run in lockstep."""

    name: str = "playground"
    """A registered environment (`sacglam envs` lists them), your own factory as `package.module:attribute`,
    `gymnasium:ID`, or `openenv:URL` for one on an OpenEnv server."""
    options: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the environment, e.g. `size: full` for Playground-Text."""
    copies: Annotated[int, Field(ge=0, le=16_384)] = 32
    """Copies of the environment that step in lockstep and share each scoring pass. 0: a power of two, at most 32, that
    leaves each copy six episodes of the longest length within the budget; replay learns only from finished episodes."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes that run the copies; worthwhile if a step takes a millisecond or more. 0: the driver's process runs
    them."""
    reward: Literal["goal", "environment"] = "goal"
    """`goal`: 1 for achieving the episode's goal, as hindsight needs it; `environment`: the environment's own rewards,
    of any size, at any step."""
    success_reward: float | None = None
    """The environment's reward for achieving a goal, if it is the same for every goal; hindsight then relabels, and
    keeps the environment's rewards of earlier steps. `null`, with `reward: environment`: hindsight does not relabel."""
    repeats: bool = True
    """Whether goal, seed and actions determine an episode. If false, a resumed run drops unfinished episodes."""

    @property
    def rewards(self) -> Rewards:
        """How steps are rewarded."""
        return GOAL_REWARDS if self.reward == "goal" else Rewards(True, self.success_reward)


class LoraSettings(Section):
    """Low-rank adapters of all linear layers except the output layer. They are trained; the base model is frozen."""

    rank: Size = 16
    """Rank r of the update W + (alpha / r) B A."""
    alpha: PositiveFloat = 32.0
    """Numerator of the update's scale, alpha / r."""
    layers: Size | None = None
    """Number of final layers to adapt in a decoder-only model; the backward pass stops below them. `null`: all."""


class ModelConfig(Section):
    """The language model that is both policy and critic."""

    name: str = "builtin"
    """`builtin` or `builtin-t5` (tiny models, included), a Hugging Face name, or a local folder."""
    lora: LoraSettings = LoraSettings()
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base weights; log-softmax, heads and adapters are always float32."""
    quantize: Literal["none", "nf4"] = "none"
    """`nf4`: 4-bit base weights with double quantisation, computing in `dtype`. Needs bitsandbytes."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    @property
    def path(self) -> Path | None:
        """The folder that `name` stands for, unless it is a built-in model or in Hugging Face's cache."""
        path = Path(self.name)
        return path if self.name not in BUILT_IN and path.is_dir() else None


class PromptConfig(Section):
    """How a state becomes the text that the model continues with an action."""

    template: Text = "Goal: {goal}\n{history}{observation}\nAction:"
    """The prompt, with `{goal}`, `{observation}` and, optionally, `{history}` and `{actions}` (separated by commas)."""
    history: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of earlier steps of the episode in `{history}`, oldest first."""
    step: Text = "{observation}\nAction: {action}\n"
    """Template of each of these steps, with `{observation}` and `{action}`."""
    chat: bool = False
    """Wrap the prompt as a user message, in the chat template of the model's tokenizer."""

    @property
    def before_action(self) -> str:
        """What precedes an action: a space, or nothing if the prompt is a chat message or ends in white space."""
        return "" if self.chat or self.template[-1:].isspace() else " "

    @model_validator(mode="after")
    def _complete(self) -> Self:
        template = _fields("template", self.template, {"goal", "observation", "actions", "history"})
        step = _fields("step", self.step, {"observation", "action"})
        if hidden := sorted({"goal", "observation"} - template):
            raise ValueError(f"prompt.template lacks {{{hidden[0]}}}, so the agent would not see it")
        if self.history and not ("history" in template and step):
            raise ValueError(
                f"prompt.history is {self.history}, but no earlier step would show: expected {{history}} in "
                "prompt.template, and {observation} or {action} in prompt.step"
            )
        return self


def _fields(key: str, text: str, known: set[str]) -> set[str]:
    try:
        found = [field for _, *field in Formatter().parse(text) if field[0] is not None]
    except ValueError as error:
        raise ValueError(f"prompt.{key} is not a template: {error}; write {{{{ and }}}} for braces") from error
    for name, spec, conversion in found:
        if name not in known or spec or conversion:
            expected = ", ".join(f"{{{field}}}" for field in sorted(known))
            raise ValueError(f"prompt.{key} has an unknown field {name!r}; expected {expected}")
    return {str(name) for name, *_ in found}


MOST_SCORE_WEIGHT = 0.2


class CriticConfig(Section):
    """The Q function on the same model (paper, Section 2.2 and Appendix B)."""

    input: Literal["observation_action", "observation"] = "observation_action"
    """`observation_action`: the head reads each action's last token and gives that action's Q. `observation`: it reads
    the prompt's last token and gives 64 values, the i-th for the i-th action."""
    backbone: Literal["shared", "frozen", "separate"] = "shared"
    """What the critic's loss trains besides its head: the actor's adapter (`shared`), nothing (`frozen`), or an adapter
    of its own (`separate`)."""
    num_critics: Annotated[int, Field(gt=0, le=100)] = 2
    """Independent Q functions; targets and actor use their minimum."""
    hidden: Annotated[list[Size], Field(max_length=16)] = Field(default=[1024, 1024])
    """Widths of the head's hidden layers."""
    score_weight: NonNegativeFloat | Literal["auto"] = 0.0
    """Adds w (log p(a) - mean log p) to Q. The learnt w starts at this value / `policy.temperature`; 0: no such term.
    `auto`: 0.2, or less if the scores of the untrained model's actions have a standard deviation of more than 0.15
    nats."""
    target_backbone: Literal["adapter", "online"] = "adapter"
    """What the target heads read: a moving average of the adapter, or the online one (saves one forward in four)."""

    @property
    def first_score_weight(self) -> float:
        """`score_weight`, or the most that `auto` may come to."""
        return MOST_SCORE_WEIGHT if self.score_weight == "auto" else self.score_weight


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
    """Divides the scores before the softmax. `auto`: high enough that the untrained policy explores; at least 1."""


class ReplayConfig(Section):
    """The replay buffer and hindsight relabelling of off-policy algorithms, and demonstrations."""

    capacity: Annotated[int, Field(gt=0, le=100_000_000)] = 100_000
    """Steps kept, including relabelled copies; the oldest are overwritten. Updates begin once it holds
    `algo.batch_size` steps."""
    random_steps: NonNegative = 0
    """Uniformly random steps before the first update, played without the model."""
    demonstrations: str | None = None
    """File of demonstrations (`sacglam collect`), kept in addition to `capacity`: at most the last 200,000 steps,
    relabelled copies included. A quarter of each batch is drawn from them, relabelled like any episode."""
    demonstration_updates: NonNegative = 0
    """Updates on the demonstrations before the first step. SAC alternates between imitating their actions by
    cross-entropy and training its critic; PPO only imitates; AWAC makes its usual updates."""
    hindsight: Annotated[SerializeAsAny[Hindsight], BeforeValidator(Hindsight.read)] = Field(
        default_factory=lambda: Hindsight.read({}, None)
    )
    """How episodes are relabelled with goals that they achieved; `none` turns relabelling off."""


class EvalConfig(Section):
    """Evaluation on fresh episodes; it does not count as training time."""

    episodes: Positive = 500
    """Fresh episodes before and after training; afterwards also on held-out goals, if the environment has any."""
    every_steps: NonNegative = 0
    """Environment steps between evaluations during training; 0: none."""
    every_episodes: Positive = 200
    """Episodes in each of these evaluations."""
    stop_at: OpenFraction | None = None
    """End the run early once success reaches this rate in one of these evaluations."""


class EnginesConfig(Section):
    """The vLLM engines that score the rollout's actions, each in its own process."""

    count: NonNegative = 0
    """Number of engines; 0: the learner scores with its current weights, and its ranks share the states."""
    tensor_parallel: Positive = 1
    """GPUs per engine."""


class LearnersConfig(Section):
    """The DeepSpeed ranks that learn."""

    count: NonNegative = 0
    """Number of ranks; 0: one learner in the driver's process, without DeepSpeed. Without engines, ranks also score."""
    zero_stage: Literal[0, 3] = 0
    """What ranks partition (ZeRO): 0 nothing, 3 the base weights, gradients and the optimizer's state."""


class RuntimeConfig(Section):
    """How the processes overlap."""

    lag: Annotated[int, Field(ge=0, le=1)] = 0
    """Intervals by which the engines' adapter may trail the learner; 1: the next rollout overlaps the update."""


class TrackingConfig(Section):
    """Trackers, which show a run while it trains."""

    to: Literal["auto"] | list[Literal["aim", "wandb", "trackio", "tensorboard"]] = "auto"
    """Trackers to copy the run into during training, such as `[aim, wandb]`; `auto`: Aim, if it is installed.
    Their files (`.aim`, `wandb/`, `tensorboard/`) are next to the run folder."""
