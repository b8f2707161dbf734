"""The learned agent as files that other tools read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file

from sacglam.build import Brain
from sacglam.config import Config
from sacglam.runs.directory import explained

CRITIC_FILE = "critic.safetensors"
CRITIC_SETTINGS = "critic.json"


def export(brain: Brain, config: Config, folder: Path) -> None:
    """Write the actor as a peft adapter (for peft, transformers and vLLM), and the critic beside it as safetensors.

    `critic.json` says how the heads are built and what they read.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(brain, config, folder)


def write_agent(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of an agent, as `export` would.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)


def _write(brain: Brain, config: Config, folder: Path) -> None:
    brain.lm.save_adapter(folder)
    critic = {
        name: tensor.contiguous().cpu()
        for name, tensor in brain.model.state().items()
        if name.startswith(("heads.", "lora.critic."))
    }
    save_file(critic, folder / CRITIC_FILE)
    settings = {"hidden_size": brain.lm.hidden_size, **config.critic.model_dump(mode="json")}
    (folder / CRITIC_SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
