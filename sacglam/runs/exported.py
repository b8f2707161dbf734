"""An exported agent: a folder with its adapter, its critic, and all that is needed to use them elsewhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacglam import config as configuration
from sacglam import files
from sacglam.config import Config
from sacglam.config.sections import BUILT_IN
from sacglam.errors import ConfigError
from sacglam.runs.directory import RunDirectory, write_files

SETTINGS, MODEL_CARD = "agent.yaml", "README.md"
_CARD, _IN_PEFT = (Path(__file__).with_name(name) for name in ("model_card.md", "model_card_peft.md"))


def write_exported(
    folder: Path, weights: Mapping[str, bytes], config: Config, env_steps: int, summary: Mapping[str, Any]
) -> None:
    """Write an agent: its weights, given as files by name, its settings, a model card, and its run's summary, if any.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    described = {SETTINGS: config.to_yaml().encode(), MODEL_CARD: _model_card(config, env_steps, summary)}
    write_files(folder, {**weights, **described})
    if summary:
        RunDirectory(folder).write_summary({**summary, "env_steps": env_steps})


def exported_in(folder: Path) -> Path:
    """The folder of the exported agent: `folder` itself, or that of the finished run there."""
    run = RunDirectory(folder)
    return run.adapter if run.claimed else folder


def settings_of(exported: Path) -> dict[str, Any]:
    """The settings of an exported agent as plain values, unchecked; empty if earlier versions exported it.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return configuration.values_in(files.read(exported / SETTINGS, configuration.LARGEST).decode())
    except FileNotFoundError:
        return {}
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {exported / SETTINGS}: {error}") from error


def _model_card(config: Config, env_steps: int, summary: Mapping[str, Any]) -> bytes:
    success = "The run is not finished, so its success is unknown.\n"
    if after := summary.get("success_after"):
        columns = [summary["success_random"], summary["success_before"], after]
        rows = [
            [kind.replace("|", r"\|"), *(f"{each[kind]:.2f}" if kind in each else "" for each in columns)]
            for kind in after
        ]
        table = [["Goals", "Random policy", "Untrained", "Trained"], ["---"] * 4, *rows]
        success = f"Success in {summary['evaluation_episodes']} fresh episodes; the model acts greedily.\n\n"
        success += "".join(f"| {' | '.join(row)} |\n" for row in table)
    if summary.get("updates") == 0:
        success += "\nNo update was made, so this is the untrained model.\n"
    for warning in summary.get("warnings", ()):
        success += f"\nThe run warned: {warning}.\n"
    policy, base = config.policy, config.model.name
    card = _CARD.read_text("utf-8").format(
        quoted=json.dumps(base),
        base=base,
        env=config.env.name,
        algo=f"{config.algo.label}-GLAM",
        steps=env_steps,
        success=success,
        score=f"log-probability {'per token ' if policy.length_normalised else ''}after this prompt"
        + (f", divided by {policy.temperature}" if policy.temperature != 1 else ""),
        prompt=config.prompt.template,
    )
    return (card if base in BUILT_IN else card + _IN_PEFT.read_text("utf-8").format(base=base)).encode()
