"""Every benchmark command of the docs and of the benchmarks' own docstrings runs, at sizes that take seconds."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_check import last_list
from tests import launcher

ROOT = launcher.ROOT
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
    *sorted((ROOT / "launch").glob("*.sh")),
]
TINY = {"t5-base": "t5-tiny", "smollm": "tiny", "qwen": "tiny"}
FOLDERS = ("DIR", "path/to/folder", "models/smollm2")
SHAPE = {"--model-shape": "tiny"}
STATES = {"--rows": "1", "--prompt-tokens": "24", "--actions": "3"}
ADDED = {
    "battery.table": {"--episodes": "10"},
    "builtin_model": {"--steps": "3"},
    "battery": {"--seeds": "1", "--episodes": "10", "--only": "castle house", "--out": "DIR"},
    "aim": {"--runs": "2", "--points": "5", "--metrics": "6", "--processes": "1"},
    "environment": {"--steps": "64", "--repeats": "1", "--fill": "320", "--intervals": "1"},
    "kernels": {**STATES, "--models": "tiny"},
    "on_gpu": {**STATES, "--repeats": "1"},
    "imagination": {"--steps": "64", "--episodes": "4"},
    "scored": {"--transitions": "2"},
    "scoring": {**SHAPE, **STATES, "--repeats": "1", "--no-memory": ""},
    "serving": {"--clients": "1 2", "--seconds": "0.2"},
    "update": {**SHAPE, **STATES, "--repeats": "1", "--no-memory": ""},
}
"""Options that all commands of a module get; numbers that a command already has become at most as large."""
AT_MOST = {"--layers": 2, "--lean": 1, "--cache-mib": 1, "--rank": 4, "--world": 1}
MAKE_MODELS = ("random_model", "builtin_model")
NEEDS = {
    "aim": ("aim", "websockets"),
    "ranks": ("deepspeed",),
    "env.name=textworld": ("textworld",),
}


def documented(text: str) -> list[str]:
    """The commands in a text, each from its module's name on: in code blocks, in backticks, in docstrings."""
    return [found.strip() for found in re.findall(r"python -m benchmarks\.([\w.]+[^`#\n]*)", text)]


def reduced(command: str) -> str:
    """The same command on a tiny model with small sizes, its options by name, so that equal ones run once."""
    first, *rest = command.split(" --")
    module, *positional = ("DIR" if word in FOLDERS else TINY.get(word, word) for word in first.split())
    added = dict(ADDED.get(module, {}))
    if "--model-shape tiny" in command:
        added.pop("--no-memory", None)  # peaks take a process for each variant, so not every command measures them
    options = []
    for name, *values in (f"--{each}".split() for each in rest):
        if values and values[0].isdecimal():
            most = int(added.get(name) or AT_MOST.get(name, sys.maxsize))
            values = sorted({str(min(int(value), most)) for value in values})
        options.append((name, *("DIR" if value in FOLDERS else TINY.get(value, value) for value in values)))
        added.pop(name, None)
    options = sorted([*options, *added.items()], key=lambda option: option[0])
    return " ".join([module, *positional, *(word for option in options for word in option if word)])


COMMANDS = sorted({reduced(command) for file in DOCS for command in documented(file.read_text())})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, which stands for those of the docs."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    made = launcher.run([sys.executable, "-m", "benchmarks.random_model", "tiny", str(folder)])
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command)
def test_a_documented_command_runs(command: str, model: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    module, *words = command.split()
    if module == "engine" or "vllm" in words:
        pytest.skip("starts vLLM, which takes a minute: tests/integration/test_vllm.py does so")
    if module == "battery.models" or ("--runs" in words and module == "battery"):
        pytest.skip(
            "takes the models or the runs of sixteen environments; tests/unit/benchmarks/test_battery.py does so"
        )
    for package in (package for word in (module, *words) for package in NEEDS.get(word, ())):
        pytest.importorskip(package)
    folder = tmp_path / "made" if module in MAKE_MODELS else model
    words = [str(folder) if word == "DIR" else word for word in words]
    if "RUN" in words:
        words[words.index("RUN")] = str(request.getfixturevalue("tiny_run"))
    done = launcher.run([sys.executable, "-m", f"benchmarks.{module}", *words])
    assert done.returncode == 0, done.stderr
    if module not in MAKE_MODELS:
        assert json.loads(last_list(done.stdout))
