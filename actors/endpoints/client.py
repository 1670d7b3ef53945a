"""Client for all HTTP calls of a job to tool, grader and model endpoints. Calls are retried only here.

A call ends by its deadline, with an answer or with an error that names the endpoint and contains no secret. Retries
follow the wire contract:

- 408, 425, 429, 503, and 403 with rate-limit headers: retried until the deadline.
- Open breaker: the call waits until the breaker admits it, at most until the deadline.
- Other 5xx, connection errors and attempts that time out: retried `max_retries` times.
- An account without credit, a redirect, or a response that exceeds a limit: the call fails immediately.
- 401, or a 403 that rejects the key (`AccessHistory`): the key in the job is wrong, so the job ends.
- Any other response is an answer, which the caller interprets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

from aiohttp.abc import AbstractResolver

from agent_rft.actors.endpoints.adaptive_limit import AdaptiveLimit, RequestRateLimit
from agent_rft.actors.endpoints.breaker import Breaker
from agent_rft.actors.endpoints.call_errors import DEFAULT_KEYS_SETTING, CallErrors
from agent_rft.actors.endpoints.endpoint_statistics import EndpointStats, merge_stats
from agent_rft.actors.endpoints.gate import Gate, Permit, RequestOutcome, SocketLimit
from agent_rft.actors.endpoints.hedging import send_with_hedges
from agent_rft.actors.endpoints.http_response import HttpResponse, format_status, parse_retry_after_s
from agent_rft.actors.endpoints.network.address_guard import AddressGuard, ForbiddenAddress
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem, list_secrets, redact_url
from agent_rft.actors.endpoints.network.http_transport import Reply, Transport, TransportError
from agent_rft.actors.endpoints.network.json_reader import read_json
from agent_rft.actors.endpoints.network.proxies import Proxy
from agent_rft.actors.endpoints.request_body import encode_json
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.runtime.telemetry.tracing import current_trace_headers, current_trace_id
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.errors import DiscardError, EndpointRefused, UserError
from agent_rft.rows.strict_json import ParsedJson
from agent_rft.spec.endpoints import Endpoint
from agent_rft.spec.operator.allowed_networks import AllowedDestination

FIRST_WAIT_S = 0.5
QUICK_WAIT_S = 0.1
MAX_RETRY_WAIT_S = 8.0
LATE_S = 0.005
"""Tolerance in seconds when checking whether a request was cancelled at its deadline."""

CLIENTS: WeakSet[EndpointClient] = WeakSet()
"""All clients of this process, for `collect_process_stats`."""


@dataclass(slots=True)
class _Call:
    """State of one call of `EndpointClient.post`, across its attempts."""

    payload: bytes
    headers: Mapping[str, str]
    lane: str
    start: float
    deadline: float
    ends_at: float
    """The deadline on the event loop's clock."""
    attempts: int = 0
    failures: int = 0
    queued_s: float = 0.0
    in_queue_since: float | None = None
    last_failure: str = ""
    identity: object = field(default_factory=object)


class _Retryable(Exception):
    """A failed attempt that may succeed later; `after_s` is the wait in seconds that the endpoint asked for."""

    def __init__(self, kind: str, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.after_s = after_s


class EndpointClient:
    """Client that POSTs JSON to one endpoint, as fast as the endpoint and its settings allow.

    A call holds a permit only while one of its requests is in flight, not between retries. The time limit of a call,
    `endpoint.timeout_s`, starts when `post` is called, so it includes the wait for a permit.
    """

    def __init__(
        self,
        what: str,
        url: str,
        endpoint: Endpoint,
        failure: type[DiscardError],
        timing: Timing = REAL_TIMING,
        *,
        allowed_networks: Sequence[AllowedDestination] = (),
        sockets: SocketLimit | None = None,
        hedge_after_s: float | None = None,
        resolver: AbstractResolver | None = None,
        signer: Signer | None = None,
        keys_setting: str = DEFAULT_KEYS_SETTING,
        has_answered: bool = False,
        proxy: Proxy | None = None,
    ) -> None:
        """Create a client that connects at the first call.

        `what` names the endpoint in messages ("tool 'search'"). `failure` is the class of the error that is raised
        when a call fails after all retries. The clients of one process share `sockets`. Set `hedge_after_s` only if a
        request may be sent twice. `signer` signs each request. `keys_setting` names the setting that contains
        the endpoint's keys. `has_answered` is whether the endpoint has already answered in this run. Never set `proxy`
        for URLs from jobs, because a proxy can reach any address.

        Raises:
            UserError: The URL or a header is invalid.
        """
        guard = AddressGuard(allowed_networks)
        if problem := find_endpoint_problem(url, endpoint.headers):
            raise UserError(f"{what}: {problem}")
        if address := guard.find_address_problem(url):
            raise UserError(f"{what}: {address.message}: {address.fix}")
        headers = {name: value.get_secret_value() for name, value in endpoint.headers.items()}
        self.what = f"{what} (POST {redact_url(url)})"
        self.name = what
        CLIENTS.add(self)
        self.counts = EndpointStats()
        self._errors = CallErrors(
            self.what, redact_url(url), list_secrets(url, headers.values()), keys_setting, failure
        )
        self._timing = timing
        self._timeout_s = endpoint.timeout_s
        self._attempt_timeout_s = endpoint.attempt_timeout_s
        self._max_retries = endpoint.max_retries
        self._hedge_after_s = hedge_after_s
        self._signer = signer
        self._access = AccessHistory(has_answered)
        self._transport = Transport(url, headers, guard, resolver, proxy)
        self._gate = Gate(
            AdaptiveLimit(endpoint.max_concurrency),
            None if endpoint.rate_limit_per_s is None else RequestRateLimit(endpoint.rate_limit_per_s),
            Breaker(timing),
            sockets or SocketLimit.from_process_limits(),
            timing,
        )

    async def post(self, body: Mapping[str, Any] | bytes, idempotency_key: str, trace_id: str = "") -> HttpResponse:
        """Send `body`, which is an object or encoded JSON, until the endpoint answers or the deadline passes.

        The waiting calls of each `trace_id` form a queue, and the queues are served round-robin.

        Raises:
            EndpointRefused: The endpoint refuses the key, or has an address that the operator does not allow.
            DiscardError: The call failed. The error's class is the client's argument `failure`. The error's details are
                endpoint, kind, attempts and retries.
        """
        now = self._timing.clock()
        plain = idempotency_key.isascii() and idempotency_key.isidentifier()  # true of most call ids
        key = idempotency_key if plain else quote(idempotency_key, safe=":/+=,;@!*'()")
        call = _Call(
            payload=body if isinstance(body, bytes) else encode_json(body),
            headers={"Idempotency-Key": key, **current_trace_headers()},
            lane=trace_id,
            start=now,
            deadline=now + self._timeout_s,
            ends_at=asyncio.get_running_loop().time() + self._timeout_s,
        )
        self.counts.calls += 1
        try:
            answer = await self._post_by_deadline(call)
        except (EndpointRefused, DiscardError) as error:
            self.counts.failed += 1
            self.counts.errors[error.details["kind"]] += 1
            raise
        except asyncio.CancelledError:
            self.counts.cancelled += 1
            raise
        self.counts.answered += 1
        return answer

    def stats(self) -> dict[str, Any]:
        """Return the EndpointStats, limit, queue length, breaker state and outage counts, all as plain values."""
        gate = self._gate
        now = {"limit": gate.limit.current, "in_flight": gate.in_flight, "queued": gate.queued}
        outages = {"outages": gate.breaker.times_opened, "delayed": gate.delayed}
        return {**self.counts.as_dict(), **now, **outages, "breaker": gate.breaker.state}

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._gate.close()
        await self._transport.close()

    def scrub(self, text: str) -> str:
        """Return `text` with the endpoint's secrets redacted; see CallErrors.scrub."""
        return self._errors.scrub(text)

    def excerpt(self, text: str) -> str:
        """Return the start of `text` on one line, without secrets; see CallErrors.excerpt."""
        return self._errors.excerpt(text)

    def describe(self, answer: HttpResponse) -> str:
        """Return the status and the reason of an answer, as text for messages; see CallErrors.describe."""
        return self._errors.describe(answer)

    def make_bad_answer_error(self, answer: HttpResponse, why: str, fix: str = "") -> DiscardError:
        """Return the error for an answer that the caller cannot use, and count the error. See CallErrors."""
        error = self._errors.make_bad_answer_error(answer, why, fix)
        self.counts.errors[error.details["kind"]] += 1
        return error

    # -- retries ---------------------------------------------------------------------------------------------------

    async def _post_by_deadline(self, call: _Call) -> HttpResponse:
        try:
            async with asyncio.timeout_at(call.ends_at):
                return await self._retry_until_answered(call)
        except TimeoutError:
            raise self._make_failure(call, "deadline", self._explain_deadline(call)) from None

    async def _retry_until_answered(self, call: _Call) -> HttpResponse:
        """Make attempts until the endpoint answers or the call fails."""
        while True:
            call.attempts += 1
            try:
                if self._hedge_after_s is None:
                    return await self._attempt(call)
                return await self._attempt_with_hedges(call, self._hedge_after_s)
            except _Retryable as failed:
                call.last_failure = failed.why
                call.failures += failed.kind != "busy"
                kind = failed.kind
                wait_s = self._wait_s(call, kind, failed.after_s)
                if call.failures > self._max_retries:
                    raise self._make_failure(call, failed.kind, failed.why) from None
                if self._timing.clock() + wait_s >= call.deadline:
                    why = f"{failed.why}, and the deadline leaves no time for another attempt"
                    raise self._make_failure(call, failed.kind, why) from None
            if kind == "busy":
                self.counts.backpressure_retries += 1
            else:
                self.counts.retries += 1
            await self._timing.sleep(wait_s)

    def _wait_s(self, call: _Call, kind: str, after_s: float | None) -> float:
        """Return the seconds until the next attempt.

        The result is the wait that the endpoint requested, if any. Otherwise, the wait doubles with each attempt and
        is reduced at random by up to half. The first failure is retried after at most QUICK_WAIT_S.
        """
        jitter = self._timing.jitter()
        if after_s is not None:
            return after_s + jitter * QUICK_WAIT_S  # the gate spreads calls that wait for the same time
        alone = kind != "busy" and call.failures == 1
        doubled = QUICK_WAIT_S if alone else FIRST_WAIT_S * 2.0 ** min(call.attempts - 1, 10)
        return min(doubled, MAX_RETRY_WAIT_S, self._timeout_s / 8) * (1 - jitter / 2)

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def _attempt(self, call: _Call, sent: asyncio.Event | None = None) -> HttpResponse:
        """Wait for a permit, then send one request."""
        call.in_queue_since = self._timing.clock()
        permit = await self._gate.enter(call.lane, call.failures, call.identity)
        call.in_queue_since = None
        call.queued_s += permit.queued_s
        self.counts.record_queue_time(permit.queued_s)
        if sent is not None:
            sent.set()
        return await self._send(call, permit)

    async def _attempt_with_hedges(self, call: _Call, after_s: float) -> HttpResponse:
        """Make one attempt. While it is slow, send hedges if permits are free. Errors of hedges are ignored."""

        async def send_hedge() -> HttpResponse | None:
            permit = self._gate.try_enter()
            if permit is None:
                return None
            self.counts.hedges += 1
            return await self._send(call, permit)

        wait = partial(self._timing.sleep, after_s)
        max_hedges = max(1, self._max_retries)
        answer, won = await send_with_hedges(lambda sent: self._attempt(call, sent), send_hedge, wait, max_hedges)
        self.counts.hedges_won += won
        return answer

    async def _send(self, call: _Call, permit: Permit) -> HttpResponse:
        """Send one request and classify its outcome. Always returns the permit to the gate."""
        outcome, why, after_s = RequestOutcome.GIVEN_UP, "", None
        self.counts.bytes_out += len(call.payload)
        headers = call.headers
        if self._signer is not None:
            now = self._timing.wall_clock()
            headers = {**headers, **self._signer.sign(headers["Idempotency-Key"], call.payload, now)}
        try:
            async with asyncio.timeout(self._attempt_timeout_s):
                reply = await self._transport.send(call.payload, headers)
            latency_s = self._timing.clock() - permit.sent_at
            answer = HttpResponse(
                reply.status,
                reply.body,
                latency_s,
                call.failures,
                reply.truncated,
                len(call.payload),
                ValueError("it is too large") if reply.truncated else await _read_content(reply.body),
            )
            outcome, asked = _classify_reply(reply), ""
            if reply.asks_to_wait and reply.retry_after is not None:
                after_s = parse_retry_after_s(reply.retry_after, self._timing.wall_clock())
                asked = "" if after_s is None else f" with Retry-After: {after_s:g} s"
                self._gate.pause(after_s or 0.0)  # before the permit is returned and the next call is admitted
            if outcome is not RequestOutcome.ANSWERED:
                why = self._errors.describe(answer, asked)
        except TransportError as error:
            outcome, why = (RequestOutcome.FAILED if error.connected else RequestOutcome.NO_CONNECTION), error.why
            if not error.may_retry:
                raise self._make_failure(call, "response_limit", why) from None
            raise _Retryable("connection", why) from None
        except TimeoutError:
            outcome, why = RequestOutcome.LATE, f"no answer within {self._attempt_timeout_s:g} s"
            raise _Retryable("timeout", why) from None
        except ForbiddenAddress as error:
            why = f"resolves to {error.address}, {error.why}"
            raise self._errors.make_refused_error("forbidden_address", why, error.fix, call.failures) from None
        except asyncio.CancelledError:
            if asyncio.get_running_loop().time() >= call.ends_at - LATE_S:
                outcome, why = RequestOutcome.LATE, f"no answer within {self._timeout_s:g} s"
            raise
        finally:
            self._gate.leave(permit, outcome, why)
        self.counts.record_latency(latency_s, current_trace_id())
        self.counts.bytes_in += len(reply.body)
        if outcome is not RequestOutcome.ANSWERED:
            if answer.has_no_credit:
                raise self._make_failure(call, "no_credit", why)
            raise _Retryable("busy" if reply.asks_to_wait else "server_error", why, after_s)
        return self._check_access(call, answer)

    def _check_access(self, call: _Call, answer: HttpResponse) -> HttpResponse:
        """Return `answer`, or raise an error if it is a redirect or refuses the key.

        Raises:
            EndpointRefused: The endpoint refuses the key.
            DiscardError: The answer is a redirect. The error's class is the client's argument `failure`.
        """
        status, access = answer.status, self._access
        if 300 <= status < 400:
            raise self._make_failure(call, "redirect", f"{format_status(status)}, a redirect")
        if status != 401:
            access.add(forbidden=status == 403)
        if status == 401 or (status == 403 and access.refuses_key):
            share = f"{access.num_forbidden} of the last {access.num_answers} calls"
            rejected = share if status == 403 and access.num_forbidden > 1 else "the request"
            raise self._errors.make_key_refused_error(answer, rejected)
        return answer

    # -- errors ----------------------------------------------------------------------------------------------------

    def _make_failure(self, call: _Call, kind: str, why: str) -> DiscardError:
        elapsed_s = self._timing.clock() - call.start
        return self._errors.make_call_failed_error(
            kind, why, attempts=call.attempts, failures=call.failures, elapsed_s=elapsed_s
        )

    def _explain_deadline(self, call: _Call) -> str:
        why = f"no answer by the deadline of {self._timeout_s:g} s"
        queued_s = call.queued_s
        if call.in_queue_since is not None:
            queued_s += self._timing.clock() - call.in_queue_since
        if queued_s > self._timeout_s / 10:
            why += f", including a wait of {queued_s:.1f} s for one of {self._gate.limit.current} slots"
        if self._gate.breaker.is_open:
            why += f"; the endpoint is down: {self._gate.breaker.last_failure}"
        elif call.last_failure:
            why += f"; previous failure: {call.last_failure}"
        return why


def collect_process_stats() -> dict[str, dict[str, Any]]:
    """Return EndpointClient.stats of all clients of this process, by client name, such as "tool 'search'"."""
    return merge_stats({client.name: client.stats()} for client in list(CLIENTS))


async def _read_content(body: bytes) -> ParsedJson | ValueError:
    """Return the JSON in `body`, or the error if it is not valid JSON."""
    try:
        return await read_json(body)
    except ValueError as error:
        return error


def _classify_reply(reply: Reply) -> RequestOutcome:
    if reply.status == 503:
        return RequestOutcome.OVERLOADED
    if reply.asks_to_wait:
        return RequestOutcome.BUSY
    return RequestOutcome.FAILED if reply.status >= 500 else RequestOutcome.ANSWERED


# -- access ------------------------------------------------------------------------------------------------------------


WINDOW = 64
MIN_ANSWERS = 16
"""Minimum number of answers before a high share of 403s counts as a rejected key."""
MAX_SHARE = 0.5


class AccessHistory:
    """History of an endpoint's latest WINDOW answers.

    The history decides whether a 403 means that the key is wrong, or only that one call is forbidden.
    """

    def __init__(self, has_answered: bool) -> None:
        """Start an empty history.

        `has_answered` is whether the endpoint has already answered in this run, for example during the job's check.
        """
        self._has_answered = has_answered
        self._forbidden: deque[bool] = deque(maxlen=WINDOW)

    def add(self, *, forbidden: bool) -> None:
        """Record an answer; `forbidden` is whether its status is 403."""
        self._has_answered |= not forbidden
        self._forbidden.append(forbidden)

    @property
    def num_forbidden(self) -> int:
        return sum(self._forbidden)

    @property
    def num_answers(self) -> int:
        """Number of recorded answers, at most WINDOW."""
        return len(self._forbidden)

    @property
    def refuses_key(self) -> bool:
        """Whether a 403 means that the key is wrong, not just that one call is forbidden."""
        if not self._has_answered:
            return True
        return self.num_answers >= MIN_ANSWERS and self.num_forbidden > MAX_SHARE * self.num_answers
