"""A policy and a critic on one language model: the common part of SAC's and PPO's models."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from sacglam import files, memory
from sacglam.config.sections import CriticConfig
from sacglam.errors import CheckpointError, DivergenceError, ModelError
from sacglam.models.heads import PolicyHead
from sacglam.models.packed_lm import ACTOR, CRITIC, LMOutput, PackedLM
from sacglam.models.packing import Packed, sent
from sacglam.models.tokens import QueryTokenizer
from sacglam.prompt import Prompt
from sacglam.types import LogPolicy, Query

T = TypeVar("T", bound=Tensor)
_CRITIC = ("heads.", "lora.critic.")  # prefixes of the critic's own weights
_STATES = 256  # scored in one pass
_SAME = {"base_model_name_or_path": "the base model", "r": "model.lora.rank", "lora_alpha": "model.lora.alpha"}


class AgentModel(ABC):
    """An agent's weights: the LoRA adapters of a language model, and a critic's heads on its hidden states.

    It is a scorer (`sacglam.scoring.base`) whose weights are always the current ones.
    """

    version = 0

    def __init__(self, lm: PackedLM, tokenizer: QueryTokenizer, policy: PolicyHead, critic: CriticConfig) -> None:
        """`lm` holds `adapters(critic)`."""
        self.lm = lm
        self.tokenizer = tokenizer
        self.policy = policy
        self._heads = self.make_heads(critic)
        self._head_modules: dict[str, nn.Module] = {"heads": self._heads}  # by the prefix of their names in `state()`
        self._adapters = self.adapters(critic)
        self._critic_adapter = CRITIC if critic.backbone == "separate" else ACTOR
        self._detach = critic.backbone == "frozen"
        self.critic_trains_actor = critic.backbone == "shared"
        """Whether the critic's gradients reach the actor's adapter."""

    @classmethod
    def adapters(cls, critic: CriticConfig) -> list[str]:
        """The LoRA adapters that it needs, the actor's first."""
        return [ACTOR, CRITIC] if critic.backbone == "separate" else [ACTOR]

    @abstractmethod
    def make_heads(self, critic: CriticConfig) -> nn.Module:
        """New heads, from torch's global generator; they read an `LMOutput`."""

    @property
    def module(self) -> nn.Module:
        """All weights, for sharding over ranks; it is never called as a whole."""
        return nn.ModuleList([self.lm.module, *self._head_modules.values()])

    @property
    def prompt(self) -> Prompt:
        """How states become queries."""
        return self.tokenizer.prompt

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self._heads.parameters()).device

    @abstractmethod
    def evaluate(self, packed: Packed) -> Any:
        """Policy and critic at packed states, with gradients if they are enabled."""

    def _for_critic(self, packed: Packed, actor: LMOutput) -> LMOutput:
        """What the critic's heads read; `actor` is what the policy reads."""
        critic = actor if self._critic_adapter == ACTOR else self.lm.forward(packed, self._critic_adapter)
        return critic.detached() if self._detach else critic

    def pack(self, queries: Sequence[Query]) -> Packed:
        """Queries as a tokenised batch for `evaluate`, on the model's device."""
        return self.lm.pack(self.tokenizer(queries))

    def tensor(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
        """`values` on the model's device; the host does not wait for the copy."""
        return sent(torch.tensor(values, dtype=dtype), self.device)

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32.

        Raises:
            DivergenceError: the weights produce NaN.
        """
        found = for_each(queries, _STATES, lambda some: self.policy(self.lm.forward(self.pack(some), ACTOR)))
        if any(np.isnan(log_pi).any() for log_pi in found):
            raise DivergenceError("the policy is NaN: the weights have diverged; lower the learning rates")
        return found

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's actions as a float32 array (A,); empty if the critic is a V function."""
        return [np.empty(0, dtype=np.float32) for _ in queries]

    def actor_parameters(self) -> list[nn.Parameter]:
        """The actor's LoRA weights; with a shared backbone the critic also learns through them."""
        return list(self.lm.adapter_parameters(ACTOR).values())

    def critic_parameters(self) -> list[nn.Parameter]:
        """The critic's own weights: heads and, with a separate backbone, its LoRA weights."""
        own = [] if self._critic_adapter == ACTOR else list(self.lm.adapter_parameters(CRITIC).values())
        return [*self._heads.parameters(), *own]

    def state(self) -> dict[str, Tensor]:
        """All trained weights and their targets by name, without the frozen base model."""
        return {name: parameter.detach() for name, parameter in self._named().items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state()` returned, in place.

        Raises:
            CheckpointError: it belongs to another model, adapter or critic.
        """
        check_forms(state, self.state())
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def learned(self) -> list[nn.Parameter]:
        """The parameters behind `state()`, in its order."""
        return list(self._named().values())

    def _named(self) -> dict[str, nn.Parameter]:
        adapters = {f"lora.{adapter}": self.lm.adapter_parameters(adapter) for adapter in self._adapters}
        return joined(adapters | {part: dict(each.named_parameters()) for part, each in self._head_modules.items()})

    def exported_files(self) -> dict[str, bytes]:
        """The actor as the files of a peft adapter, and the critic as safetensors next to it, by name."""
        critic = {name: each.contiguous().cpu() for name, each in self.state().items() if name.startswith(_CRITIC)}
        return {**self.lm.adapter_bytes(), "critic.safetensors": save(critic)}


def joined(parts: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """The tensors of all parts, named `PART.NAME`."""
    return {f"{part}.{name}": each for part, tensors in parts.items() for name, each in tensors.items()}


def under(part: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors named `PART.NAME`, by NAME."""
    return {name.removeprefix(f"{part}."): each for name, each in tensors.items() if name.startswith(f"{part}.")}


@torch.no_grad()
def for_each(
    queries: Sequence[Query], size: int, compute: Callable[[Sequence[Query]], Tensor]
) -> list[npt.NDArray[np.float32]]:
    """Values of each query's actions, (A,), from `compute`, which returns (B, A) for at most `size` queries."""
    found: list[npt.NDArray[np.float32]] = []
    for start in range(0, len(queries), size):
        some = queries[start : start + size]
        rows = compute(some).float().cpu().numpy()
        found += [row[: len(query.actions)] for row, query in zip(rows, some, strict=True)]
    return found


def check_forms(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse (`CheckpointError`) tensors that differ from our `own` in name, shape or type."""
    got, expected = ({name: (*t.shape, t.dtype) for name, t in tensors.items()} for tensors in (found, own))
    odd = sorted(name for name in got.keys() | expected.keys() if got.get(name) != expected.get(name))
    if odd:
        shown = "; ".join(f"{name}: expected {expected.get(name)}, got {got.get(name)}" for name in odd[:3])
        raise CheckpointError(
            f"{len(odd)} tensors do not fit this model, adapter or critic, including {shown}; load them with the "
            "settings of model, algo.type and critic that they were saved with"
        )


@torch.no_grad()
def load_exported(folder: Path, model: AgentModel, renamed: bool = False) -> bool:
    """Load the actor of an exported agent into `model`, and its critic if that fits, which is returned.

    The base model must have the same name unless it may have been `renamed`.

    Raises:
        ModelError: there is neither, it is damaged, or the adapter's base model, rank or alpha differs.
        CheckpointError: the adapter has other layers.
    """
    try:
        names = (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, "critic.safetensors")
        described, *weights = (files.read(folder / name, memory.total_bytes("cpu")) for name in names)
        given = files.parse_json(described, files.OBJECT)
        actor, critic = map(load, weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"expected an exported agent in {folder}: {error}. Name a finished run, or what sacglam export wrote"
        ) from error
    own = json.loads(model.lm.adapter_bytes()[CONFIG_NAME])
    for key, what in _SAME.items():
        expected, found = (Path(str(each.get(key))).name for each in (own, given))
        if expected != found and not (renamed and key == "base_model_name_or_path"):
            raise ModelError(f"the adapter does not fit: expected {what} {expected}, as this run has, got {found}")
    state, fits = model.state(), True
    actor = joined({f"lora.{ACTOR}": actor})
    check_forms(actor, {name: state[name] for name in state if name.startswith(f"lora.{ACTOR}.")})
    try:
        check_forms(critic, {name: state[name] for name in state if name.startswith(_CRITIC)})
    except CheckpointError:
        fits = False
    for name, tensor in {**actor, **(critic if fits else {})}.items():
        state[name].copy_(tensor)
    for name, tensor in state.items():  # targets start equal to the weights they follow
        tensor.copy_(state[name.replace("target_heads.", "heads.").replace("_target.", ".")])
    return fits
