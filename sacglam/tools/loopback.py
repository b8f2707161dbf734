"""Servers for this machine's user alone: on loopback, and not for other sites' pages."""

import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from sacglam.errors import PortError

HOST = "127.0.0.1"
_HOSTS = ("127.0.0.1", "localhost")


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback.

    Raises:
        PortError: the port is taken.
    """
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        with socket.create_server((HOST, 0)) as free:
            other = free.getsockname()[1]
        raise PortError(f"port {port} is taken on {HOST} ({error}); this one is free: --port {other}") from error


def allowed(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from one of this server's pages or from no page; header names are in lower case.

    The port may differ from the server's, as behind `ssh -L`, but the request's headers must agree on it.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        if urlsplit(f"//{host}").hostname not in _HOSTS or (origin is not None and urlsplit(origin).netloc != host):
            return False
    except ValueError:  # such as a bracket without its other
        return False
    foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    return not (foreign and path.startswith("/api"))
