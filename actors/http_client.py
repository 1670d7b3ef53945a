"""The one retry layer: every HTTP call of a job to a tool or to an endpoint grader goes through here, and ends by its
deadline with an answer or with an error that names the endpoint and shows no secret.

The rules are those of section 4 of the wire contract. 408, 425, 429 and 503 wait and are tried again until the
deadline. Other 5xx and connection errors get MAX_RETRIES more tries. 401 and 403 are a mistake in the job. Redirects
are not followed. Everything else is an answer, and what it means is the caller's affair.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from yarl import URL

from actors.endpoint import endpoint_mistake, safe_url, scrub, secrets_of
from trainer.endpoint_spec import Endpoint
from trainer.errors import Discard, EndpointRefused, UserError

MAX_RETRIES = 3
MAX_CALL_S = 600.0
MAX_OUTPUT_BYTES = 1_000_000
"""What one call may give back to the model."""
MAX_BODY_BYTES = 6 * MAX_OUTPUT_BYTES + 65_536
"""What is read of one body: JSON writes a byte of output as six (\\u0000) at worst; the rest is for other keys."""
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 4.0
"""Below the five seconds of uvicorn and Node: a connection is not reused in the moment in which they close it."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 8.0
EXCERPT_CHARS = 200

WAIT_STATUSES = frozenset({408, 425, 429, 503})
REFUSED_STATUSES = frozenset({401, 403})
REMEDIES = {
    "busy": "give it more capacity, lower max_concurrency or raise timeout_s",
    "deadline": "make it faster, raise timeout_s, or raise max_concurrency if it can take more calls at a time",
    "server_error": "look into its own log",
    "connection": "check that it runs and that its URL is right and can be reached from the cluster",
    "redirect": "give the final URL in the job: redirects are not followed",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the client has time and chance from. `jitter` gives numbers in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


REAL_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint said in the end. `latency_s` is that of this attempt alone, `retries` counts the failures
    before it (not the waits), `truncated` says that `body` is only the first MAX_BODY_BYTES."""

    status: int
    body: bytes
    latency_s: float
    retries: int
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


@dataclass(slots=True)
class _Call:
    """How far one call has come."""

    payload: bytes
    headers: Mapping[str, str]
    start: float
    deadline: float
    attempts: int = 0
    failures: int = 0
    last: str = ""


class _TryAgain(Exception):
    """An attempt failed in a way that may pass. `after_s` is what the endpoint asked us to wait."""

    def __init__(self, kind: str, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.after_s = after_s


class EndpointClient:
    """POSTs JSON to one endpoint, with at most `endpoint.max_concurrency` requests on the wire at a time.

    A call holds its slot only while a request is on the wire, not while it waits to try again. Its deadline,
    `endpoint.timeout_s`, runs from the moment in which it was given in, so it covers waiting for a slot.
    """

    def __init__(
        self, what: str, url: str, endpoint: Endpoint, failure: type[Discard], timing: Timing = REAL_TIMING
    ) -> None:
        """`what` names the endpoint in messages ("tool 'search'"); `failure` is raised where a call fails in the end.

        Raises:
            UserError: the URL or a header cannot be used.
        """
        mistake = endpoint_mistake(url, endpoint.headers)
        if mistake:
            raise UserError(f"{what}: {mistake}")
        self.what = f"{what} (POST {safe_url(url)})"
        self._timeout_s = min(endpoint.timeout_s, MAX_CALL_S)
        self._max_concurrency = endpoint.max_concurrency
        self._endpoint = safe_url(url)
        self._url = URL(url)
        self._headers = {name: value.get_secret_value() for name, value in endpoint.headers.items()}
        self._secrets = secrets_of(url, self._headers.values())
        self._failure = failure
        self._timing = timing
        self._slots = asyncio.Semaphore(endpoint.max_concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: Mapping[str, Any], idempotency_key: str) -> Answer:
        """Send `body` until it is answered or its deadline is over.

        Raises:
            EndpointRefused: 401 or 403.
            Discard: the `failure` that was handed in; its details are endpoint, kind, attempts, retries.
        """
        now = self._timing.clock()
        call = _Call(
            payload=json.dumps(body).encode(),
            headers={"Idempotency-Key": quote(idempotency_key, safe=":/+=,;@!*'()")},
            start=now,
            deadline=now + self._timeout_s,
        )
        retrying = AsyncRetrying(
            sleep=self._timing.sleep,
            retry=retry_if_exception_type(_TryAgain),
            wait=self._wait_s,
            stop=lambda state: self._is_over(call, state),
            reraise=True,
        )
        try:
            answer: Answer = await retrying(self._attempt, call)
        except _TryAgain as last:
            why = last.why
            if call.failures <= MAX_RETRIES:
                why += ", and the deadline leaves no time for another try"
            raise self._failed(call, last.kind, why) from None
        return answer

    async def close(self) -> None:
        """Close the connections; calls that are still under way fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def scrub(self, text: str) -> str:
        """`text` without the secrets of our headers and URL, which some servers echo."""
        return scrub(text, self._secrets)

    def excerpt(self, answer: Answer) -> str:
        """The begin of an answer, for messages."""
        return cut(" ".join(self.scrub(answer.text).split()), EXCERPT_CHARS)

    async def _attempt(self, call: _Call) -> Answer:
        """Wait for a slot, then send once."""
        call.attempts += 1
        start, slot_at = self._timing.clock(), None
        try:
            async with asyncio.timeout(call.deadline - start), self._slots:
                slot_at = self._timing.clock()
                answer, retry_after = await self._exchange(call)
        except TimeoutError:
            why = f"no answer by the deadline of {self._timeout_s:g} s"
            queued_s = (self._timing.clock() if slot_at is None else slot_at) - start
            if queued_s > self._timeout_s / 10:
                why += f", {queued_s:.1f} s of which it waited for one of {self._max_concurrency} slots"
            why += f"; before: {call.last}" if call.last else ""
            raise self._failed(call, "deadline", why) from None
        return self._judge(call, answer, retry_after)

    async def _exchange(self, call: _Call) -> tuple[Answer, str | None]:
        """One request and its answer, with the header Retry-After. Foreign errors are mapped here and only here."""
        start = self._timing.clock()
        try:
            async with self._open_session().post(
                self._url, data=call.payload, headers=call.headers, allow_redirects=False
            ) as response:
                body, truncated = await _read(response.content, MAX_BODY_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            call.failures += 1
            raise self._try_again(call, "connection", _describe(error)) from None
        latency_s = self._timing.clock() - start
        answer = Answer(response.status, body, latency_s, call.failures, truncated)
        return answer, response.headers.get("Retry-After")

    def _judge(self, call: _Call, answer: Answer, retry_after: str | None) -> Answer:
        """The answer, where it is one."""
        status = answer.status
        if status in REFUSED_STATUSES:
            raise EndpointRefused(
                f"{self.what} refused us with {status_text(status)}: check the keys in its `headers`",
                endpoint=self._endpoint,
                kind="refused",
                status=status,
                retries=call.failures,
            )
        if status in WAIT_STATUSES:
            after_s = None if retry_after is None else retry_after_s(retry_after, self._timing.wall_clock())
            why = status_text(status) + (f" with Retry-After: {after_s:g} s" if after_s is not None else "")
            raise self._try_again(call, "busy", why, after_s)
        if status >= 500:
            call.failures += 1
            text = self.excerpt(answer)
            raise self._try_again(call, "server_error", status_text(status) + (f" ({text})" if text else ""))
        if 300 <= status < 400:
            raise self._failed(call, "redirect", f"{status_text(status)}, a redirect")
        return answer

    def _wait_s(self, state: RetryCallState) -> float:
        """What the endpoint asked for, and a little more; else 0.5, 1, 2, ... s, of which a random half is left out.

        At most an eighth of the deadline, so that little of it is lost where the next wait does not fit.
        """
        jitter = self._timing.jitter()
        again = _outcome(state)
        if again.after_s is not None:
            return again.after_s + jitter * FIRST_WAIT_S
        doubled = FIRST_WAIT_S * 2.0 ** min(state.attempt_number - 1, 10)
        return min(doubled, LONGEST_WAIT_S, self._timeout_s / 8) * (1 - jitter / 2)

    def _is_over(self, call: _Call, state: RetryCallState) -> bool:
        return call.failures > MAX_RETRIES or self._timing.clock() + state.upcoming_sleep >= call.deadline

    def _try_again(self, call: _Call, kind: str, why: str, after_s: float | None = None) -> _TryAgain:
        call.last = why
        return _TryAgain(kind, why, after_s)

    def bad_answer(self, answer: Answer, why: str) -> Discard:
        """The error for a caller to raise that cannot use an answer: the call failed, and `why`."""
        said = self.excerpt(answer) or "an empty body"
        return self._failure(
            f"{self.what} failed: it answered {status_text(answer.status)}, but {why}; it gave: {said}",
            endpoint=self._endpoint,
            kind="bad_answer",
            attempts=answer.retries + 1,
            retries=answer.retries,
        )

    def _failed(self, call: _Call, kind: str, why: str) -> Discard:
        elapsed_s = self._timing.clock() - call.start
        return self._failure(
            f"{self.what} failed: {why} ({call.attempts} attempts, {elapsed_s:.1f} s); {REMEDIES[kind]}",
            endpoint=self._endpoint,
            kind=kind,
            attempts=call.attempts,
            retries=min(call.failures, call.attempts - 1),
        )

    def _open_session(self) -> aiohttp.ClientSession:
        """One session, made in the event loop that uses it. The slots bound its connections; it keeps no cookies,
        since those of one rollout are none of the next one's business."""
        if self._session is None:
            headers = CIMultiDict({"Content-Type": "application/json"})
            headers.update(self._headers)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
            )
        return self._session


def retry_after_s(value: str, now: float) -> float | None:
    """The header Retry-After (RFC 9110, 10.2.3) in seconds from `now` (Unix time); None where it says nothing."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    return seconds if seconds >= 0 and not math.isnan(seconds) else None


def status_text(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."


def _outcome(state: RetryCallState) -> _TryAgain:
    error = None if state.outcome is None else state.outcome.exception()
    assert isinstance(error, _TryAgain)  # nothing else is tried again
    return error


async def _read(stream: aiohttp.StreamReader, limit: int) -> tuple[bytes, bool]:
    """The first `limit` bytes, and whether there was more."""
    body = bytearray()
    async for chunk in stream.iter_any():
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit]), True
    return bytes(body), False


def _describe(error: Exception) -> str:
    """What happened on the wire. Not str(error): aiohttp writes whole URLs, query and all, into some of its errors."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        reason = os.strerror(number) if number > 0 else error.os_error.strerror  # name look-ups count downwards
        return f"no connection ({reason or type(error.os_error).__name__})"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the answer is no HTTP"
    return f"the connection failed ({type(error).__name__})"
