"""The registry, and the environment of one's own that docs/start/environments.md shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sacglam.envs import describe, make, register, registry
from sacglam.envs.bitflip import BitFlip
from sacglam.envs.playground import Playground
from sacglam.envs.registry import application
from sacglam.errors import ConfigError

DOCS = Path(__file__).parents[3] / "docs" / "start" / "environments.md"


def code_blocks() -> list[str]:
    return [block.split("```")[0] for block in DOCS.read_text().split("```python\n")[1:]]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented example, importable as `house`, and a registry to be thrown away."""
    (tmp_path / "house.py").write_text(code_blocks()[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "house", raising=False)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_the_included_environments_are_registered() -> None:
    names = ["playground", "playground_simple", "little_zoo", "bitflip", "babyai", "textworld"]
    assert [entry.name for entry in describe()] == names
    _, simple, _, bitflip, *_ = describe()
    assert (sum(simple.goals.values()), sum(simple.heldout.values())) == (182, 64)
    assert (bitflip.goals, bitflip.heldout) == ({"bitflip": 256}, {})


def test_the_documented_environment_keeps_the_contract(house: None, check_contract: Callable[..., None]) -> None:
    env = make("house:House", max_steps=5)
    for goal in env.goals("train"):
        for seed in range(20):
            check_contract(env, goal, seed, [seed, seed // 3, 1, 0, 2])
    sets = {env.reset(goal, seed).actions for goal in env.goals("train") for seed in range(20)}
    assert len(sets) == 5, "each room offers its own actions"


def test_the_documented_program_runs(house: None, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code_blocks()[1], str(DOCS), "exec"), {})
    assert "house" in [entry.name for entry in describe()]
    assert "->" in capsys.readouterr().out


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sacglam.worlds.openenv.server", raising=False)
    monkeypatch.setitem(sys.modules, "openenv", None)
    with pytest.raises(ConfigError, match=r"needs openenv.*: pip install 'sacglam\[openenv-server\]'"):
        application("playground", {})


def test_a_name_is_registered_once(house: None) -> None:
    register("playground", Playground)
    with pytest.raises(ConfigError, match="already registered"):
        register("playground", BitFlip)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("playgroud", "did you mean 'playground'"),
        ("no_such_module:Env", "cannot be imported"),
        ("time:nothing", "Check the spelling"),
        (":Env", "cannot be imported"),
        ("time:tzname", "is not a factory"),
        ("sacglam.runs.checkpoint:os.system", "reaches into os, another module; name that one"),
        ("os:path", "reaches into posixpath"),
    ],
)
def test_what_is_no_environment_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name)


def test_an_unknown_option_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(ConfigError, match=r"no option 'sizes'; did you mean 'size'\? it accepts: size, num_objects"):
        make("playground", sizes="full")


def test_a_factory_may_take_any_option(house: None) -> None:
    register("passing", lambda **options: make("bitflip", **options))
    assert len(make("passing", bits=3).goals("train")) == 8


def test_importing_is_free() -> None:
    heavy = "('torch', 'numpy', 'transformers', 'gymnasium')"
    program = f"import sys, sacglam.envs; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
