"""What was learned, as the files that other tools read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors.torch import save

from sacglam.models.agent_model import AgentModel
from sacglam.models.base import PackedLM

CRITIC_FILE = "critic.safetensors"
CRITIC_SETTINGS = "critic.json"


def exported_files(lm: PackedLM, model: AgentModel, critic: Mapping[str, Any]) -> dict[str, bytes]:
    """The actor as the files of a peft adapter, and the critic beside it as safetensors, all by name.

    `critic.json` says how the heads are built and what they read.
    """
    tensors = {
        name: tensor.contiguous().cpu()
        for name, tensor in model.state().items()
        if name.startswith(("heads.", "lora.critic."))
    }
    settings = {"hidden_size": lm.hidden_size, **critic}
    return {
        **lm.adapter_files(),
        CRITIC_FILE: save(tensors),
        CRITIC_SETTINGS: (json.dumps(settings, indent=2) + "\n").encode(),
    }
