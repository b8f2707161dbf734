"""An exported agent as the beginning of another."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from sacglam import files, memory
from sacglam.errors import CheckpointError, ModelError
from sacglam.models.agent_model import AgentModel, check_forms
from sacglam.models.packed_lm import ACTOR

_SAME = {"base_model_name_or_path": "the base model", "r": "model.lora.rank", "lora_alpha": "model.lora.alpha"}


@dataclass(frozen=True)
class Exported:
    """The adapter's settings and weights, and the critic's weights."""

    settings: Mapping[str, Any]
    actor: Mapping[str, Tensor]
    critic: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> "Exported":
        """What `sacglam export` wrote to `folder`, or a finished run there.

        Raises:
            ModelError: there is neither, or it is damaged.
        """
        folder = folder / "adapter" if (folder / "config.yaml").exists() else folder
        try:
            names, most = (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, "critic.safetensors"), memory.total_bytes("cpu")
            settings, actor, critic = (files.read(folder / name, most) for name in names)
            return cls(json.loads(settings), load(actor), load(critic))
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(
                f"expected an exported agent in {folder}: {error}. Name a finished run, or what sacglam export wrote"
            ) from error

    @torch.no_grad()
    def load_into(self, model: AgentModel) -> bool:
        """Give `model` this actor, and this critic if it has the same form; whether it had.

        Raises:
            ModelError: the adapter is of another base model, or has another scale.
            CheckpointError: it has other layers, or another rank.
        """
        own = json.loads(model.lm.adapter_bytes()[CONFIG_NAME])
        for key, what in _SAME.items():
            expected, found = (Path(str(each.get(key))).name for each in (own, self.settings))
            if expected != found:
                raise ModelError(f"the adapter does not fit: expected {what} {expected}, as this run has, got {found}")
        state, fits = model.state(), True
        actor = {f"lora.{ACTOR}.{name}": tensor for name, tensor in self.actor.items()}
        check_forms(actor, {name: state[name] for name in state if name.startswith(f"lora.{ACTOR}.")})
        try:
            check_forms(
                self.critic, {name: state[name] for name in state if name.startswith(("heads.", "lora.critic."))}
            )
        except CheckpointError:
            fits = False
        for name, tensor in {**actor, **(self.critic if fits else {})}.items():
            state[name].copy_(tensor)
        for name, tensor in state.items():  # targets begin where what they follow does
            tensor.copy_(state[name.replace("target_heads.", "heads.").replace("_target.", ".")])
        return fits
