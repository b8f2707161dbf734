"""`sacglam ui`: Aim's run explorer, on this machine's loopback alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sacglam.errors import TrackingError
from sacglam.runs import sidecar
from sacglam.runs.stopping import StopSignal
from sacglam.tools.aim import repository
from sacglam.tools.aim.explorations import prepare
from sacglam.tools.aim.guard import LoopbackOnly

HOST = "127.0.0.1"
_START_S = 60.0
_POLL_S = 0.1


def serve(folder: Path, port: int, ready: Callable[[str, Mapping[str, str]], None]) -> None:
    """Serve the explorer of the Aim repository in `folder` until SIGINT (Ctrl-C) or SIGTERM.

    `ready` is given the address and the prepared explorations' pages by name, once they can be opened.

    Raises:
        TrackingError: Aim is not installed, there is no repository or it cannot be opened, or the port is taken.
    """
    check(folder, port)
    application = LoopbackOnly(repository.explorer(folder))
    import uvicorn  # comes with Aim

    server = uvicorn.Server(uvicorn.Config(application, host=HOST, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)  # the main thread is left to the signals
    with StopSignal() as stop:
        thread.start()
        try:
            _wait(lambda: server.started or stop.requested or not thread.is_alive())
            if server.started:
                _announce(f"http://{HOST}:{port}", ready)
            while thread.is_alive() and not stop.requested:
                thread.join(_POLL_S)
        finally:
            server.should_exit = True
            thread.join()
    if not server.started:
        raise TrackingError(f"Aim's server did not start on {HOST}:{port}; is the port free? Try another --port")


def _announce(address: str, ready: Callable[[str, Mapping[str, str]], None]) -> None:
    try:
        ready(address, prepare(address))
    except OSError as error:
        raise TrackingError(f"Aim's server at {address} does not answer as expected: {error}") from error


def check(folder: Path, port: int) -> None:
    """Say what keeps the explorer from starting, before anything is loaded.

    Raises:
        TrackingError: as for `serve`.
    """
    if not sidecar.installed():
        raise TrackingError(f"the run explorer is Aim's, which is not installed; {sidecar.INSTALL}")
    if not repository.exists(folder):
        raise TrackingError(
            f"expected an Aim repository at {folder / '.aim'}, found none. Trainings make one beside their folders "
            f"where Aim is installed; for a run that is not in it: sacglam aim-import RUN --repo {folder}"
        )
    if not _free(port):
        raise TrackingError(f"port {port} is taken on {HOST}; this one is free: --port {_any_free()}")


def _free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
        return True


def _any_free() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
