"""An adapter's weights as the files of a peft folder, in bytes, and back."""

import json
from collections.abc import Mapping

import torch
from peft import LoraConfig
from peft.utils import CONFIG_NAME as SETTINGS_FILE
from peft.utils import SAFETENSORS_WEIGHTS_NAME as WEIGHTS_FILE
from safetensors.torch import load, save
from torch import Tensor

__all__ = ["SETTINGS_FILE", "WEIGHTS_FILE", "from_bytes", "to_bytes"]


def to_bytes(settings: LoraConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, bytes]:
    """The files by name, as peft and vLLM load them; `weights` have their names there, and become `dtype`."""
    values = {**settings.to_dict(), "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}
    return {
        SETTINGS_FILE: json.dumps(plain, indent=2, sort_keys=True).encode(),
        WEIGHTS_FILE: save(_on_cpu(weights, dtype), metadata={"format": "pt"}),
    }


def from_bytes(files: Mapping[str, bytes]) -> dict[str, Tensor]:
    """The weights in what `to_bytes` gave, by name."""
    return load(files[WEIGHTS_FILE])


def _on_cpu(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies, moved in one piece, since every transfer waits for the GPU."""
    flat = torch.cat([weight.detach().flatten() for weight in weights.values()]).to("cpu", dtype)
    parts = torch.split(flat, [weight.numel() for weight in weights.values()])
    return {name: part.view(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}
