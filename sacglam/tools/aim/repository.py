"""The one file that imports Aim."""

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from PIL.Image import Image

from sacglam.errors import SacglamError, TrackingError
from sacglam.tools.tracking.records import Point
from sacglam.tools.tracking.sidecar import install


def exists(folder: Path) -> bool:
    """Whether `folder` contains a complete Aim repository; `VERSION` is the last file that Aim writes for a new one."""
    return (folder / ".aim" / "VERSION").is_file()


def _open(folder: Path, init: bool = False) -> Any:
    """Aim's repository in `folder`.

    Aim starts `python -m alembic`, where both Python and alembic put the working directory before all other modules.
    """
    from aim.sdk.repo import Repo

    place = str(folder.resolve())
    os.environ["PYTHONSAFEPATH"] = "1"
    with chdir(Path(__file__).parents[3]):  # which holds this package, and is searched anyway
        return Repo.from_path(place, init=init)


@contextmanager
def opened_run(folder: Path, run_hash: str | None) -> Iterator[Any]:
    """Aim's `Run` with this hash, or a new one if the repository in `folder` does not know it, to write to.

    The repository is created if there is none. This process must be the run's only writer.

    Raises:
        TrackingError: Aim is not installed, or the repository or the run in it cannot be opened or written to.
    """
    with _explained(folder):
        from aim import Run

        logging.getLogger("aim").setLevel(logging.ERROR)  # what matters is raised
        folder.mkdir(parents=True, exist_ok=True)
        repo = _open(folder, init=not exists(folder))
        known = run_hash if run_hash and repo.run_exists(run_hash) else None
        run = Run(known, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
        yield run
        run.close()


def track(run: Any, points: list[Point]) -> None:
    """Add points to Aim's `run`; one with the same name, context and step is replaced."""
    import aim

    for point in points:
        value: Any = point.value
        match point.value:
            case Image():
                value = aim.Image(point.value)
            case [str(), *_]:
                value = [aim.Text(text) for text in point.value]
            case [*_]:
                value = aim.Distribution(list(point.value))
        run.track(value, name=point.name, step=point.step, context=dict(point.context))


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn any error that Aim raises into a `TrackingError`.

    Aim has no base class for its errors: a lock, a full disk and a damaged file each raise another library's.
    """
    try:
        yield
    except SacglamError:
        raise
    except ImportError as error:
        raise TrackingError(f"Aim is not installed here ({error}); {install('aim')}") from error
    except Exception as error:
        repo = folder / ".aim"
        half = f". It is incomplete: remove {repo} to start over" if repo.exists() and not exists(folder) else ""
        message = (str(error).strip().splitlines() or ["no message"])[0][:200]  # a database's adds its statement
        raise TrackingError(f"Aim cannot use the repository {repo}: {type(error).__name__}: {message}{half}") from error


def explorer(folder: Path) -> Callable[..., Any]:
    """The run explorer on the repository in `folder`, as an ASGI application; also starts Aim's indexing.

    Raises:
        TrackingError: Aim is not installed, or the repository cannot be opened.
    """
    with _explained(folder):
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
