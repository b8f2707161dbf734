"""Turns YAML and dotted overrides into a configuration, with errors that name the nearest key."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sacglam import files
from sacglam.config.algorithm import AlgoConfig
from sacglam.config.experiment import Config
from sacglam.config.kinds import GoalsConfig, Hindsight, PartnerConfig
from sacglam.config.section import Named
from sacglam.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "configs"
QUICKSTART = FOLDER / "quickstart.yaml"
LARGEST = files.MIB
"""Maximum size of a configuration in bytes; parsing that much takes seconds."""
_NAMED: tuple[type[Named], ...] = (AlgoConfig, GoalsConfig, Hindsight, PartnerConfig)
_KINDS: Mapping[str, type[Named]] = {f"{section.key}.type": section for section in _NAMED}
_RENAMED = {"replay.sampling": "replay.hindsight.type", "replay.hindsight_ratio": "replay.hindsight.share"}
_MOST_QUOTED = 200
_MOST_BITS = 1000  # Python prints no integer of more than 4,300 digits
_MOST_VALUES, _DEEPEST = 100_000, 40  # per file: nested aliases multiply, and deep values overflow the stack later


class StrictLoader(yaml.SafeLoader):
    """Plain scalars of YAML 1.2, and unique keys. YAML 1.1 would read `yes` as true, `12:30` as 750 and `010` as 8."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; raise a `YAMLError` if a key appears twice."""
        found = super().construct_mapping(node, deep=True)
        if len(found) != len(node.value):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} appears twice", node.start_mark)
        return found


StrictLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def names() -> list[str]:
    """The configurations that come with sacglam: `quickstart`, `paper/sac_her_flan_t5_base`, ..."""
    return sorted(file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.yaml"))


def located(given: str | Path, folder: Path = Path()) -> Path:
    """The file at a path relative to `folder`; if there is none, the configuration of that name."""
    file = folder / given
    return FOLDER / f"{given}.yaml" if Path(given).as_posix() in names() and not file.is_file() else file


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration (none: the quickstart) and apply overrides such as `algo.gamma=0.9`.

    `path` may be the name of one that comes with sacglam, such as `paper/sac_her_flan_t5_base`. A file's `base`, a name
    or a path relative to the file, sets everything that the file does not. Overrides act like a file based on it.

    Raises:
        ConfigError: an unreadable file, an unknown key, or a value of the wrong type or out of range.
    """
    return parse(_merged(_with_base(QUICKSTART if path is None else located(path), set()), _nested(overrides)))


def _with_base(source: Path, above: set[Path]) -> dict[str, Any]:
    """The settings of a file and its base; `above` are the files that build on it."""
    try:
        values = values_in(files.read(source, LARGEST).decode(), str(source))
    except OSError as error:
        hint = "" if source.exists() else _known(str(source))
        raise ConfigError(f"cannot read the configuration {source}: {error.strerror}{hint}") from error
    except ValueError as error:  # a NUL in the name, or bytes that are not UTF-8
        raise ConfigError(f"cannot read the configuration {source}: {error}") from error
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or source.resolve() in above:
        problem = "which is its own base" if isinstance(base, str) else "expected the path or name of a configuration"
        raise ConfigError(f"{source} has the base {base!r}, {problem}")
    return _merged(_with_base(located(base, source.parent), above | {source.resolve()}), values)


def _known(name: str) -> str:
    """A hint for a path that does not exist: the nearest name of a configuration, or all names."""
    known = [*names(), *map(str, Path(name).parent.glob("*.yaml"))]
    near = [f"{name}.yaml"] if Path(f"{name}.yaml").is_file() else get_close_matches(name, known, n=1)
    others = "" if name.endswith((".yaml", ".yml")) else f". Expected a path, or one of {', '.join(names())}"
    return f". Did you mean {near[0]!r}?" if near else others


def _merged(base: dict[str, Any], values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`base` overridden by `values`. A new environment keeps only the number of copies and workers, and a section that
    changes its type only the settings of the nearest common base class.
    """
    merged = {**base, **values}
    for key, value in values.items():
        below, section = base.get(key), _KINDS.get(f"{prefix}{key}.type")
        if section and isinstance(below, str):
            below = {"type": below}
        if isinstance(below, dict) and isinstance(value, dict):
            if f"{prefix}{key}" == "env" and value.get("name", below.get("name")) != below.get("name"):
                below = {kept: below[kept] for kept in ("copies", "workers") if kept in below}
            merged[key] = _merged(_kept(section, below, value) if section else below, value, f"{prefix}{key}.")
    return merged


def _kept(section: type[Named], below: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a section keeps of `below` if `values` name another kind: all, if that is a subclass of the old one."""
    kind = _kind(section, below)
    if values.get("type", kind) == kind:
        return below
    old, new = section.kind(kind), section.kind(values["type"])
    shared: Any = next(each for each in new.__mro__ if issubclass(old, each))
    if shared is old:
        return below
    return {} if shared is section else {key: below[key] for key in below if key in shared.model_fields}


def _kind(section: type[Named], values: Mapping[str, Any]) -> Any:
    return values.get("type", next(iter(section.shipped)))


def _parse_yaml(text: str, source: str) -> Any:
    try:
        found = yaml.load(text, StrictLoader)
        if not _small(found):
            raise ValueError(f"it holds more than {_MOST_VALUES:,} values, is nested too deeply, or has a huge number")
    except RecursionError as error:
        raise ConfigError(f"{source} is not valid YAML: it is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from error
    except (LookupError, AttributeError, TypeError) as error:  # PyYAML expects tags to fit their values
        raise ConfigError(f"{source} is not valid YAML: a tag such as !!bool does not fit its value") from error
    return found


def _small(found: Any) -> bool:
    """Whether values are few and shallow enough to print and copy; stops counting at the limit."""
    level, count = [found], 0
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict | list | tuple | set):
                inner += [*each, *each.values()] if isinstance(each, dict) else each
                if count + len(inner) > _MOST_VALUES:
                    return False
            elif isinstance(each, int) and each.bit_length() > _MOST_BITS:
                return False
        if not inner:
            return True
        level, count = inner, count + len(inner)
    return False


def parse(values: Mapping[str, Any], trusted: bool = True) -> Config:
    """Validate plain values. Unless they are `trusted`, they must not name code, such as `algo.type: module:Class`.

    Raises:
        ConfigError: one line per fault; an unknown key is shown with the nearest known one.
    """
    try:
        return Config.model_validate(values, context={"untrusted": not trusted})
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault, values) for fault in error.errors())) from error


def values_in(text: str, source: str = "it") -> dict[str, Any]:
    """The plain values in a configuration's text, which errors call `source`.

    Raises:
        ConfigError: it is not YAML, or not a mapping.
    """
    values = _parse_yaml(text, source)
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"expected {source} to hold a mapping of settings, got {type(values).__name__}")
    return values


def parse_complete(text: str, trusted: bool = True) -> Config:
    """Like `parse`, for the text that `Config.to_yaml` wrote, to its end. Older versions wrote fewer settings.

    Raises:
        ConfigError: the end is missing, or a value is invalid.
    """
    cut_off = "so it was cut off; restore it from a copy, or start again"
    if not text.endswith("\n"):  # checked before parsing, since half of a number is still a number
        raise ConfigError(f"it ends within a line, {cut_off}")
    values = values_in(text)
    config = parse(values, trusted)
    if "lag" not in values.get("runtime", {}):  # the last setting in the file
        raise ConfigError(f"it lacks runtime.lag, {cut_off}")
    if config.policy.temperature == "auto":
        raise ConfigError("policy.temperature is auto, but a number is recorded; restore it from a copy")
    return config


def override(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with some values replaced.

    Raises:
        ConfigError: as for `load`.
    """
    return parse(_merged(config.model_dump(mode="json"), _nested(overrides)))


def _nested(overrides: Sequence[str]) -> dict[str, Any]:
    """Overrides such as `algo.gamma=0.9` as the values of a file."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"expected an override as key=value, e.g. algo.gamma=0.9; got {_short(override)}")
        *sections, last = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"override {_short(override)}: {section!r} is a value, not a section")
        inner[last] = _parse_yaml(text, f"override {_short(override)}: the value")
    return values


def _explain(fault: Any, values: Mapping[str, Any]) -> str:
    path = [str(part) for part in fault["loc"]]
    where = ".".join(path)
    if where in _RENAMED:
        return f"{where} is {_RENAMED[where]} now"
    if fault["type"] == "extra_forbidden":
        known = list(_fields_at(path[:-1], values))
        near = get_close_matches(path[-1], known, n=1)
        section = _KINDS.get(f"{'.'.join(path[:-1])}.type")
        if section and (having := [k for k in section.shipped if path[-1] in section.kind(k).model_fields]):
            return f"{where} is a setting of {section.key}.type {' and '.join(having)}"
        if ":" in path[-1]:
            return f"unknown setting {where!r}; a colon needs a space after it, as in {{type: graph, share: 0.5}}"
        hint = f"did you mean {'.'.join([*path[:-1], near[0]])!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {where!r}; {hint}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {message} (got {_short(fault['input'])})" if where else message


def _short(value: Any) -> str:
    """A value as an error quotes it."""
    text = repr(value)
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}... ({len(text):,} characters)"


def _fields_at(place: Sequence[str], values: Any) -> Mapping[str, Any]:
    """The fields of the section at `place`; `values` select the kinds of `Named` sections."""
    section: Any = Config
    for part in place:
        section, values = section.model_fields[part].annotation, values[part]
        if issubclass(section, Named):
            section = section.kind(_kind(section, values))
    return section.model_fields
