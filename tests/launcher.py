"""Starts `python -m MODULE` commands in a tenth of a second: a process with torch and its like in memory forks each.

A start of `python -m sacglam train` spends some seconds of CPU time on imports, and the tests start hundreds. So each
pytest worker keeps one server, which imports what a training needs, runs nothing of it, has one thread, and forks:

    pytest worker --(socket: arguments, environment, folder, three files)--> server
    server --fork--> watcher, one for each command: waits for it and reports its exit --fork--> the command

A command is a process of its own as any other: its process id, arguments, environment, folder, files, signals and exit
code are real, it runs its module as `python -m MODULE` does, and ends as Python ends. Three things differ:
variables that are read when torch is imported are those of the server's start, sets of strings have one order in all
commands of a server (one PYTHONHASHSEED), and `ps` shows the server's title. Tests that are about these, and one of
each kind next to them, start a new Python: `fresh=True`. And a training writes checkpoints more often than a user's,
every `CHECKPOINT_STEPS`, since those of the tests are too short for any but the last; logs as `tests.often` says; and
draws its curves only if the variable `CURVES` is set, since that takes a fifth of the time of a tiny run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[1]
# What a training, an evaluation and the like import as they go. The engines' libraries are not among them: Ray, vLLM,
# DeepSpeed and Aim start threads, and read variables that a command sets first.
MODULES = [
    "sacglam.cli",
    "sacglam.training",
    "sacglam.agent",
    "sacglam.tools.profile",
    "sacglam.runs.curves",
    "sacglam.cli.display",
    "matplotlib.backends.backend_agg",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
]
CHECKPOINT_STEPS = 160
CURVES = "SACGLAM_CURVES"
_LONGEST = 2**18
"""Bytes of a request, arguments and environment; Linux sends no longer message unasked."""


@dataclass
class Launched:
    """A command under way: what `subprocess.Popen` is to a process that Python starts."""

    args: list[str]
    pid: int
    _report: socket.socket = field(repr=False)
    returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
            said = self._report.recv(64)
            self._report.close()
            # A watcher ends without a word only if somebody killed it.
            self.returncode = os.waitstatus_to_exitcode(int(said)) if said else -signal.SIGKILL
        return self.returncode


def start(
    command: list[str],
    stdout: IO[Any] | int = subprocess.DEVNULL,
    stderr: IO[Any] | int = subprocess.DEVNULL,
    *,
    stdin: IO[Any] | int = subprocess.DEVNULL,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    start_new_session: bool = False,
) -> Launched:
    """Start `python -m MODULE ...`, where a file is an open one, `DEVNULL`, or for `stderr` also `STDOUT`."""
    if command[:2] != [sys.executable, "-m"]:
        raise ValueError(f"expected a command that begins with {sys.executable} -m, got {command}")
    request = (command[2:], dict(os.environ) if env is None else env, str(cwd or Path.cwd()), start_new_session)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, open(os.devnull, "r+b", buffering=0) as null:
        out = _number(stdout, null)
        files = [_number(stdin, null), out, out if stderr == subprocess.STDOUT else _number(stderr, null)]
        socket.send_fds(_server(), [pickle.dumps(request)], [*files, theirs.fileno()])
    said = ours.recv(64)
    if not said:
        raise RuntimeError("the launcher of tests ended; is there memory left?")
    return Launched(command, int(said), ours)


def run(
    command: list[str], timeout: float = 300, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run such a command to its end; its output is text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, out, err, env=env)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, _text(out), _text(err))


def _number(file: IO[Any] | int, null: IO[bytes]) -> int:
    if isinstance(file, int):
        return null.fileno() if file == subprocess.DEVNULL else file
    return file.fileno()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@functools.cache
def _server() -> socket.socket:
    """Where requests go; the server ends with this process, however that ends, since its socket ends then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A pool of BLAS threads, or a look at the GPU, would not live through a fork.
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.launcher", str(theirs.fileno())],
        cwd=ROOT,
        env=env,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    atexit.register(server.wait)
    atexit.register(ours.close)  # runs first
    return ours


# What follows runs in the server, its watchers and the commands.


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request until there are no more; returns only in a command's process: its module and arguments."""
    before = dict(os.environ)
    sys.modules["triton"] = None  # type: ignore[assignment]  # nothing here compiles, and frozen it complains at the end
    for name in MODULES:
        importlib.import_module(name)
    del sys.modules["triton"]
    from sacglam import training
    from sacglam.runs.curves import draw_curves
    from tests.often import log_often

    training.CHECKPOINT_STEPS = CHECKPOINT_STEPS
    training.draw_curves = lambda run: draw_curves(run) if CURVES in os.environ else None
    log_often()
    set_by_imports = dict(os.environ.items() - before.items())
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not live through a fork; which import starts one?"
    gc.collect()
    gc.freeze()  # else the first collection in each command would copy all of this
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the commands; this one ends with pytest
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers leave nothing to wait for
    while True:
        message, files, _, _ = socket.recv_fds(requests, _LONGEST, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            arguments = _watched(*pickle.loads(message), files)
            os.environ.update(set_by_imports)
            return arguments
        for file in files:
            os.close(file)


def _watched(arguments: list[str], env: dict[str, str], cwd: str, new_session: bool, files: list[int]) -> list[str]:
    """Fork once more: the parent reports process id and wait status, the child becomes the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    *standard, report = files
    if pid:
        _watch(pid, standard, report)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if new_session:
        os.setsid()
    for number, file in enumerate(standard):
        os.dup2(file, number)
    for file in {*files} - {0, 1, 2}:
        os.close(file)
    os.chdir(cwd)
    searched = [os.path.abspath(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = searched if env.get("PYTHONSAFEPATH") else [cwd, *searched]
    os.environ.clear()
    os.environ.update(env)
    return arguments


def _watch(pid: int, standard: list[int], report: int) -> NoReturn:
    for file in standard:
        os.close(file)
    with contextlib.suppress(OSError):  # nobody is left to listen
        os.write(report, str(pid).encode())
        status = os.waitpid(pid, 0)[1]
        os.write(report, str(status).encode())
    os._exit(0)


if __name__ == "__main__":
    module, *sys.argv[1:] = serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
