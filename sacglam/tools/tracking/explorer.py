"""`sacglam ui`: Aim's run explorer, on this machine's loopback only, with the views that it prepares as bookmarks."""

import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sacglam.errors import TrackingError
from sacglam.tools import loopback
from sacglam.tools.tracking import aim, sidecar

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


def serve(folder: Path, port: int, ready: Callable[[str, Mapping[str, str]], None]) -> None:
    """Serve the explorer of the Aim repository in `folder` until SIGINT (Ctrl-C) or SIGTERM.

    `ready` is called once with the address and the prepared explorations' pages by name.

    Raises:
        TrackingError: Aim is not installed, there is no repository or it cannot be opened, or the port is taken.
    """
    if not sidecar.installed("aim"):
        raise TrackingError(f"the run explorer needs Aim, which is not installed; {sidecar.install('aim')}")
    if not aim.exists(folder):
        raise TrackingError(
            f"expected an Aim repository at {folder / '.aim'}, found none. Training creates one if Aim is installed; "
            f"to add a run afterwards: sacglam track RUN --repo {folder}"
        )

    def make() -> Any:
        with sidecar.explained("aim", folder):
            return aim.explorer(folder)

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
