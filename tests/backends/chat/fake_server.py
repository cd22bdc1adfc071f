"""A chat server on loopback that says what a test tells it to: well, badly, late, never, and until it dies."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tiny/model"


@dataclass(frozen=True)
class Say:
    """One answer. raw: the HTTP body instead of a completion of `text`. delay_s: before it. cut: the connection is
    closed without one.
    """

    text: str | None = '{"action": "running"}'
    finish_reason: str = "stop"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes | None = None
    content_type: str = "application/json"
    delay_s: float = 0
    cut: bool = False
    more: tuple[tuple[str, Any], ...] = ()
    """Further fields of the message."""


@dataclass
class FakeServer:
    """answer: what to say, by how many chat requests came before and the request's JSON. bodies: all that came.
    dies_after: so many chat requests, then every connection is closed and no new one taken.
    """

    answer: Callable[[int, dict[str, Any]], Say]
    models: tuple[str, ...] = (MODEL,)
    key: str | None = None
    dies_after: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    base_url: str = ""
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: Any = None

    @property
    def count(self) -> int:
        """How many chat requests came."""
        return len(self.bodies)

    def handle(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self._lock:
            # Counted when it comes, not when it is answered: of two in flight one would slip through.
            if self.dies_after is not None and len(self.bodies) >= self.dies_after:
                self._die(handler)
                return
            place = len(self.bodies)
            self.bodies.append(body)
            self.headers.append({key.lower(): value for key, value in handler.headers.items()})
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        said = self.answer(place, body)
        time.sleep(said.delay_s)
        with self._lock:
            self._running -= 1
        if said.cut:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        message = {"role": "assistant", "content": said.text, **dict(said.more)}
        completion = {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": said.finish_reason}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }
        data = said.raw
        if data is None:
            data = json.dumps(completion if said.status == 200 else {"error": {"message": said.text}}).encode()
        self.send(handler, said.status, data, said.content_type, said.headers)

    def _die(self, handler: BaseHTTPRequestHandler) -> None:
        self._server.socket.close()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def send(
        handler: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        content_type: str = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        with contextlib.suppress(OSError):  # who asked may have gone
            handler.send_response(status)
            for name, value in (("Content-Type", content_type), ("Content-Length", str(len(data))), *headers):
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeServer]:
        """The server, listening at `base_url` meanwhile."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if fake.key is not None and self.headers.get("Authorization") != f"Bearer {fake.key}":
                    fake.send(self, 401, b'{"error": {"message": "who are you"}}')
                    return
                listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in fake.models]}
                fake.send(self, 200, json.dumps(listed).encode())

            def do_POST(self) -> None:
                fake.handle(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *args: Any) -> None:
                """Nothing is printed."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that left is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # its socket was closed: it has died
            self._server.serve_forever(poll_interval=0.01)


def unused_url() -> str:
    """A base_url where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
