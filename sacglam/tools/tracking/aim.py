"""The one file that imports Aim: a run in its repository, and its explorer."""

import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from sacglam.errors import TrackingError
from sacglam.runs.directory import RunDirectory
from sacglam.tools.tracking.records import Point, algorithm, of_summary

_SUMMARY = ("finished", "seed", "threads", "device", "platform", "versions", "seconds", "success_random", "spl_random")


def exists(folder: Path) -> bool:
    """Whether `folder` contains a complete Aim repository; `VERSION` is the last file that Aim writes for a new one."""
    return (folder / ".aim" / "VERSION").is_file()


def _open(folder: Path, init: bool = False) -> Any:
    """Aim's repository in `folder`.

    Aim starts `python -m alembic`, where both Python and alembic put the working directory before all other modules.
    """
    from aim.sdk.repo import Repo

    place, half = folder.resolve(), init and (folder / ".aim").exists()
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with chdir(Path(__file__).parents[3]):  # which holds this package, and is searched anyway
            return Repo.from_path(str(place), init=init)
    except Exception as error:
        if half:
            raise TrackingError(
                f"Aim cannot use {place / '.aim'}, which is incomplete ({error}): remove it to start over"
            ) from error
        raise


class AimRun:
    """A run in Aim. What is added again, by name, context and step, is replaced."""

    def __init__(self, directory: RunDirectory, folder: Path, known: str | None) -> None:
        """The Aim run with the hash `known`, or a new one if the repository in `folder` does not have it.

        The repository is created if there is none. This process must be the run's only writer.
        """
        from aim import Run

        logging.getLogger("aim").setLevel(logging.ERROR)  # what matters is raised
        folder.mkdir(parents=True, exist_ok=True)
        repo, config = _open(folder, init=not exists(folder)), directory.config()
        known = known if known and repo.run_exists(known) else None
        self._run = run = Run(known, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
        self.id = str(run.hash)
        run.name, run.experiment = directory.root.resolve().name, config.env.name
        run["algorithm"], run["hparams"] = algorithm(config), config.model_dump(mode="json")
        if run["algorithm"] not in run.tags:
            run.add_tag(run["algorithm"])

    def add(self, points: list[Point]) -> None:
        """Add the points of a line."""
        import aim

        for point in points:
            value: Any = point.value
            match point.value:
                case [str(), *_]:
                    value = [aim.Text(text) for text in point.value]
                case [*_]:
                    value = aim.Distribution(list(point.value))
            self._run.track(value, name=point.name, step=point.step, context=dict(point.context))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Add what is known at the end, and close the run."""
        self._run["summary"] = {name: summary[name] for name in _SUMMARY if summary.get(name) is not None}
        self.add(of_summary(summary))
        self._run.close()


def explorer(folder: Path) -> Callable[..., Any]:
    """The run explorer on the repository in `folder`, as an ASGI application; also starts Aim's indexing."""
    from aim.cli.utils import build_db_upgrade_command
    from aim.sdk.index_manager import RepoIndexManager
    from aim.sdk.run_status_manager import RunStatusManager
    from aim.web.configs import AIM_ENV_MODE_KEY, AIM_UI_MOUNTED_REPO_PATH

    repo = _open(folder)
    os.environ |= {AIM_UI_MOUNTED_REPO_PATH: repo.path, AIM_ENV_MODE_KEY: "prod"}
    subprocess.run(build_db_upgrade_command(), check=True, capture_output=True)
    from aim.web.run import app  # reads the environment

    RepoIndexManager.get_index_manager(repo).start()
    RunStatusManager(repo).start()
    return app
