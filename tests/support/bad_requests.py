"""What every bad request must come to. A table of `Bad` a router stands in that router's test module."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

SECRET = "hunter2-is-a-secret"
"""A value in the headers and URLs of bad requests; no answer may show it."""
MAX_S, TRIES = 1.0, 3


@dataclass(frozen=True, slots=True)
class Bad:
    """A request (`options` are httpx's) and what is wrong with it: the status and the param of the answer."""

    what: str
    method: str
    path: str
    param: str | None = None
    status: int = 400
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.what


async def check_refused(bad: Bad, client: httpx.AsyncClient) -> None:
    """The request gets a 4xx in the wire form that names the param and shows no secret, within a second."""
    for _ in range(TRIES):  # a machine may be slow once, a parser that was tricked is slow each time
        begun = time.monotonic()
        response = await client.request(bad.method, bad.path, **bad.options)
        if (took_s := time.monotonic() - begun) < MAX_S:
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
