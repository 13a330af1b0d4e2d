"""A little HTTP server that callbacks are posted to."""

from __future__ import annotations

import base64
import hmac
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Post:
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def signed(self) -> bytes:
        return f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body

    @property
    def signature(self) -> tuple[str, bytes]:
        version, _, text = self.headers["webhook-signature"].partition(",")
        return version, base64.b64decode(text)

    def is_signed_with(self, secret: str) -> bool:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        return self.signature == ("v1", hmac.digest(key, self.signed, "sha256"))


@dataclass
class Receiver:
    port: int
    posts: list[Post] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Status codes of the next answers; 204 when there are none left."""
    location: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"


@contextmanager
def receiving(*answers: int) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.answers.pop(0) if receiver.answers else 204
            receiver.posts.append(Post({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if receiver.location:
                self.send_header("location", receiver.location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1], answers=list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
