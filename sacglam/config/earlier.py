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
    "tracking.samples_every_steps": (1_600, "always 1,600"),
    "evaluation.heldout": (False, "after training only (sacglam evaluate RUN --goals heldout)"),
    "learners.timeout_s": (1800.0, "an hour"),
    "model.attention": ("sdpa", "always sdpa"),
    "model.bucket": (None, "derived"),
    "model.cache_mib": (0, "derived: on a CPU with model.lora.layers, at most 2 GiB and a quarter of what is free"),
    "model.compile": (False, "always False"),
    "model.lora.targets": ("all-linear", "always all-linear"),
    "model.lora.merged": (None, "derived"),
    "runtime.address": (None, "Ray's own variable RAY_ADDRESS"),
    "runtime.timeout_s": (1800.0, "an hour"),
    "partner.candidates": (256, "always 256"),
    "partner.updates": (300, "300, and at most partner.budget"),
    "prompt.before_action": (" ", "empty with prompt.chat and where prompt.template ends in white space, else a space"),
    "replay.balanced": (True, "always True"),
    "replay.demonstration_share": (0.25, "always 0.25"),
    "replay.last_steps": (None, "all of them"),
    "replay.hindsight.balanced": (True, "always True"),
    "replay.hindsight.last_steps": (None, "all of them"),
    "replay.min_size": (256, "algo.batch_size"),
    "tracking.aim": ("auto", "part of tracking.to"),
    "tracking.repo": (None, "the folder that the run is in"),
    "tracking.samples_episodes": (4, "always 4"),
    "algo.normalise_advantages": (True, "always True"),
    "algo.clip": (0.2, "always 0.2"),
    "algo.value_coef": (0.5, "always 0.5"),
    "algo.relative_imitation": (True, "always True"),
    "algo.soft_target": (None, "derived"),
}
"""Former settings, each with the value that needs no warning, and what it is now."""
_OF_KINDS: Mapping[str, tuple[str, ...]] = {
    "algo.clip": ("ppo",),
    "algo.value_coef": ("ppo",),
    "partner.candidates": ("judge", "scored"),
    "partner.updates": ("judge",),
}
"""For names that other kinds of the section may still use: the kinds whose setting is gone."""


def converted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values without the keys of earlier versions; warns of each key whose value has no effect any more.

    Raises:
        ConfigError: a setting or a partner has been renamed.
    """
    kept = deepcopy(dict(values))
    for key, (usual, now) in _GONE.items():
        for value in _removed(kept, key, _OF_KINDS.get(key, ())):
            if value != usual:
                warnings.warn(f"{key} is no longer a setting: it is {now} (got {value!r})", stacklevel=2)
    for key, name in _MOVED.items():
        if _removed(kept, key):
            raise ConfigError(f"{key} is {name} now")
    partner = kept.get("partner")
    if (partner.get("type") if isinstance(partner, dict) else partner) == "noisy":
        raise ConfigError("partner noisy is an example now: docs.examples.noisy:NoisyConfig")
    if kept.get("checkpoint") == {}:  # it held only former settings
        del kept["checkpoint"]
    return kept


def _removed(values: Mapping[str, Any], key: str, kinds: tuple[str, ...] = ()) -> list[Any]:
    """Remove a dotted key if its section is of one of `kinds` (none: any); return [its value], or [] if absent."""
    *sections, name = key.split(".")
    inner: Any = values
    for section in sections:
        inner = inner.get(section) if isinstance(inner, dict) else None
    found = isinstance(inner, dict) and name in inner and (not kinds or inner.get("type") in kinds)
    return [inner.pop(name)] if found else []
