"""A small stand-in of OpenAI's fine-tuning API: a real HTTP server on localhost with jobs that a test has recorded."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY = "sk-proj-0123456789-of-a-test"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in place of the recorded one."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def refusal(status: int, message: str, **headers: str) -> Reply:
    """An answer in the form of the API's errors."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(body).encode(), sent)


class FakeOpenAI:
    """`with FakeOpenAI() as api`: serves `jobs`, `files`, `events` and `checkpoints` at `api.url` to who has KEY.

    `instead` may answer a path itself: it gets the path and how often that was asked before.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.events: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.instead: Callable[[str, int], Reply | None] = lambda path, times: None
        self.asked: Counter[str] = Counter()
        self.queries: list[str] = []
        self.url = ""

    def __enter__(self) -> FakeOpenAI:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                reply = api.answer(parts.path, parts.query, self.headers.get("Authorization", ""))
                self.send_response(reply.status)
                for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(ConnectionError):  # the client has given up
                    self.wfile.write(reply.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, query: str, authorization: str) -> Reply:
        path = path.removeprefix("/v1")
        other = self.instead(path, self.asked[path])
        self.asked[path] += 1
        self.queries.append(query)
        if other is not None:
            return other
        if authorization != f"Bearer {KEY}":
            return refusal(401, f"Incorrect API key provided: {authorization.removeprefix('Bearer ')}")
        match path.strip("/").split("/"):
            case ["fine_tuning", "jobs", job] if job in self.jobs:
                return Reply(200, json.dumps(self.jobs[job]).encode())
            case ["fine_tuning", "jobs", job, "events"] if job in self.jobs:
                return _page(self.events, query)
            case ["fine_tuning", "jobs", job, "checkpoints"] if job in self.jobs:
                return _page(self.checkpoints, query)
            case ["files", file, "content"] if file in self.files:
                return Reply(200, self.files[file], {"Content-Type": "application/octet-stream"})
        return refusal(404, f"No such object: {path}")


def _page(entries: list[dict[str, Any]], query: str) -> Reply:
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    ids = [entry["id"] for entry in entries]
    start = ids.index(asked["after"]) + 1 if "after" in asked else 0
    data = entries[start : start + int(asked.get("limit", 20))]
    body = {"object": "list", "data": data, "has_more": start + len(data) < len(entries)}
    return Reply(200, json.dumps(body).encode())
