"""The launcher that tests start commands by: what it starts is a process as any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import launcher
from tests.conftest import sacglam
from tests.integration.processes import below, left_after

# An environment of one's own, found in the folder a command is started in, is code that runs in the command's process.
PROBE = """
import json, os, signal, sys, time
import torch

def report():
    torch.set_num_threads(2)
    torch.ones(400, 400) @ torch.ones(400, 400)  # on two threads
    json.dump({
        "argv": sys.argv, "environment": dict(os.environ), "folder": os.getcwd(), "imports from": sys.path[0],
        "main": sys.modules["__main__"].__spec__.name, "input": sys.stdin.read(),
        "threads": torch.get_num_threads(), "works in parallel": len(os.listdir("/proc/self/task")) > 1,
        "files": sorted(map(int, os.listdir("/proc/self/fd"))),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    }, sys.stdout)
    print("told", file=sys.stderr)
    sys.stdout.flush()
    os._exit(7)  # sys.exit in an environment is an error of its own

def wait():
    print("ready", flush=True)
    time.sleep(60)
"""


def command(factory: str) -> list[str]:
    return sacglam("train", "--set", f"env.name=probe:{factory}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "probe.py").write_text(PROBE)
    return tmp_path


def probed(folder: Path, fresh: bool) -> tuple[dict[str, Any], str, int]:
    """What the probe reports, what it tells, and its exit code."""
    started: Any = subprocess.Popen if fresh else launcher.start
    env = {**os.environ, "SAID": "naïve\nword"}
    (folder / "input").write_text("some input")
    with (folder / "input").open() as given, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = started(command("report"), stdin=given, stdout=out, stderr=err, env=env, cwd=folder)
        code = process.wait(timeout=120)
    return json.loads((folder / "out").read_text()), (folder / "err").read_text(), code


def test_a_command_has_its_own_input_output_environment_folder_and_exit_code(folder: Path) -> None:
    found, told, code = probed(folder, fresh=False)
    assert (code, told, found["input"]) == (7, "told\n", "some input")
    assert found["environment"]["SAID"] == "naïve\nword"
    assert found["argv"][1:] == command("report")[3:]
    assert found["folder"] == found["imports from"] == str(folder)
    assert found["threads"] == 2
    assert found["works in parallel"], "torch's second thread is there after the fork, too"
    assert found["signals"][0] == str(signal.SIG_DFL)


@pytest.mark.slow
def test_a_command_finds_all_as_if_python_had_been_started_for_it(folder: Path) -> None:
    ours, theirs = probed(folder, fresh=False), probed(folder, fresh=True)
    for name, expected in theirs[0].items():
        assert ours[0][name] == expected, name
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it_while_it_starts(number: signal.Signals, folder: Path) -> None:
    with (folder / "out").open("wb") as out:
        process = launcher.start(command("wait"), out, cwd=folder, start_new_session=True)
    wait_for(folder / "out", "ready")
    assert os.getsid(process.pid) == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    process.send_signal(number)
    assert process.wait(timeout=60) == -number
    assert not Path(f"/proc/{process.pid}").exists()
    process.kill()  # of what has ended is nothing


@pytest.mark.slow
def test_nothing_outlives_the_process_that_started_the_launcher(folder: Path) -> None:
    code = f"from tests import launcher; print(launcher.run({sacglam('envs')!r}).stdout, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=launcher.ROOT, **pipes)
    assert parent.stdout
    assert "playground" in parent.stdout.read1().decode()
    family = below(parent.pid)
    assert any("tests.launcher" in process.title for process in family)
    parent.kill()
    parent.communicate()
    assert left_after(family, 10) == []


def test_other_commands_are_refused() -> None:
    with pytest.raises(ValueError, match=r"python[0-9.]* -m, got"):
        launcher.start(["bash", "-c", "true"])


def wait_for(file: Path, text: str) -> None:
    """Until `text` is in the file."""
    deadline = time.monotonic() + 60
    while text not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
