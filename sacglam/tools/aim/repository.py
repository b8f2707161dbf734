"""Aim: the one file that knows it."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sacglam.errors import TrackingError
from sacglam.runs.sidecar import INSTALL
from sacglam.tools.aim.records import Distribution, Picture, Point, Texts


def exists(folder: Path) -> bool:
    """Whether `folder` holds a whole Aim repository; `VERSION` is what Aim writes last when it makes one."""
    return (folder / ".aim" / "VERSION").is_file()


class AimRun:
    """One run in an Aim repository, with this process as its only writer."""

    def __init__(self, folder: Path, run_hash: str | None) -> None:
        """Open the repository in `folder`, making it if need be, and in it the run `run_hash`, or a new one.

        A hash that the repository does not know gives a new run, too.

        Raises:
            TrackingError: Aim is not installed, or the repository or the run in it cannot be opened.
        """
        self._folder = folder
        with explained(folder):
            from aim import Run
            from aim.sdk.repo import Repo

            logging.getLogger("aim").setLevel(logging.ERROR)  # what matters is raised
            folder.mkdir(parents=True, exist_ok=True)
            repo = Repo.from_path(str(folder), init=not exists(folder))
            known = run_hash if run_hash and repo.run_exists(run_hash) else None
            self._run = Run(known, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)

    @property
    def hash(self) -> str:
        """The name of the run in Aim."""
        run_hash: str = self._run.hash
        return run_hash

    def describe(self, name: str, experiment: str, tag: str) -> None:
        """Name the run as the explorer lists it.

        Raises:
            TrackingError: Aim cannot write.
        """
        with explained(self._folder):
            self._run.name, self._run.experiment = name, experiment
            if tag not in self._run.tags:
                self._run.add_tag(tag)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Set run parameters, which may be nested.

        Raises:
            TrackingError: Aim cannot write.
        """
        with explained(self._folder):
            for name, value in params.items():
                self._run[name] = value

    def track(self, points: Iterable[Point]) -> None:
        """Add points; one that is there already, with its name, context and step, is replaced.

        Raises:
            TrackingError: Aim cannot write.
        """
        with explained(self._folder):
            for point in points:
                self._run.track(_as_aim(point.value), name=point.name, step=point.step, context=dict(point.context))

    def close(self) -> None:
        """Mark the run's end and free it for another writer.

        Raises:
            TrackingError: Aim cannot write.
        """
        with explained(self._folder):
            self._run.close()


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn whatever Aim raises into one error that says so.

    Aim has no base class for its errors: a lock, a full disk and a damaged file each show as another library's.
    """
    try:
        yield
    except ImportError as error:
        raise TrackingError(f"Aim is not installed here ({error}); {INSTALL}") from error
    except Exception as error:
        repo = folder / ".aim"
        half = f". It is not whole: remove {repo}, and it is made anew" if repo.exists() and not exists(folder) else ""
        raise TrackingError(
            f"Aim cannot use the repository {repo}: {type(error).__name__}: {_one_line(error)}{half}"
        ) from error


def _one_line(error: Exception) -> str:
    """What an error says first; a database's goes on with its statement."""
    return (str(error).strip().splitlines() or ["no message"])[0][:200]


def _as_aim(value: float | Distribution | Texts | Picture) -> Any:
    import aim

    match value:
        case Distribution(values):
            return aim.Distribution(list(values))
        case Texts(texts):
            return [aim.Text(text) for text in texts]
        case Picture(path):
            return aim.Image(str(path))
    return value


def explorer(folder: Path) -> Callable[..., Any]:
    """The run explorer on the repository in `folder`, as an ASGI application; starts Aim's indexing beside it.

    Raises:
        TrackingError: Aim is not installed, or the repository cannot be opened.
    """
    with explained(folder):
        from aim.cli.utils import build_db_upgrade_command
        from aim.sdk.index_manager import RepoIndexManager
        from aim.sdk.repo import Repo
        from aim.sdk.run_status_manager import RunStatusManager
        from aim.web.configs import AIM_ENV_MODE_KEY, AIM_UI_MOUNTED_REPO_PATH

        repo = Repo.from_path(str(folder))
        os.environ |= {AIM_UI_MOUNTED_REPO_PATH: repo.path, AIM_ENV_MODE_KEY: "prod"}
        subprocess.run(build_db_upgrade_command(), check=True, capture_output=True)
        from aim.web.run import app  # reads the environment

        RepoIndexManager.get_index_manager(repo).start()
        RunStatusManager(repo).start()
        application: Callable[..., Any] = app
        return application
