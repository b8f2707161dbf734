"""`sacglam serve`: an HTTP server on loopback. An invalid request gets a 4xx with the reason."""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError
from typing_extensions import override

from sacglam.agent import Agent
from sacglam.collector import build_env
from sacglam.errors import SacglamError
from sacglam.files import MIB
from sacglam.tools.loopback import allowed, listen
from sacglam.tools.serving.answers import Answer, Game, Played, State

_PAGE = Path(__file__).parent / "page.html"
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
_REFUSED = "this server answers its own page and programs on this machine only"
_QUIET_S = 30.0


class Server(ThreadingHTTPServer):
    """Serves an agent and the page on loopback; one thread for each connection."""

    daemon_threads = True

    def __init__(self, port: int, title: str, agent: Agent) -> None:
        """Listens at once; `title` is the page's.

        Raises:
            SacglamError: the port is taken.
        """
        game = Game(agent, build_env(agent.config))
        self.posts: Mapping[str, tuple[type[BaseModel], Callable[[Any], Answer]]] = {
            "/api/act": (State, game.advise),
            "/api/play": (Played, game.play),
        }
        self.gets: Mapping[str, Callable[[], Answer]] = {"/api/goals": lambda: {"title": title, **game.goals()}}
        listening = listen(port)
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.address = f"http://{self.server_address[0]}:{self.server_address[1]}"  # type: ignore[str-bytes-safe]

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: a connection that broke off affects nobody else."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # so that a request without one gets a status line
    disable_nagle_algorithm = True  # else a small answer waits 40 ms for the acknowledgement of its headers
    timeout = _QUIET_S
    server_version = "sacglam"
    sys_version = ""
    _CODES: ClassVar = {501: 405, 505: 400}  # instead of the standard library's for unknown methods and versions

    server: Server

    def do_GET(self) -> None:
        """The page, or JSON."""
        if self.path == "/":
            if self._trusted():
                self._send(200, _PAGE.read_bytes(), "text/html; charset=utf-8")
        elif self.path not in self.server.gets:
            self.send_error(405 if self.path in self.server.posts else 404)
        elif self._trusted():
            self._answer(self.server.gets[self.path])

    def do_POST(self) -> None:
        """JSON for JSON."""
        if self.path not in self.server.posts:
            return self.send_error(405 if self.path in {"/", *self.server.gets} else 404)
        form, answer = self.server.posts[self.path]
        if self._trusted() and (body := self._body()) is not None:
            self._answer(lambda: answer(form.model_validate_json(body)))

    def _trusted(self) -> bool:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not allowed(self.path, headers):
            self.send_error(403, _REFUSED)
            return False
        return True

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json":
            self.send_error(415, "expected Content-Type application/json")
        elif not (length.isascii() and length.isdigit()):
            self.send_error(411, "expected Content-Length, the body's number of bytes")
        elif len(length) > 9 or int(length) > MIB:
            self.send_error(413, f"expected at most {MIB:,} bytes, got {length[:20]}")
        else:
            return self.rfile.read(int(length))
        return None

    def _answer(self, answer: Callable[[], Answer]) -> None:
        try:
            self._send(200, json.dumps(answer()).encode())
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in error.errors()[:5])
            self.send_error(400, "; ".join(faults))
        except (SacglamError, UnicodeError) as error:
            self.send_error(400, str(error))

    def _send(self, code: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        guards = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        for name, value in {**headers, **guards}.items():
            self.send_header(name, value)
        if code != 200:
            self.send_header("Connection", "close")  # the rest of the request may be anything
            self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the reason as JSON."""
        code = self._CODES.get(code, code)
        reason = message or HTTPStatus(code).phrase
        self._send(code, json.dumps({"error": reason}).encode())

    @override
    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""
