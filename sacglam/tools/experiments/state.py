"""How far a run is, and whether its folder holds the run that would be made now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from sacglam.config import Config
from sacglam.envs import make
from sacglam.errors import RunDirectoryError
from sacglam.runs.directory import RunDirectory
from sacglam.tools.experiments.plan import Run


class State(Enum):
    """How far a run is."""

    NEW = "new"
    BEGUN = "begun"
    FINISHED = "finished"


def state(run: Run) -> State:
    """How far `run` is, from its folder alone."""
    directory = RunDirectory(run.folder)
    if not directory.config_file.is_file():
        return State.NEW
    return State.FINISHED if (directory.summary() or {}).get("finished") else State.BEGUN


def check_same(runs: Sequence[Run]) -> None:
    """Refuse to mix runs of other settings with those of now.

    Raises:
        RunDirectoryError: a folder holds a run with another configuration; names the keys that differ.
    """
    faults: dict[str, list[Path]] = {}
    for run in runs:
        if state(run) is not State.NEW:
            differing = differences(RunDirectory(run.folder).config(), run.config)
            if differing:
                faults.setdefault("\n".join(f"  {line}" for line in differing), []).append(run.folder)
    if faults:
        told = "\n".join(f"{', '.join(map(str, folders))}:\n{lines}" for lines, folders in faults.items())
        raise RunDirectoryError(
            "these runs were made with other settings than this command would make them with; give the same settings "
            f"(--set, --threads), choose another --out, or remove the folders.\n{told}"
        )


def differences(there: Config, now: Config) -> list[str]:
    """The settings that differ, as `key: value there, value now`. A device left open now agrees with any."""
    before, after = dict(_flat(there.model_dump(mode="json"))), dict(_flat(_settled(now).model_dump(mode="json")))
    if now.device == "auto":
        before["device"] = "auto"
    keys = [*before, *(key for key in after if key not in before)]
    return [
        f"{key}: {before.get(key)!r} there, {after.get(key)!r} now" for key in keys if before.get(key) != after.get(key)
    ]


def _settled(config: Config) -> Config:
    """With a local model's folder as a run writes it down."""
    model = config.model
    if Path(model.name).is_dir():
        model = model.model_copy(update={"name": str(Path(model.name).resolve())})
    return config.model_copy(update={"model": model})


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def heldout_file(run: Run) -> Path:
    """Where success on held-out goals is kept once it was measured."""
    return run.folder / "heldout.json"


def needs_heldout(run: Run) -> bool:
    """Whether there are held-out goals, and the run was not measured on them yet."""
    if heldout_file(run).exists():
        return False
    env = run.config.env
    return bool(make(env.name, **env.options).goals("heldout"))


def sessions_file(run: Run) -> Path:
    """Where it is noted on which machine, and beside how many others, the run was made."""
    return run.folder / "sessions.json"


def sessions(run: Run) -> list[dict[str, Any]]:
    """What is noted there; empty for a run that was started by hand."""
    try:
        found: list[dict[str, Any]] = json.loads(sessions_file(run).read_text())
    except (OSError, ValueError):
        return []
    return found


def add_session(run: Run, session: Mapping[str, Any]) -> None:
    """Note one more, if the run has a folder by now."""
    if run.folder.is_dir():
        sessions_file(run).write_text(json.dumps([*sessions(run), session], indent=2) + "\n")
