"""What a user names on the command line, as something to profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sacglam import config as configuration
from sacglam.runs.directory import RunDirectory
from sacglam.tools.profile.measure import Source


def sources_of(paths: Sequence[Path], overrides: Sequence[str]) -> list[Source]:
    """Configurations (files) and runs (folders), each with a label of its own.

    Raises:
        SacglamError: no configuration or run there, or an override that does not fit it.
    """
    labels: list[str] = []
    found = []
    for path in paths:
        stem = path.resolve().name if path.is_dir() else path.stem
        same = sum(label == stem or label.startswith(f"{stem} (") for label in labels)
        labels.append(f"{stem} ({same + 1})" if same else stem)
        run = RunDirectory.open(path) if path.is_dir() else None
        config = configuration.override(run.config(), overrides) if run else configuration.load(path, overrides)
        found.append(Source(labels[-1], config, run))
    return found
