"""The views that `sacglam ui` prepares in Aim's explorer, as bookmarks."""

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 30.0
_METHODS = {"area": 2, "line": 0}  # Aim's numbers for the standard deviation and the mean
_POINTS = 50  # per curve, the explorer's lowest density: the default of 500 takes several times as long with many runs


@dataclass(frozen=True)
class Exploration:
    """A bookmark of the metrics explorer; `over` is the metric on the x axis (None: environment steps)."""

    name: str
    description: str
    query: str
    charts: str
    over: str | None = None

    def state(self) -> dict[str, Any]:
        """The explorer's settings; the others keep Aim's defaults."""
        alignment = {"type": "custom", "metric": self.over} if self.over else {"type": "step", "metric": ""}
        return {
            "select": {"options": [], "query": "", "advancedMode": True, "advancedQuery": self.query},
            "grouping": {"color": ["run.params.algorithm"], "stroke": [], "chart": [self.charts]},
            "chart": {
                "alignmentConfig": alignment,
                "ignoreOutliers": False,
                "densityType": _POINTS,
                "aggregationConfig": {"isApplied": True, "isEnabled": True, "methods": _METHODS},
            },
        }


_SUCCESS = 'metric.name == "success"'
_OVERALL = f'{_SUCCESS} and metric.context.goal_type == "overall"'
_SEEDS = "Mean and standard deviation over the runs of an algorithm."

EXPLORATIONS = (
    Exploration(
        "Success over steps, by algorithm",
        f"A chart each for training, evaluation and held-out goals, over environment steps. {_SEEDS}",
        _OVERALL,
        "context.subset",
    ),
    Exploration(
        "Success over seconds, by algorithm",
        f"The same over seconds of training. {_SEEDS}",
        _OVERALL,
        "context.subset",
        over="seconds",
    ),
    Exploration(
        "Success by goal type",
        f"A chart for each goal type, in training, over environment steps. {_SEEDS}",
        f'{_SUCCESS} and metric.context.subset == "train"',
        "context.goal_type",
    ),
)


def prepare(address: str) -> dict[str, str]:
    """Create or update the explorations at `address` (http://host:port), and return their pages by name.

    The user's own bookmarks are left alone.

    Raises:
        OSError: the explorer does not answer.
    """
    known = {board["name"]: board["app_id"] for board in _call(address, "GET", "/dashboards/")}
    pages = {}
    for exploration in EXPLORATIONS:
        settings = {"type": "metrics", "state": exploration.state()}
        app = known.get(exploration.name)
        if app:
            _call(address, "PUT", f"/apps/{app}/", settings)
        else:
            app = _call(address, "POST", "/apps/", settings)["id"]
            board = {"name": exploration.name, "description": exploration.description, "app_id": app}
            _call(address, "POST", "/dashboards/", board)
        pages[exploration.name] = f"{address}/metrics/{app}"
    return pages


def _call(address: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/api{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)
