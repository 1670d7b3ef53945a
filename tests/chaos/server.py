"""A server of tools, a grader and sessions that fails as planned and records its requests.

`async with ChaosServer(plan) as server` in a test, or `python -m tests.chaos.server --plan plan.json [--port N]`, which
prints its address. POST /tool/NAME, /grade, /session/start, /session/end; GET /stats returns the record. With
`--upstream PREFIX=URL` it is a proxy between a job and real servers, which answer the requests that do not fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import TypeAdapter

from tests.chaos.plan import Burst, Plan

HUGE_BYTES = 8_000_000
WRONG_SCORES = ('{"score": "0.5"}', '{"score": NaN}', '{"score": null}', '{"score": true}', "[0.5]")
WRONG_OUTPUTS = ('{"result": "x"}', '["output"]', "null", "")
BACKLOG = 8192
NOT_DONE = frozenset({"drop", "hang"})
"""With these faults, and with error statuses, a request has no effect; with all others only its answer is bad."""


@dataclass
class Seen:
    """The record of one endpoint: attempts by call, faults by kind, and calls that were answered correctly."""

    attempts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most_in_flight: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass
class Record:
    """The record of a server.

    By trace id, `started` counts the start requests that arrived, and `ended` the ends that had an effect, even if the
    answer was bad; `open` has those that were started and not ended.
    """

    endpoints: dict[str, Seen] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    most_open: int = 0

    def of(self, endpoint: str) -> Seen:
        return self.endpoints.setdefault(endpoint, Seen())

    def start(self, trace_id: str) -> None:
        self.started[trace_id] += 1
        if trace_id not in self.ended:
            self.open.add(trace_id)
            self.most_open = max(self.most_open, len(self.open))

    def end(self, trace_id: str, reason: str) -> None:
        self.ended[trace_id] += 1
        self.reasons[trace_id] = reason
        self.open.discard(trace_id)

    def as_json(self) -> Any:
        return TypeAdapter(Record).dump_python(self, mode="json")


class ChaosServer:
    """The server; `url` exists once the context is entered, and `clock` times the bursts."""

    def __init__(
        self,
        plan: Plan,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        upstreams: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self._upstreams = upstreams or {}
        self.record = Record()
        self.url = ""
        self._port = port
        self._clock = clock
        self._started: float | None = None

    async def __aenter__(self) -> ChaosServer:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/stats", self._stats)
        app.router.add_post("/{endpoint:.+}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=BACKLOG).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._client = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()
        await self._runner.cleanup()

    async def _stats(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.record.as_json())

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        endpoint, raw = request.match_info["endpoint"], await request.read()
        if self._started is None:
            self._started = self._clock()
        seen = self.record.of(endpoint)
        seen.bytes_in += len(raw)
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            return await self._answer(request, endpoint, json.loads(raw), seen)
        finally:
            seen.in_flight -= 1

    async def _answer(self, request: web.Request, endpoint: str, body: Any, seen: Seen) -> web.StreamResponse:
        assert self._started is not None
        key = self._key(request, endpoint, body)
        seen.attempts[key] += 1
        attempt = seen.attempts[key]
        if endpoint == "session/start":
            self.record.start(body["trace_id"])
        fault, burst = self.plan.fault(endpoint, key, attempt, self._clock() - self._started)
        await asyncio.sleep(self.plan.latency_s(endpoint, key, attempt))
        good = json.dumps(self._good(endpoint, key, body))
        if endpoint == "session/end" and not (fault in NOT_DONE or str(fault).isdecimal()):
            self.record.end(body["trace_id"], body["reason"])
        if fault is None:
            seen.answered[key] += 1
            upstream = next((url for prefix, url in self._upstreams.items() if endpoint.startswith(prefix)), None)
            return self._said(seen, good) if upstream is None else await self._forward(request, upstream)
        seen.faults[fault] += 1
        return await self._fail(request, seen, fault, burst, endpoint, key, good)

    async def _forward(self, request: web.Request, upstream: str) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name in ("Authorization", "Content-Type")}
        async with self._client.post(upstream + request.path, data=await request.read(), headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    def _key(self, request: web.Request, endpoint: str, body: Any) -> str:
        if self.plan.key_by == "id" or endpoint.startswith("session/"):
            return request.headers.get("Idempotency-Key", "")
        content = body["arguments"] if endpoint.startswith("tool/") else [body["item"], body["sample"]["output_text"]]
        return json.dumps(content, sort_keys=True)

    def _good(self, endpoint: str, key: str, body: Any) -> Any:
        if endpoint.startswith("tool/"):
            return {"output": f"result of {body['arguments']}"}
        if endpoint == "grade":
            return {"score": round(self.plan.chance("score", key), 6)}
        return {}

    def _said(self, seen: Seen, text: str, status: int = 200, **headers: str) -> web.Response:
        seen.bytes_out += len(text)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, content_type="application/json", headers=sent)

    async def _fail(
        self, request: web.Request, seen: Seen, fault: str, burst: Burst | None, endpoint: str, key: str, good: str
    ) -> web.StreamResponse:
        if fault.isdecimal():
            return self._said(seen, "no", int(fault), **_retry_after(burst))
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "drip":
            return await self._drip(request, seen, good, self.plan.faults(endpoint).drip_s)
        if fault == "huge":
            return self._said(seen, json.dumps({"output": "x" * HUGE_BYTES}))
        if fault == "broken_json":
            return self._said(seen, good[:-2])
        if fault == "wrong_type":
            wrong = WRONG_SCORES if endpoint == "grade" else WRONG_OUTPUTS
            return self._said(seen, wrong[int(self.plan.chance("wrong", endpoint, key) * len(wrong))])
        if fault == "drop":
            return self._raw(request, b"")
        sent = good[: len(good) // 2] if fault == "reset" else good
        length = len(good) + {"reset": 0, "too_short": 100, "too_long": -5}[fault]
        seen.bytes_out += len(sent)
        return self._raw(request, f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{sent}".encode())

    def _raw(self, request: web.Request, data: bytes) -> web.StreamResponse:
        """Write raw bytes, which no correct server would send, and close; aiohttp's own response is discarded."""
        assert isinstance(request.transport, asyncio.Transport)
        if data:
            request.transport.write(data)
            request.transport.close()
        else:
            request.transport.abort()
        return web.Response()

    async def _drip(self, request: web.Request, seen: Seen, text: str, pause_s: float) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(text))})
        await response.prepare(request)
        for byte in text.encode():
            await response.write(bytes([byte]))
            seen.bytes_out += 1
            await asyncio.sleep(pause_s)
        return response


def _retry_after(burst: Burst | None) -> dict[str, str]:
    if burst is None or burst.retry_after_s is None:
        return {}
    if burst.as_date:
        return {"Retry_After": formatdate(time.time() + burst.retry_after_s, usegmt=True)}
    return {"Retry_After": f"{burst.retry_after_s:g}"}


async def _serve(plan: Plan, port: int, upstreams: Mapping[str, str]) -> None:
    async with ChaosServer(plan, port, upstreams=upstreams) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--upstream", action="append", default=[], metavar="PREFIX=URL")
    arguments = parser.parse_args()
    upstreams = dict(upstream.split("=", 1) for upstream in arguments.upstream)
    asyncio.run(_serve(Plan.read(arguments.plan), arguments.port, upstreams))
