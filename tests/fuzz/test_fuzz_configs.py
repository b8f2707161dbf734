"""Configurations from the schema, with hostile values and hostile YAML: refused with a message, or they work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sacglam.config import Config, load
from sacglam.errors import SacglamError
from sacglam.training import train
from tests.fuzz import COUNTS
from tests.fuzz.common import TINY, affordable, fuzzed, quick_runs, refused, within

CANARY = Path(tempfile.gettempdir()) / "sacglam-fuzz-canary"
SCHEMA = Config.model_json_schema()
BOMB = "[&a0 [x]" + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)) + "]"
"""Aliases of aliases: 43 million values in 400 characters."""
HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]),
    st.sampled_from([0.0, -0.0, 0.5, 1e308, 5e-324, 1e-300, float("inf"), float("-inf"), float("nan"), 1e-8]),
    st.sampled_from(["", "\0", "a\0b", "/dev/null", "..", "\ud800", "\u202e", "é" * 300, "x" * 5000, "\n", "${HOME}"]),
    st.sampled_from(["auto", "none", "builtin", "builtin-t5", "no/such-model", "cuda:99", "(["]),
    st.sampled_from(["builtins:dict", "os:path", "no_module:Env", ":", "a:", ":b", "sacglam.envs.bitflip:BitFlip"]),
    st.sampled_from([[], {}, [[]], {"a": None}, [1, "x", None], {1: 2}, {None: 1}, [0] * 100, [[[[1]]]]]),
    st.integers(),
    st.floats(),
    st.text(max_size=10),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=6
    ),
)
WORDS = "yes 12:30 010 0x10 0o7 1_000 1e5 .5 +1 ~ .inf .nan 2026-01-01 2026-13-45 = << | > ' *missing @x `x` -"
LINES = """- 1
? a
[1, 2
!!python/object/apply:os.system ['touch CANARY']
!!python/name:os.system
!!binary aGVsbG8=
!!set {a, b}
!!timestamp 2026-01-01
!!int x
!!float y
!!bool z
!!omap [a: 1]
!!str 5
!custom 1
&a [*a]
{b: &b {c: *b}}
&x 1
{a: 1, a: 2}
{? [1, 2] : 3}
{1: 2}
{[a]: 1}
%YAML 9.9
# nothing
1 # one
a: b: c"""
ODD_YAML = st.sampled_from(
    [
        *WORDS.split(),
        *LINES.splitlines(),
        '"\\ud800"',
        "[" * 2000,
        "{a: " * 500,
        "[" * 60 + "]" * 60,
        "\t1",
        "---\n1\n---\n2",
        "\x07",
        "9" * 5000,
        "!!int 0x" + "f" * 5000,
        BOMB,
    ]
)


def fields(
    schema: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every section and setting, with its part of the schema."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if path:
        yield path, schema
    for kind in schema.get("oneOf", []):
        yield from fields(kind, path)
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, (*path, name))


FIELDS = list(fields(SCHEMA))


def valid(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a setting takes, at its bounds more often than not."""
    if "const" in schema or "enum" in schema:
        return st.sampled_from([schema["const"]] if "const" in schema else schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(valid, schema["anyOf"]))
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 100))
    match schema.get("type"):
        case "integer":
            return st.sampled_from([low, low + 1, low + 2, 8, 16, high]) | st.integers(low, low + 64)
        case "number":
            return st.sampled_from([low, high, 1e-3, 0.5, 1.0]) | st.floats(low, high, allow_nan=False)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(valid(schema["items"]), max_size=3)
        case "string":
            default = schema.get("default") or "auto"
            return st.sampled_from([default, default, "auto", "q_proj", "bitflip", "builtin", "cpu"])
        case "null":
            return st.none()
    return st.dictionaries(st.sampled_from(["bits", "max_steps", "text", "size", "x"]), HOSTILE, max_size=2)


@st.composite
def documents(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A configuration file that differs from a good one in a few places, and overrides."""
    values: dict[Any, Any] = yaml.safe_load(yaml.safe_dump(TINY))
    if draw(st.integers(0, 3)) == 0:  # PPO's settings are others
        values["algo"] = {"type": "ppo", "update_interval": 8, "batch_size": 4, "epochs": 1}
    for _ in range(draw(st.integers(0, 3))):
        path, schema = draw(st.sampled_from(FIELDS))
        if draw(st.integers(0, 9)) == 0:
            path = (*path[:-1], draw(st.text(max_size=8)))
        place = values
        for part in path[:-1]:
            inner = place.setdefault(part, {})
            place = inner if isinstance(inner, dict) else place
        place[path[-1]] = draw(valid(schema) if draw(st.integers(0, 4)) else HOSTILE)
    text = yaml.dump(values, Dumper=yaml.SafeDumper, allow_unicode=draw(st.booleans()), sort_keys=False)
    content = bytearray(text.encode(errors="surrogatepass"))
    match draw(st.integers(0, 14)):
        case 0:  # a byte is another, or there is one more, or the end is missing
            at = draw(st.integers(0, len(content) - 1))
            content[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
        case 1:
            del content[draw(st.integers(0, len(content))) :]
        case 2:  # a line twice, or an odd one
            lines = text.splitlines(keepends=True)
            odd = draw(
                st.sampled_from(lines)
                | ODD_YAML.map(lambda value: f"steps: {value}\n")
                | ODD_YAML.map(lambda value: f"{value}\n")
            )
            lines.insert(draw(st.integers(0, len(lines))), odd)
            content = bytearray("".join(lines).encode(errors="surrogatepass"))
    overrides = []
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1]))):
        path, _ = draw(st.sampled_from(FIELDS))
        key = draw(st.sampled_from([".".join(path), ".".join(path), "env.options.bits", draw(st.text(max_size=5))]))
        overrides.append(f"{key}={draw(ODD_YAML | st.text(max_size=6))}".replace("CANARY", str(CANARY)))
    return bytes(content).replace(b"CANARY", str(CANARY).encode()), overrides


def check(content: bytes, overrides: list[str], folder: Path, runs: bool = True) -> str:
    """Read it and run what is accepted; the outcome. Any error but a `SacglamError` is a bug."""
    file = folder / "experiment.yaml"
    file.write_bytes(content)
    try:
        config = load(file, overrides)
    except SacglamError as error:
        return refused(error)
    file.write_text(config.to_yaml())
    assert load(file) == config
    if not runs:
        return "accepted"
    try:
        smaller = affordable(config)
    except SacglamError:
        return "accepted, refused once cut down"
    if smaller is None:
        return "accepted, not run: engines or a GPU"
    try:
        summary = train(smaller, folder / "run")
    except SacglamError as error:
        return f"accepted, then {refused(error)}"
    assert summary["finished"]
    assert summary["env_steps"] >= smaller.steps
    return "run to its end"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)


@given(documents())
@fuzzed(200)
@pytest.mark.slow
def test_configurations_are_read_or_refused(case: tuple[bytes, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, within(60):
        COUNTS[f"configurations, read: {check(*case, Path(folder), runs=False)}"] += 1
    assert not CANARY.exists(), "code was executed"


@given(documents())
@fuzzed(75)
@pytest.mark.slow
def test_accepted_configurations_run(case: tuple[bytes, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, within(120):
        COUNTS[f"configurations, run: {check(*case, Path(folder))}"] += 1
    assert not CANARY.exists(), "code was executed"
