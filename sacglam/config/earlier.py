"""Converts configurations of earlier versions; no other module knows old keys."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from sacglam.errors import ConfigError

_RELABELLING = {"sampling": "type", "hindsight_ratio": "share", "balanced": "balanced", "last_steps": "last_steps"}
"""Former settings of `replay`, and what they are in `replay.hindsight`."""
_TAKEN = {"ratio": ("share",), "graph": ("share",), "future": ("share", "balanced", "last_steps")}
"""Those of `replay.hindsight` that a kind of relabelling reads."""
_GONE: Mapping[str, tuple[Any, str]] = {
    "checkpoint.every_steps": (2_000, "derived: a fortieth of steps, and at least 2,000"),
    "checkpoint.keep": (2, "always 2"),
    "critic.max_actions": (64, "always 64"),
    "engines.cpu_cache_gib": (1.0, "always 1.0"),
    "engines.max_restarts": (10, "always 10"),
    "engines.parity_every": (10, "always 10"),
    "engines.parity_tolerance": (None, "derived"),
    "engines.timeout_s": (60.0, "an hour"),
    "engines.start_timeout_s": (600.0, "an hour"),
    "evaluation.heldout": (False, "after training only (sacglam evaluate RUN --goals heldout)"),
    "learners.timeout_s": (1800.0, "an hour"),
    "model.attention": ("sdpa", "always sdpa"),
    "model.bucket": (None, "derived"),
    "model.compile": (False, "always False"),
    "model.lora.merged": (None, "derived"),
    "runtime.timeout_s": (1800.0, "an hour"),
    "partner.updates": (300, "300, and at most partner.budget"),
    "replay.min_size": (256, "algo.batch_size"),
    "tracking.repo": (None, "the folder that the run is in"),
    "tracking.samples_episodes": (4, "always 4"),
    "algo.normalise_advantages": (True, "always True"),
    "algo.relative_imitation": (True, "always True"),
    "algo.soft_target": (None, "derived"),
}
"""Former settings: a value that needs no warning, and what they are now."""
_OF_KIND: Mapping[str, str] = {"partner.updates": "judge"}
"""The kind of section that had one of them, where another kind may have a setting of that name."""


def converted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with the keys of earlier versions replaced, and a warning that names them; otherwise unchanged.

    Raises:
        ConfigError: old and new keys contradict each other, or an old one has no equivalent.
    """
    kept = deepcopy(dict(values))
    for key, (usual, now) in _GONE.items():
        for value in _removed(kept, key, _OF_KIND.get(key)):
            if value != usual:
                warnings.warn(f"{key} is no longer a setting: it is {now} (got {value!r})", stacklevel=2)
    if kept.get("checkpoint") == {}:  # a section of former settings alone
        del kept["checkpoint"]
    _without_packed_engines(kept)
    _trackers(kept)
    _before_action(kept)
    _relabelling(kept)
    return kept


def _removed(values: Mapping[str, Any], key: str, kind: str | None = None) -> list[Any]:
    """Take a dotted key out of `values`, if its section is of that kind; its value, if it is there."""
    *sections, name = key.split(".")
    inner: Any = values
    for section in sections:
        inner = inner.get(section) if isinstance(inner, dict) else None
    found = isinstance(inner, dict) and name in inner and kind in (None, inner.get("type"))
    return [inner.pop(name)] if found else []


def _without_packed_engines(values: dict[str, Any]) -> None:
    """Engines are vLLM's; where they ran our own forward pass, the learner scores."""
    if "packed" in _removed(values, "engines.type"):
        _set(values, "engines", count=0, tensor_parallel=1)
        _set(values, "runtime", lag=0)
        warnings.warn("engines are vLLM's now: engines.type packed is read as engines.count 0", stacklevel=3)


def _trackers(values: dict[str, Any]) -> None:
    """`tracking.to` in place of `tracking.aim`, which was true, false or auto."""
    for aim in _removed(values, "tracking.aim"):
        given = values["tracking"].get("to", "auto")
        others = [name for name in given if name != "aim"] if isinstance(given, list) else []
        if aim != "auto":
            _set(values, "tracking", to=["aim", *others] if aim is True else others)


def _before_action(values: dict[str, Any]) -> None:
    """The end of the prompt says what precedes an action; a run that had something else cannot go on."""
    for given in _removed(values, "prompt.before_action"):
        chat, template = (values["prompt"].get(key) for key in ("chat", "template"))
        now = "" if chat or (isinstance(template, str) and template[-1:].isspace()) else " "
        if given != now:
            raise ConfigError(
                f"prompt.before_action is no longer a setting (got {given!r}): it is empty with prompt.chat and where "
                "prompt.template ends in white space, and else a space. Leave it out, and end the template "
                "accordingly; a run that was trained with another needs the sacglam that trained it"
            )


def _set(values: dict[str, Any], section: str, **settings: Any) -> None:
    inner = values.setdefault(section, {})
    if isinstance(inner, dict):  # else it is refused later
        inner.update(settings)


def _relabelling(values: dict[str, Any]) -> None:
    """`replay.hindsight` in place of the five settings that it was."""
    replay = values.get("replay")
    old = [key for key in _RELABELLING if key in replay] if isinstance(replay, dict) else []
    if not isinstance(replay, dict) or not (old or isinstance(replay.get("hindsight"), bool)):
        return
    hindsight = replay.get("hindsight", True)
    if not isinstance(hindsight, bool):
        raise ConfigError(f"replay.{old[0]} is replay.hindsight.{_RELABELLING[old[0]]} now")
    given = {_RELABELLING[key]: replay.pop(key) for key in old}
    if not hindsight and given.get("type") == "prior":
        raise ConfigError("replay.sampling prior without hindsight is gone; set replay.hindsight to none or prior")
    # Without a type, the file's base says which it is.
    read = ("type", *_TAKEN.get(str(given.get("type", "ratio")), ()))
    new = {key: given[key] for key in read if key in given} if hindsight else {"type": "none"}
    replay["hindsight"] = new
    warnings.warn(
        f"a configuration of an earlier version: {', '.join(f'replay.{key}' for key in [*old, 'hindsight'])} are read "
        f"as replay.hindsight: {new}",
        stacklevel=3,
    )
