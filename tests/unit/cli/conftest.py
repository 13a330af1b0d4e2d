"""The command against a small real HTTP server that answers what each test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lethe.cli import main

Answer = tuple[int, dict[str, Any] | str]


class Server:
    """Answers by "METHOD /path?query"; a list is answered one by one."""

    def __init__(self, port: int = 0) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.on_request: Callable[[], object] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.on_request()
                call = f"{self.command} {self.path}"
                outer.seen.append((call, {key.lower(): value for key, value in self.headers.items()}, body))
                left = outer.answers.get(call, [(404, {"title": "nothing", "code": "not-found", "detail": call})])
                status, content = left.pop(0) if len(left) > 1 else left[0]
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def lethe(monkeypatch: pytest.MonkeyPatch, server: Server, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command; gives (exit code, standard output, standard error)."""
    monkeypatch.setenv("LETHE_URL", server.url)
    monkeypatch.setenv("LETHE_TOKEN", "secret")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["lethe", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return run
