"""The one file that imports Aim: a run in its repository, and `sacglam ui`, its explorer with prepared views."""

import json
import logging
import os
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from sacglam.errors import TrackingError
from sacglam.runs.directory import RunDirectory, locked_folder
from sacglam.tools import loopback
from sacglam.tools.tracking import sidecar
from sacglam.tools.tracking.records import Point, algorithm, of_summary

HEADERS = {
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"
}
"""They keep Aim's pages from loading scripts and fonts from the network."""
_ANSWER_S = 30.0
_METHODS = {"area": 2, "line": 0}  # Aim's numbers for the standard deviation and the mean
_POINTS = 50  # per curve, the explorer's lowest density: the default of 500 takes several times as long with many runs

_SUCCESS = 'metric.name == "success"'
_OVERALL = f'{_SUCCESS} and metric.context.goal_type == "overall"'
_TYPES = f'{_SUCCESS} and metric.context.subset == "train"'
_SEEDS = "Mean and standard deviation over the runs of an algorithm."
_SUBSETS = "A chart each for training, evaluation and held-out goals"

EXPLORATIONS = {
    "Success over steps, by algorithm": (f"{_SUBSETS}, over environment steps. {_SEEDS}", _OVERALL, "subset", ""),
    "Success over seconds, by algorithm": (f"{_SUBSETS}, over seconds. {_SEEDS}", _OVERALL, "subset", "seconds"),
    "Success by goal type": (f"A chart for each goal type, in training. {_SEEDS}", _TYPES, "goal_type", ""),
}
"""By name: description, query, what each chart is for, and the metric on the x axis (empty: environment steps)."""

_VERSION = ".aim/VERSION"  # the last file that Aim writes for a new repository
_SUMMARY = ("finished", "seed", "threads", "device", "platform", "versions", "seconds", "success_random", "spl_random")


def _open(folder: Path, init: bool = False) -> Any:
    """Aim's repository in `folder`.

    Aim starts `python -m alembic`, in which both Python and alembic search the working directory first.
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
    """A run in Aim. A value added again with the same name, context and step replaces the earlier one."""

    def __init__(self, directory: RunDirectory, folder: Path, known: Sequence[str]) -> None:
        """The Aim run with one of the hashes `known`, or a new one if the repository in `folder` has none of them.

        The repository is created if there is none. This process must be the run's only writer.
        """
        from aim import Run

        logging.getLogger("aim").setLevel(logging.ERROR)  # what matters is raised
        busy = f"another process is creating the Aim repository at {folder}; wait for it to end"
        with locked_folder(folder, busy, ".aim-new.lock", _ANSWER_S):
            repo, config = _open(folder, init=not (folder / _VERSION).is_file()), directory.config()
        there = next((each for each in known if repo.run_exists(each)), None)
        self._run = run = Run(there, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
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


def serve(folder: Path, port: int, ready: Callable[[str, Mapping[str, str]], None]) -> None:
    """Serve the explorer of the Aim repository in `folder` until SIGINT (Ctrl-C) or SIGTERM.

    `ready` is called once with the address and the prepared explorations' pages by name.

    Raises:
        TrackingError: Aim is not installed, there is no repository or it cannot be opened, or the port is taken.
    """
    if not sidecar.installed("aim"):
        raise TrackingError(f"the run explorer needs Aim, which is not installed; {sidecar.install('aim')}")
    if not (folder / _VERSION).is_file():
        raise TrackingError(
            f"expected an Aim repository at {folder / '.aim'}, found none. Training creates one if Aim is installed; "
            f"to add a run afterwards: sacglam track RUN --repo {folder}"
        )

    def make() -> Any:
        with sidecar.explained("aim", folder):
            return _explorer(folder)

    def announce(address: str) -> None:
        with sidecar.explained("aim", folder):
            ready(address, prepare(address))

    loopback.serve(make, port, announce, HEADERS)


def prepare(address: str) -> dict[str, str]:
    """Create or update the explorations at `address` (http://host:port), and return their pages by name.

    The user's own bookmarks are left alone.

    Raises:
        OSError: the explorer does not answer.
    """
    known = {board["name"]: board["app_id"] for board in _call(address, "GET", "/dashboards/")}
    for name, (description, query, charts, over) in EXPLORATIONS.items():
        state = {
            "select": {"options": [], "query": "", "advancedMode": True, "advancedQuery": query},
            "grouping": {"color": ["run.params.algorithm"], "stroke": [], "chart": [f"context.{charts}"]},
            "chart": {
                "alignmentConfig": {"type": "custom" if over else "step", "metric": over},
                "ignoreOutliers": False,
                "densityType": _POINTS,
                "aggregationConfig": {"isApplied": True, "isEnabled": True, "methods": _METHODS},
            },
        }
        settings = {"type": "metrics", "state": state}
        if name in known:
            _call(address, "PUT", f"/apps/{known[name]}/", settings)
        else:
            known[name] = _call(address, "POST", "/apps/", settings)["id"]
            board = {"name": name, "description": description, "app_id": known[name]}
            _call(address, "POST", "/dashboards/", board)
    return {name: f"{address}/metrics/{known[name]}" for name in EXPLORATIONS}


def _call(address: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/api{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_ANSWER_S) as answer:
        return json.load(answer)


def _explorer(folder: Path) -> Callable[..., Any]:
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
