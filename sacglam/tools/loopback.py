"""Servers that listen on loopback only and refuse requests from other sites' pages."""

import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from sacglam.errors import ConfigError
from sacglam.runs.stopping import StopSignal

HOST = "127.0.0.1"
_HOSTS = ("127.0.0.1", "localhost")
_REFUSAL = b"Refused: this server answers its own pages and programs on this machine only.\n"
_START_S, _POLL_S = 60.0, 0.1

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback.

    Raises:
        ConfigError: the port is taken.
    """
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        with socket.create_server((HOST, 0)) as free:
            other = free.getsockname()[1]
        raise ConfigError(
            f"cannot listen on port {port} of {HOST} ({error}); this one is free: --port {other}"
        ) from error


def allowed(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from one of this server's pages or from no page; header names are in lower case.

    The port may differ from the server's, as behind `ssh -L`, but the request's headers must agree on it.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        if urlsplit(f"//{host}").hostname not in _HOSTS or (origin is not None and urlsplit(origin).netloc != host):
            return False
    except ValueError:  # such as an unmatched bracket
        return False
    foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    return not (foreign and path.startswith("/api"))


def guarded(application: Application, headers: Mapping[str, str]) -> Application:
    """An ASGI application in front of another, to protect it from web pages, which can reach loopback.

    A page open in the user's browser could use it, by a cross-origin request or through a host name that resolves to
    127.0.0.1. Both are refused. `headers` are added to every response.
    """
    added = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def serve_one(scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        if scope["type"] == "lifespan":
            await application(scope, receive, send)
        elif allowed(scope["path"], {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}):
            await application(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": _REFUSAL})

    return serve_one


def serve(
    make: Callable[[], Application], port: int, ready: Callable[[str], None], headers: Mapping[str, str] | None = None
) -> None:
    """Serve an ASGI application on loopback until SIGINT (Ctrl-C) or SIGTERM; needs uvicorn.

    The application is made once the port is known to be free. `ready` is called once, with the address.

    Raises:
        ConfigError: the port is taken, or the application cannot start.
    """
    with listen(port) as listening:
        import uvicorn

        options: Any = {"log_level": "error", "ws_per_message_deflate": False, "timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(guarded(make(), headers or {}), **options))
        # In a thread, since uvicorn would take over the signals.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        with StopSignal() as stop:
            thread.start()
            try:
                deadline = time.monotonic() + _START_S
                while not (server.started or stop.requested) and thread.is_alive() and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                if not (server.started or stop.requested):
                    raise ConfigError("the server could not start; its own messages, above, say why")
                if not stop.requested:
                    ready(f"http://{HOST}:{listening.getsockname()[1]}")
                while thread.is_alive() and not stop.requested:
                    thread.join(_POLL_S)
            finally:
                server.should_exit = True
                thread.join()
