"""macOS, as far as Linux without what it lacks can stand in for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sacglam import subprocesses
from sacglam.config import override, parse
from sacglam.errors import ConfigError
from sacglam.resolve import on_this_machine
from tests.conftest import TINY

PROGRAM = """
import importlib, os, pkgutil, sys

out, *settings = sys.argv[1:]
import peft, torch, transformers  # these and their like choose by the system when they are imported
import matplotlib.pyplot, psutil, rich.live, typer
import transformers.models.llama.modeling_llama, torch._dynamo
sys.platform = "darwin"
for name in ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create"):
    delattr(os, name)

import sacglam
# The packages that worlds import choose by the system as well.
for module in pkgutil.walk_packages(sacglam.__path__, "sacglam."):
    if not module.name.startswith(("sacglam.worlds", "sacglam.__main__")):
        importlib.import_module(module.name)
from sacglam.cli import app
app(["train", "--out", out, *settings], standalone_mode=False)
app(["evaluate", out, "--episodes", "2"], standalone_mode=False)
app(["doctor"], standalone_mode=False)
"""


@pytest.mark.nightly
def test_a_run_trains_without_what_macos_lacks(tiny_run: Path, tmp_path: Path) -> None:
    settings = [word for each in TINY for word in ("--set", each)]
    command = subprocesses.python("-c", PROGRAM, str(tmp_path / "run"), *settings)
    done = subprocess.run(command, env=subprocesses.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (tmp_path / "run/adapter/adapter_model.safetensors").read_bytes() == (
        tiny_run / "adapter/adapter_model.safetensors"
    ).read_bytes()


def test_what_macos_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = override(parse({}), ["learners.count=1"])
    on_this_machine(config)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="need Linux"):
        on_this_machine(config)
