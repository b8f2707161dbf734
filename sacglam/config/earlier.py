"""Converts configurations of earlier versions; no other module knows old keys."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from sacglam.errors import ConfigError

_MOVED = {"replay.sampling": "replay.hindsight.type", "replay.hindsight_ratio": "replay.hindsight.share"}
_GONE: Mapping[str, tuple[Any, str]] = {
    "checkpoint.every_steps": (2_000, "derived: a fortieth of steps, and at least 2,000"),
    "checkpoint.keep": (2, "always 2"),
    "critic.max_actions": (64, "always 64"),
    "engines.cpu_cache_gib": (1.0, "always 1.0"),
    "engines.gpu_memory": (0.85, "derived: 0.85, or 0.4 where engine and learner share a GPU"),
    "engines.max_restarts": (10, "always 10"),
    "engines.parity_every": (10, "always 10"),
    "engines.parity_tolerance": (None, "derived"),
    "engines.type": ("auto", "vLLM, and with engines.count=0 the learner scores"),
    "engines.timeout_s": (60.0, "an hour"),
    "engines.start_timeout_s": (600.0, "an hour"),
    "log_every_steps": (320, "always 320"),
    "learners.timeout_s": (1800.0, "an hour"),
    "model.attention": ("sdpa", "always sdpa"),
    "model.bucket": (None, "derived"),
    "model.lora.targets": ("all-linear", "always all-linear"),
    "model.lora.merged": (None, "derived"),
    "runtime.address": (None, "Ray's own variable RAY_ADDRESS"),
    "runtime.timeout_s": (1800.0, "an hour"),
    "replay.min_size": (256, "algo.batch_size"),
}
"""Former settings, each with the value that needs no warning, and what it is now."""


def converted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values without the keys of earlier versions; warns of each key whose value has no effect any more.

    Raises:
        ConfigError: a setting has been renamed.
    """
    kept = deepcopy(dict(values))
    for key, (usual, now) in _GONE.items():
        for value in _removed(kept, key):
            if value != usual:
                warnings.warn(f"{key} is no longer a setting: it is {now} (got {value!r})", stacklevel=2)
    for key, name in _MOVED.items():
        if _removed(kept, key):
            raise ConfigError(f"{key} is {name} now")
    if kept.get("checkpoint") == {}:  # it held only former settings
        del kept["checkpoint"]
    return kept


def _removed(values: Mapping[str, Any], key: str) -> list[Any]:
    """Remove a dotted key; return [its value], or [] if absent."""
    *sections, name = key.split(".")
    inner: Any = values
    for section in sections:
        inner = inner.get(section) if isinstance(inner, dict) else None
    return [inner.pop(name)] if isinstance(inner, dict) and name in inner else []
