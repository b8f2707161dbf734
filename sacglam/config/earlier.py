"""Configurations of earlier versions, in today's form: the only place that knows old keys."""

import warnings
from collections.abc import Mapping
from typing import Any

from sacglam.errors import ConfigError

_RELABELLING = {
    "sampling": "replay.hindsight.type",
    "hindsight_ratio": "replay.hindsight.share",
    "balanced": "replay.hindsight.balanced",
    "last_steps": "replay.hindsight.last_steps",
}
_SETTINGS = {
    "ratio": {"share": "hindsight_ratio"},
    "graph": {"share": "hindsight_ratio"},
    "future": {"share": "hindsight_ratio", "balanced": "balanced", "last_steps": "last_steps"},
}


def converted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with keys of earlier versions replaced, and a warning that names them; unchanged if there are none.

    Raises:
        ConfigError: an old key has no place among the new ones that are there, too.
    """
    replay = values.get("replay")
    if not isinstance(replay, dict):
        return dict(values)
    old = [key for key in _RELABELLING if key in replay]
    if not old and not isinstance(replay.get("hindsight"), bool):
        return dict(values)
    hindsight = replay.get("hindsight", True)
    if not isinstance(hindsight, bool):
        raise ConfigError(f"replay.{old[0]} is {_RELABELLING[old[0]]} now")
    sampling = replay.get("sampling")
    if not hindsight and sampling == "prior":
        raise ConfigError("replay.sampling prior without hindsight is gone; set replay.hindsight to none or prior")
    # Without either, the file's base says which it is.
    kind = {"type": "none"} if not hindsight else {"type": sampling} if sampling else {}
    settings = _SETTINGS.get(sampling or "ratio", {}) if hindsight else {}
    new = {**kind, **{name: replay[key] for name, key in settings.items() if key in replay}}
    warnings.warn(
        f"a configuration of an earlier version: {', '.join(f'replay.{key}' for key in [*old, 'hindsight'])} are read "
        f"as replay.hindsight: {new}",
        stacklevel=2,
    )
    kept = {key: each for key, each in replay.items() if key not in _RELABELLING}
    return {**values, "replay": {**kept, "hindsight": new}}
