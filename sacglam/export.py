"""The learned agent as files that other tools read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sacglam.build import Brain, critic_settings
from sacglam.config import Config
from sacglam.models.files import exported_files
from sacglam.runs.directory import explained


def export(brain: Brain, config: Config, folder: Path) -> None:
    """Write the actor as a peft adapter (for peft, transformers and vLLM), and the critic beside it as safetensors.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    write_agent(exported_files(brain.lm, brain.model, critic_settings(config)), folder)


def write_agent(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files, by name, into a folder that is made if it is not there.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
