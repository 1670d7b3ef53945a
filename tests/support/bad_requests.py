"""The checks that every bad request must pass; each router's test module has a table of `Bad` requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

SECRET = "hunter2-is-a-secret"
"""In the headers and URLs of bad requests; no answer may show it."""
MAX_S, TRIES = 1.0, 3


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad request (`options` are httpx's), and the status and `param` of the error it must get."""

    what: str
    method: str
    path: str
    param: str | None = None
    status: int = 400
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.what


async def check_refused(bad: Bad, client: httpx.AsyncClient) -> None:
    """Checks that the request gets a 4xx in the wire form within MAX_S, with the right `param` and no secret."""
    for _ in range(TRIES):  # a loaded machine is slow once, an exploited parser is slow every time
        start = time.monotonic()
        response = await client.request(bad.method, bad.path, **bad.options)
        if (took_s := time.monotonic() - start) < MAX_S:
            break
    assert took_s < MAX_S
    assert response.status_code == bad.status, response.text
    assert 400 <= response.status_code < 500
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"]
    assert body["error"]["param"] == bad.param, body
    assert response.headers["x-request-id"]
    assert SECRET not in response.text and SECRET not in str(response.headers)
    assert len(response.content) < 10_000
