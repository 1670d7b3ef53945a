"""A server on a real socket that answers each POST with the bytes that a test chooses, valid HTTP or not."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

Answers = Mapping[str, Callable[[], Iterable[bytes]]]
"""Pieces of the answer by path. The server sends the pieces until the client closes the connection."""


def with_length(body: bytes, status: str = "200 OK") -> bytes:
    """A complete answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(OSError):
            while line := self.rfile.readline():
                path, length = line.split()[1].decode(), 0
                while (header := self.rfile.readline()).strip():
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                self.rfile.read(length)
                for piece in self.server.answers[path.strip("/").replace("%20", " ")]():
                    self.wfile.write(piece)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers


@contextmanager
def hostile_endpoint(answers: Answers) -> Iterator[str]:
    """Run the server in threads of this process, and yield its URL."""
    with _Server(answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
