"""Publishes an agent on the Hugging Face Hub, or another server with its interface (HF_ENDPOINT)."""

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from sacglam import files
from sacglam.agent import Agent
from sacglam.config import parse
from sacglam.errors import ModelError
from sacglam.runs.exported import MODEL_CARD

_CURVES = "curves.png"
_LARGEST_PICTURE = 64 * files.MIB
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def push(agent: Agent, curves: Path, repo: str, private: bool) -> str:
    """Upload the exported agent and the run's `curves`, without paths of this machine; return the page's address.

    The repository (USER/NAME) is created if it does not exist; its files of the same names are replaced.

    Raises:
        ModelError: the name is invalid, nobody is logged in, or the server refuses.
    """
    if not _REPO.fullmatch(repo):
        raise ModelError(f"expected the repository as USER/NAME, got {repo!r}")
    from huggingface_hub import HfApi
    from peft.utils import CONFIG_NAME

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = agent.config.model_dump(mode="json")
        shown = {**_without_paths(values), "prompt": values["prompt"]}
        replace(agent, config=parse(shown)).export(folder)
        described = _without_paths(json.loads((folder / CONFIG_NAME).read_text("utf-8")))
        (folder / CONFIG_NAME).write_text(json.dumps(described, indent=2), "utf-8")
        card = (folder / MODEL_CARD).read_text("utf-8")
        if not _REPO.fullmatch(agent.config.model.name):  # the Hub refuses cards whose base is not on it
            card = re.sub(r"^base_model: .*\n", "", card, count=1, flags=re.MULTILINE)
        if curves.is_file() and not curves.is_symlink():  # a link could publish any file
            (folder / _CURVES).write_bytes(files.read(curves, _LARGEST_PICTURE))
            card += f"\n![The run over environment steps]({_CURVES})\n"
        (folder / MODEL_CARD).write_text(card, "utf-8")
        try:
            address = HfApi().create_repo(repo, private=private, exist_ok=True)
            HfApi().upload_folder(
                repo_id=repo, folder_path=folder, commit_message=f"An agent after {agent.env_steps:,} steps"
            )
        except (OSError, ValueError) as error:  # what huggingface_hub's errors derive from
            raise ModelError(
                f"cannot push to {repo}: {str(error).rstrip('.')}. Log in with hf auth login, or set HF_TOKEN to "
                "a token that may write"
            ) from error
    return str(address)


def _without_paths(value: Any) -> Any:
    """Plain values with only the last part of absolute paths."""
    if isinstance(value, dict):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    return Path(value).name or value if isinstance(value, str) and Path(value).is_absolute() else value
