"""What stands before Aim's server: it answers this machine's user alone, and his browser asks nobody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_HOSTS = ("127.0.0.1", "localhost")
_POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"
_REFUSAL = b"Refused: the run explorer answers its own pages on this machine only.\n"


class LoopbackOnly:
    """An ASGI application before another, which binding to loopback alone leaves open to web pages.

    Aim lets any site's script call it, and evaluates the Python in a query. So a page that the user visits elsewhere
    could reach it through his browser: by a request from another origin, or by a name that resolves to 127.0.0.1.
    Both are refused. A content policy keeps Aim's pages from loading scripts and fonts from the network.
    """

    def __init__(self, application: Application) -> None:
        """`application` gets what is not refused."""
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            return await self._application(scope, receive, send)
        if not allowed(scope["path"], {name.decode(): value.decode() for name, value in scope["headers"]}):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            return await send({"type": "http.response.body", "body": _REFUSAL})

        async def send_with_policy(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"content-security-policy", _POLICY)]
            await send(message)

        return await self._application(scope, receive, send_with_policy)


def allowed(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of this server or from no page; `headers` by their lower-case names.

    The port may be another, as behind `ssh -L`, but all of a request must agree on it.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if urlsplit(f"//{host}").hostname not in _HOSTS:
        return False
    if origin is not None and urlsplit(origin).netloc != host:
        return False
    foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    return not (foreign and path.startswith("/api"))
