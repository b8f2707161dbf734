"""What tests of whole runs share."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz, launcher

TINY = [
    "steps=640",
    "threads=1",
    "env.copies=8",
    "algo.update_interval=32",
    "algo.batch_size=16",
    "algo.updates_per_interval=1",
    "algo.warmup_updates=2",
    "critic.hidden=[16]",
    "critic.target_backbone=adapter",
    "evaluation.episodes=8",
    "tracking.to=[]",
]
"""Overrides that make the quickstart a run of a few seconds."""
T5 = "model.name=builtin-t5"
LONGEST = ("test_distributed.py", "test_learning.py")
"""The files that take longest, each by far; several workers begin with them."""

SIMPLE_PPO = Path(__file__).parents[1] / "configs" / "simple" / "ppo.yaml"
TINY_PPO = [
    *(setting for setting in TINY if setting.split(".")[0] not in ("algo", "critic", "replay")),
    "critic.hidden=[16]",
    "algo.update_interval=32",
    "algo.batch_size=16",
    "algo.epochs=2",
]
"""Overrides that make PPO's quickstart a run of a few seconds, with as many lines of metrics."""


def sacglam(*arguments: str | Path, **options: str) -> list[str]:
    """The command line that runs sacglam in a process of its own."""
    extra = [word for key, value in options.items() for word in (f"--{key}", value)]
    return [sys.executable, "-m", "sacglam", *map(str, arguments), *extra]


def tiny_train(out: Path, *overrides: str) -> list[str]:
    """The command that trains the tiny run into `out`."""
    return sacglam("train", "--out", out, *_set(*TINY, *overrides))


def tiny_ppo(out: Path, *overrides: str) -> list[str]:
    """The command that trains the tiny run of PPO into `out`."""
    return sacglam("train", SIMPLE_PPO, "--out", out, *_set(*TINY_PPO, *overrides))


def _set(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def call(command: list[str], fresh: bool = False, curves: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is text. A `fresh` one starts a new Python, as a user does.

    A training draws its curves if it is `fresh` or asked for `curves`.
    """
    if fresh:
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return launcher.run(command, env={**os.environ, launcher.CURVES: "1"} if curves else None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, metavar="N", help="Examples of each fuzzer (default: some seconds' worth).")
    parser.addoption("--fuzz-seed", type=int, default=0, metavar="SEED", help="Seed of the fuzzers (default: 0).")


def pytest_configure(config: pytest.Config) -> None:
    fuzz.EXAMPLES, fuzz.SEED = config.getoption("--fuzz"), config.getoption("--fuzz-seed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the fuzzers saw; with several workers each has its own counts, which end with it."""
    if fuzz.COUNTS:
        terminalreporter.section(f"fuzzers, seed {fuzz.SEED}")
        for outcome, count in sorted(fuzz.COUNTS.items()):
            terminalreporter.line(f"{count:6,}  {outcome}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nightly tests, and begin the long files first, while other workers still have something to do."""
    if "nightly" not in config.option.markexpr and not fuzz.EXAMPLES:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (not item.get_closest_marker("slow"), item.path.name not in LONGEST, _small(item)))


def _small(item: pytest.Item) -> bool:
    return item.path.parent.name != "models"  # whose files take up to a minute


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run. Tests read it and leave it as it is."""
    return _finished(tmp_path_factory, "tiny")


@pytest.fixture(scope="session")
def tiny_t5_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an encoder-decoder."""
    return _finished(tmp_path_factory, "tiny-t5", T5)


@pytest.fixture(params=["decoder-only", "encoder-decoder"])
def either_run(request: pytest.FixtureRequest) -> Path:
    """One of both."""
    name = "tiny_run" if request.param == "decoder-only" else "tiny_t5_run"
    run: Path = request.getfixturevalue(name)
    return run


def _finished(factory: pytest.TempPathFactory, name: str, *overrides: str) -> Path:
    """A run that the first of several workers to need it makes; each has a copy, whose folder it may lock."""
    own = factory.mktemp("runs") / name
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    made = own if alone else factory.getbasetemp().parent / name
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "adapter").exists():  # which a run writes last
            done = call(tiny_train(made, *overrides), curves=True)
            assert done.returncode == 0, done.stderr
    return made if alone else shutil.copytree(made, own)
