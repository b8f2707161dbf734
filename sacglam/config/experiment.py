"""A whole experiment, and the constraints between its sections."""

import math
from typing import Annotated, Self

import yaml
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from sacglam.config import sections
from sacglam.config.algorithm import AlgoConfig
from sacglam.config.kinds import GoalsConfig, PartnerConfig
from sacglam.config.section import NonNegative, Section

DERIVED = {"env.copies": 0, "algo.reward_scale": None, "policy.temperature": "auto", "critic.score_weight": "auto"}
"""Settings that affect learning and that `sacglam.resolve` settles, and the values that leave them open."""


class Config(Section):
    """One experiment."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds environments, policy, replay and initial weights."""
    steps: NonNegative = 400_000
    """Budget in environment steps over all copies; 0: learn from demonstrations alone."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of a learner's process; 0: its share of the cores or, in a single process, 1 if the model's hidden
    size is at most 256, and otherwise up to 4, or OMP_NUM_THREADS if that is less."""
    init_from: str | None = None
    """Run or exported agent to start from: its adapter, and its critic if the shape fits."""
    env: sections.EnvConfig = sections.EnvConfig()
    goals: Annotated[SerializeAsAny[GoalsConfig], BeforeValidator(GoalsConfig.read)] = Field(
        default_factory=lambda: GoalsConfig.read({}, None)
    )
    """Which goals episodes pursue: `uniform` (the default), `progress`, `magellan` or your own as `module:Class`."""
    model: sections.ModelConfig = sections.ModelConfig()
    prompt: sections.PromptConfig = sections.PromptConfig()
    critic: sections.CriticConfig = sections.CriticConfig()
    policy: sections.PolicyConfig = sections.PolicyConfig()
    algo: Annotated[SerializeAsAny[AlgoConfig], BeforeValidator(AlgoConfig.read)] = Field(
        default_factory=lambda: AlgoConfig.read({}, None)
    )
    """The algorithm: `type: sac` (the default), `ppo`, `awac` or your own as `module:Class`, and its settings."""
    replay: sections.ReplayConfig = Field(default_factory=sections.ReplayConfig)
    partner: Annotated[SerializeAsAny[PartnerConfig], BeforeValidator(PartnerConfig.read)] = Field(
        default_factory=lambda: PartnerConfig.read({}, None)
    )
    """Who judges what was achieved in training: `environment` (the default), `judge`, `scored` or your own."""
    evaluation: sections.EvalConfig = sections.EvalConfig()
    tracking: sections.TrackingConfig = sections.TrackingConfig()
    engines: sections.EnginesConfig = sections.EnginesConfig()
    learners: sections.LearnersConfig = sections.LearnersConfig()
    runtime: sections.RuntimeConfig = sections.RuntimeConfig()

    @property
    def random_steps(self) -> int:
        """`replay.random_steps`; an on-policy algorithm, which learns from its own steps alone, takes none."""
        return 0 if self.algo.on_policy else self.replay.random_steps

    @property
    def in_one_process(self) -> bool:
        """Whether everything but the environments' workers runs in the driver's process."""
        return not (self.engines.count or self.learners.count)

    @property
    def sharded(self) -> bool:
        """Whether each rank holds only a part of the base weights."""
        return self.learners.count > 0 and self.learners.zero_stage == 3

    @property
    def keeps_states(self) -> bool:
        """Whether a learner caches what the layers below the adapted ones compute, for states that recur.

        On a CPU these layers cost more than the look-up; a GPU would idle as new states pass through them one by one.
        With ZeRO-3, a rank that skipped these layers would not join the others in gathering their weights.
        """
        return self.device == "cpu" and self.model.lora.layers is not None and not self.sharded

    @property
    def engine_memory(self) -> float:
        """Share of a GPU's memory that an engine takes (weights, prefix cache); less if the learner shares the GPU.

        The rest is for CUDA itself and, on a shared GPU, for the learner's updates.
        """
        return 0.85 if self.learners.count else 0.4

    @property
    def own_code(self) -> list[str]:
        """The kinds named as `module:Class`, which do not come with sacglam. Environments are not included."""
        kinds = (self.algo, self.goals, self.partner, self.replay.hindsight)
        return [kind.type for kind in kinds if ":" in kind.type]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.env.copies and self.algo.update_interval % self.env.copies:
            raise ValueError(
                f"algo.update_interval ({self.algo.update_interval}) must be a multiple of env.copies "
                f"({self.env.copies}), because the copies step together"
            )
        if self.algo.on_policy and self.partner.type != "environment":
            raise ValueError(
                f"{self.algo.label} learns from steps of unfinished episodes, but partner {self.partner.type} judges "
                "only finished ones; set partner to environment, or use an algorithm with replay"
            )
        if self.evaluation.stop_at and not self.evaluation.every_steps:
            raise ValueError("evaluation.stop_at needs evaluations during training: set evaluation.every_steps, too")
        if self.replay.demonstration_updates and not self.replay.demonstrations:
            raise ValueError("replay.demonstration_updates need a file to imitate: name it in replay.demonstrations")
        if self.replay.demonstrations and self.algo.on_policy and not self.replay.demonstration_updates:
            which = f"{self.algo.label} can only imitate replay.demonstrations"
            raise ValueError(f"{which}: set replay.demonstration_updates, too")
        if not self.steps and not self.replay.demonstration_updates:
            raise ValueError(
                "steps is 0, so nothing would be learnt: raise it, or learn from demonstrations alone "
                "(replay.demonstrations and replay.demonstration_updates)"
            )
        hindsight, imagines = self.replay.hindsight.type, self.partner.imagines
        if (imagines and hindsight == "prior") or (imagines == "relabelling" and hindsight == "none"):
            raise ValueError(
                f"replay.hindsight {hindsight} never relabels with goals that a partner imagines: choose another, or "
                "set partner.imagine to 0"
            )
        interval = self.algo.update_interval  # whole ones are random
        if self.random_steps and math.ceil(self.random_steps / interval) >= math.ceil(self.steps / interval):
            raise ValueError(
                f"replay.random_steps ({self.replay.random_steps}) leaves none of the {self.steps} steps to learn in; "
                "raise steps or lower replay.random_steps"
            )
        if self.model.quantize != "none" and self.engines.count:
            raise ValueError(
                f"model.quantize {self.model.quantize} and engines exclude each other: vLLM 0.32 has no bitsandbytes; "
                "set engines.count to 0, so that the learner scores"
            )
        return self

    @model_validator(mode="after")
    def _rewarded(self) -> Self:
        success, hindsight = self.env.success_reward, self.replay.hindsight
        if self.env.reward == "goal":
            if self.algo.reward_scale or success is not None:
                raise ValueError(
                    "algo.reward_scale and env.success_reward are for the environment's own rewards: set env.reward to "
                    "environment, or leave them out"
                )
            return self
        if success is None and not (self.algo.on_policy or hindsight.works_without_relabelling):
            raise ValueError(
                f"replay.hindsight {hindsight.type} needs the rewards that other goals would have earned: set "
                "env.success_reward, if the environment pays the same for every goal and its other rewards do not "
                "depend on the goal; or replay.hindsight to graph, which then joins episodes without relabelling "
                "them, or to none"
            )
        if self.partner.type != "environment":
            raise ValueError(
                f"partner {self.partner.type} decides what was achieved, and so what is rewarded, but so does "
                "env.reward environment; set one of them to its default"
            )
        return self

    @model_validator(mode="after")
    def _placeable(self) -> Self:
        if self.runtime.lag and self.algo.on_policy:
            raise ValueError(f"runtime.lag must be 0: {self.algo.label} learns from its current policy's steps alone")
        if self.runtime.lag and not (self.engines.count and self.learners.count):
            raise ValueError(
                "runtime.lag needs engines and learner ranks: where one process scores and learns, a rollout and an "
                "update cannot overlap; set it to 0, or engines.count and learners.count to 1"
            )
        if self.engines.tensor_parallel > 1 and not self.engines.count:
            raise ValueError("engines.tensor_parallel needs engines; set it to 1, or engines.count to 1")
        if not self.in_one_process and ":" in self.device:
            raise ValueError(
                f"device {self.device!r} names one GPU, but engines and ranks are each given their own; use cuda"
            )
        if self.learners.count > self.algo.batch_size:
            raise ValueError(
                f"learners.count ({self.learners.count}) exceeds algo.batch_size ({self.algo.batch_size}): "
                "a rank would have nothing to learn from"
            )
        if self.sharded:
            needing_whole_weights = {
                f"partner {self.partner.type}": self.partner.judge,  # each rank judges on its own
                f"goals {self.goals.type}": self.goals.competence,  # and predicts on its own
            }
            if in_use := [setting for setting, value in needing_whole_weights.items() if value]:
                raise ValueError(
                    f"learners.zero_stage 3 and {in_use[0]} exclude each other, since a rank holds only a part of the "
                    f"weights; leave out {in_use[0]}, or set learners.zero_stage to 0"
                )
        return self

    def forward_passes(self, steps: int, updates: int) -> float:
        """Minimum number of single-state forward passes F: one for each step that the model takes, plus the updates'.

        Per environment step, with 16 learnt steps each: 65 F for SAC, 35 F with windows of 8 and the online adapter,
        33 F for PPO.
        """
        return max(0, steps - self.random_steps) + updates * self.algo.forward_passes(self.critic)

    def to_yaml(self) -> str:
        """All values, resolved, as YAML that `load` reads back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
