"""Windows and macOS, as far as Linux without what they lack can stand in for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sacglam import subprocesses
from sacglam.config import override, parse
from sacglam.errors import ConfigError
from sacglam.resolve import check_system
from tests.conftest import TINY

PROGRAM = """
import importlib, os, pkgutil, signal, subprocess, sys, types

system, out, *settings = sys.argv[1:]
import peft, torch, transformers  # these and their like choose by the system when they are imported
import matplotlib.pyplot, psutil, rich.live, typer
import transformers.models.llama.modeling_llama, torch._dynamo
only_linux = [(os, name) for name in ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create")]
posix = [(signal, name) for name in ("SIGKILL", "SIGALRM", "SIGHUP")]
for name in ("fork", "killpg", "nice", "sysconf", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "setsid", "getuid"):
    posix.append((os, name))
locked = []
if system == "win32":
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    signal.SIGBREAK, signal.CTRL_BREAK_EVENT, subprocess.CREATE_NEW_PROCESS_GROUP = signal.SIGUSR1, 1, 0x200
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *given: locked.append(given))
sys.platform = system
for module, name in only_linux + (posix if system == "win32" else []):
    delattr(module, name)

import sacglam
# The packages that worlds import choose by the system as well.
for module in pkgutil.walk_packages(sacglam.__path__, "sacglam."):
    if not module.name.startswith(("sacglam.worlds", "sacglam.__main__")):
        importlib.import_module(module.name)
from sacglam.cli import app
app(["train", "--out", out, *settings], standalone_mode=False)
app(["evaluate", out, "--episodes", "2"], standalone_mode=False)
app(["doctor"], standalone_mode=False) if system == "darwin" else None
assert bool(locked) == (system == "win32")
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_run_trains_without_what_other_systems_lack(system: str, tiny_run: Path, tmp_path: Path) -> None:
    settings = [word for each in TINY for word in ("--set", each)]
    command = subprocesses.python("-c", PROGRAM, system, str(tmp_path / "run"), *settings)
    done = subprocess.run(command, env=subprocesses.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (tmp_path / "run/adapter/adapter_model.safetensors").read_bytes() == (
        tiny_run / "adapter/adapter_model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("system", "setting", "hint"),
    [
        ("darwin", "learners.count=1", "need Linux"),
        ("win32", "learners.count=1", "need Linux"),
        ("win32", "env.workers=2", "on Windows, set it to 0"),
    ],
)
def test_what_another_system_cannot_run_is_refused(
    system: str, setting: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(parse({}), [setting])
    check_system(config)
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(ConfigError, match=hint):
        check_system(config)
