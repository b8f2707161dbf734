"""Who may call Aim's server, and what its pages may load."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sacglam.tools.loopback import allowed, guarded
from sacglam.tools.tracking.aim import HEADERS

HOST = {"host": "127.0.0.1:43800"}


@pytest.mark.parametrize(
    "headers",
    [
        HOST,
        {"host": "localhost:43800"},
        {"host": "localhost:8080"},  # behind ssh -L
        {**HOST, "origin": "http://127.0.0.1:43800", "sec-fetch-site": "same-origin"},
        {**HOST, "sec-fetch-site": "none"},
    ],
)
def test_its_own_pages_and_tools_are_served(headers: dict[str, str]) -> None:
    assert allowed("/api/runs/search/run/", headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "evil.example"},  # a name made to resolve to 127.0.0.1
        {"host": "127.0.0.1.evil.example:43800"},
        {**HOST, "origin": "http://evil.example"},
        {**HOST, "origin": "null"},
        {**HOST, "origin": "http://127.0.0.1:9999"},  # another server on this machine
        {**HOST, "sec-fetch-site": "cross-site"},  # an <img> or <script> of another site has no origin
        {**HOST, "sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_are_refused(headers: dict[str, str]) -> None:
    assert not allowed("/api/runs/search/run/", headers)


def test_a_link_from_elsewhere_may_open_a_page_but_not_call_the_api() -> None:
    linked = {**HOST, "sec-fetch-site": "cross-site"}
    assert allowed("/runs", linked)
    assert not allowed("/api/runs/", linked)


def test_answers_carry_a_content_policy_and_refusals_never_reach_the_application() -> None:
    asked: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def call(path: str, host: bytes, kind: str = "http") -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("nothing is read")

        scope = {"type": kind, "path": path, "headers": [(b"host", host), (b"referer", b"caf\xe9")]}
        asyncio.run(guarded(application, HEADERS)(scope, receive, send))
        return sent

    good, bad = call("/runs", b"127.0.0.1:1"), call("/api/runs", b"evil.example")
    assert [good[0]["status"], bad[0]["status"]] == [200, 403]
    assert (b"x", b"y") in good[0]["headers"]
    assert b"default-src 'self'" in dict(good[0]["headers"])[b"content-security-policy"]
    assert call("/ws", b"evil.example", "websocket") == [{"type": "websocket.close"}]
    assert asked == ["/runs"]
