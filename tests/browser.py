"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nobody but this machine
)


def executable() -> str | None:
    """Where Chromium is, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """The one page of a browser."""

    def __init__(self, socket: Any) -> None:
        """`socket` is a connection to the page's DevTools."""
        self._socket = socket
        self._ids = itertools.count(1)
        self.requested: list[str] = []
        """Addresses asked for so far."""
        self.complaints: list[str] = []
        """Errors on the page's console."""
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command's result."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"].get("exception", {}).get("description")))

    def evaluate(self, expression: str) -> Any:
        """A JavaScript expression's value."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def open(self, address: str) -> None:
        """Go to `address`."""
        self.call("Page.navigate", url=address)

    def wait(self, expression: str, timeout_s: float = 60.0) -> float:
        """Seconds until `expression` is true."""
        start = time.monotonic()
        while not self.evaluate(f"Boolean({expression})"):
            waited = time.monotonic() - start
            assert waited < timeout_s, f"waited {waited:.0f} s for {expression}; the page shows: {self.text()[:2000]}"
            time.sleep(0.05)
        return time.monotonic() - start

    def text(self) -> str:
        """What the page shows as text."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def screenshot(self, file: Path) -> None:
        """The page as a PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(width: int = 1500, height: int = 950) -> Iterator[Page]:
    """A page in a new browser with an empty profile; skips the test where Chromium is not installed."""
    sockets = pytest.importorskip("websockets.sync.client", reason="needs websockets, which comes with Aim")
    chromium = executable()
    if chromium is None:
        pytest.skip("needs chromium; Debian: apt-get install -y chromium, as launch/test.sh does where it can")
    profile = Path(tempfile.mkdtemp(prefix="sacglam-browser-"))
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        with sockets.connect(_page_address(profile), max_size=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        os.killpg(process.pid, 9)  # its own session, so nothing but it and its helpers
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _page_address(profile: Path) -> str:
    """Where the page's DevTools listen, once the browser has written its port down."""
    port_file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + 60
    while not (port_file.exists() and port_file.read_text().count("\n")):
        assert time.monotonic() < deadline, "chromium did not start within 60 s"
        time.sleep(0.05)
    port = int(port_file.read_text().split()[0])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/json") as answer:
        pages = [target for target in json.load(answer) if target["type"] == "page"]
    return str(pages[0]["webSocketDebuggerUrl"])
