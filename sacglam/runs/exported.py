"""An exported agent: a folder with its adapter, its critic, and all that is needed to use them elsewhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacglam import config as configuration
from sacglam import files
from sacglam.config import Config
from sacglam.config.sections import BUILT_IN
from sacglam.errors import ConfigError, write_explained
from sacglam.runs.directory import EVALUATED, EVALUATED_RETURN, RunDirectory, Trusted, read_config, untrusted_code

SETTINGS, MODEL_CARD = "agent.yaml", "README.md"
_CARD, _IN_PEFT = (Path(__file__).with_name(name) for name in ("model_card.md", "model_card_peft.md"))


def write_exported(
    folder: Path, weights: Mapping[str, bytes], config: Config, env_steps: int, summary: Mapping[str, Any]
) -> None:
    """Write weights (files by name), settings, model card and, if there is one, the run's summary, which comes last.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    described = {SETTINGS: config.to_yaml().encode(), MODEL_CARD: _model_card(config, env_steps, summary)}
    if summary:
        described["summary.json"] = (json.dumps({**summary, "env_steps": env_steps}, indent=2) + "\n").encode()
    with write_explained(folder):
        files.make_folder(folder)
        (folder / "summary.json").unlink(missing_ok=True)  # written last: without it, files of two agents may be mixed
        for name, content in {**weights, **described}.items():
            files.write(folder / name, content)


def summary_of_best(start: Mapping[str, Any], evaluated: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The summary of the agent in `best/`, from the start of its run's summary and its evaluation during training."""
    kept = {name: value for name, value in start.items() if name.endswith(("_random", "_before"))}
    prefix = EVALUATED.removesuffix("overall")
    after = {name.removeprefix(prefix): rate for name, rate in evaluated.items() if name.startswith(prefix)}
    counts = {"updates": evaluated["updates"], "evaluation_episodes": config.evaluation.every_episodes}
    found = {"finished": False, **kept, "success_after": after, **counts}
    return found | ({"return_after": evaluated[EVALUATED_RETURN]} if EVALUATED_RETURN in evaluated else {})


def measure(summary: Mapping[str, Any]) -> float:
    """The score for comparing agents: the mean return if rewards are the environment's own, otherwise success."""
    return summary.get("return_after", summary["success_after"]["overall"])


def config_of(folder: Path, trusted: Trusted) -> Config:
    """The configuration of the run or exported agent in `folder`.

    Raises:
        SacglamError: there is neither, it does not fit this installation, or names foreign code and is not `trusted`.
    """
    if (folder / SETTINGS).is_file():
        return read_config(folder / SETTINGS, trusted)
    return RunDirectory.open(folder, trusted).config()


def exported_in(folder: Path) -> Path:
    """The folder of the exported agent: `folder` itself, or that of the finished run there."""
    run = RunDirectory(folder)
    return run.adapter if run.claimed else folder


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the exported agent in `folder`, unchecked; empty if an earlier version exported it.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = folder / SETTINGS
    try:
        return configuration.values_in(files.read(file, configuration.LARGEST).decode())
    except FileNotFoundError:
        return {}
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


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
        trust=", trusted=True" if untrusted_code(config) else "",
    )
    return (card if base in BUILT_IN else card + _IN_PEFT.read_text("utf-8").format(base=base)).encode()
