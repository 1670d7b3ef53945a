"""Tool sessions of rollouts at the user's server: each session is started once, and always ended.

If the server may have received a start request, end requests are repeated until the server answers, even if the
rollout, its engine or this process dies (see `session_journal`). Each session has a separate asyncio task, so a
cancelled rollout cannot leave its session open, and the end request never arrives before the start request. The server
may get an end request for an unknown session; any answer, such as a 404, confirms the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.http_response import HttpResponse
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer, mark_failed
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.actors.tools.session_journal import ToolSessionJournal
from agent_rft.errors import EndpointRefused, RftError, ToolFailed
from agent_rft.spec.endpoints import SessionSpec
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig

WARM_UP_STARTS = 4
"""Initial limit of concurrent start requests; each success raises it by one, up to `max_concurrency`."""
END_PAUSES_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses between attempts to end a session while the server does not answer; the last pause repeats forever."""
CLOSE_S = 60.0
CLOSE_TRIES = 3
"""Maximum attempts to end a session during `ToolSessions.close`; each attempt includes all retries of the client."""
CLOSE_PAUSE_S = 0.5
"""Pause, in seconds, between the CLOSE_TRIES attempts."""
MIN_MESSAGE_INTERVAL_S = 60.0
"""Minimum time between two events about failed end requests."""
RESTART_REASON = "job_restarted"
LOG = logging.getLogger(__name__)
MAX_ENDED_EARLY = 10_000
"""Maximum number of recorded sessions whose `end` call arrived before their `start` call."""


@dataclass(slots=True)
class ToolSessionStats:
    """Session counters of one process.

    `ended` counts ends that the server confirmed, and `end_failures` counts failed attempts to end a session.
    `recovered` counts sessions that an earlier process left open. `errors` counts failed requests by kind: `start_...`
    for start requests, and `end_...` for end requests.
    """

    started: int = 0
    start_failures: int = 0
    ended: int = 0
    end_failures: int = 0
    recovered: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class _Session:
    """State of one session.

    `opened` completes when the session can be used, or fails with the error. `end_reason` completes when the session
    must end. `requested` is True once the start request may have reached the server. `refused` is True if the server
    certainly did not open the session, so that no end request is sent.
    """

    trace_id: str
    item: dict[str, Any]
    owner: str
    opened: asyncio.Future[None]
    end_reason: asyncio.Future[str]
    requested: bool = False
    refused: bool = False
    task: asyncio.Task[None] | None = None
    start_timeout: asyncio.Timeout | None = None
    pause: asyncio.Future[None] | None = None

    def fail(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # mark it as retrieved, or asyncio logs it if no rollout waits

    def request_end(self, reason: str) -> None:
        if not self.end_reason.done():
            self.end_reason.set_result(reason)


class ToolSessions:
    """The tool sessions of a job.

    `journal` is the file that records open sessions; sessions that an earlier process left open are ended first.
    `on_message` receives messages for the user.
    """

    def __init__(
        self,
        spec: SessionSpec,
        journal: Path | None = None,
        operator: OperatorConfig = DEFAULT_CONFIG,
        *,
        on_message: Callable[[str], None] = LOG.warning,
        timing: Timing = REAL_TIMING,
        signer: Signer | None = None,
        tracer: Tracer = NO_TRACES,
        has_answered: bool = False,
    ) -> None:
        """Open the journal.

        The first call of `start`, `end`, `end_owner` or `close` ends the sessions that an earlier process left open.
        `has_answered` is passed to EndpointClient.

        Raises:
            UserError: A URL or a header is invalid.
            OSError: The journal cannot be written.
        """
        client = partial(
            EndpointClient,
            failure=ToolFailed,
            timing=timing,
            allowed_networks=operator.allowed_destinations,
            signer=signer,
            has_answered=has_answered,
        )
        without_rate_limit = spec.model_copy(update={"rate_limit_per_s": None})
        self._starts = None if spec.start_url is None else client("session start", spec.start_url, spec)
        self._ends = None if spec.end_url is None else client("session end", spec.end_url, without_rate_limit)
        self._journal = None if journal is None else ToolSessionJournal(journal)
        self._left_open = [] if self._journal is None else self._journal.open_sessions
        self._on_message = on_message
        self._tracer = tracer
        self._timing = timing
        self._sessions: dict[str, _Session] = {}
        self._max_open: AbstractAsyncContextManager[Any] = (
            nullcontext() if spec.max_open is None else asyncio.Semaphore(spec.max_open)
        )
        # Start requests queue here instead of in the client, so that the wait does not count against `timeout_s`.
        self._max_start_limit = spec.max_concurrency
        self._start_limit = min(WARM_UP_STARTS, spec.max_concurrency)
        self._starting = asyncio.Semaphore(self._start_limit)
        self._ending = asyncio.Semaphore(spec.max_concurrency)
        self._gap_s = 0.0 if spec.rate_limit_per_s is None else 1 / spec.rate_limit_per_s
        self._next_start = timing.clock()
        self._lost_owners: set[str] = set()
        self._ended_early: dict[str, None] = {}
        self._next_message_at = timing.clock()
        self._closed = False
        self._stats = ToolSessionStats()
        self.refused_end = ""
        """Description of the latest failed answer (status other than 2xx) to a request that ends a session."""

    async def start(self, trace_id: str, item: dict[str, Any], owner: str = "") -> None:
        """Open a rollout's session, and return when it can be used. Cancelling this call ends the session.

        Waits while `max_open` sessions are open.

        Raises:
            ToolFailed: The session could not be opened, or was ended before it was open.
            EndpointRefused: The server refuses the key.
        """
        self._recover()
        if self._closed or owner in self._lost_owners or trace_id in self._ended_early:
            raise ToolFailed(f"cannot open a session for {trace_id}: the rollout has ended", kind="session_over")
        if trace_id in self._sessions:
            raise ValueError(f"{trace_id} already has a session")
        session = self._create_session(trace_id, item, owner)
        try:
            await asyncio.shield(session.opened)
        except asyncio.CancelledError:
            self.end(trace_id, "cancelled")
            raise

    def end(self, trace_id: str, reason: str) -> None:
        """End a rollout's session in the background. If called several times, the first reason is used."""
        self._recover()
        session = self._sessions.get(trace_id)
        if session is None:
            self._ended_early[trace_id] = None
            if len(self._ended_early) > MAX_ENDED_EARLY:
                del self._ended_early[next(iter(self._ended_early))]
            return
        session.request_end(reason)
        if not session.requested and session.task is not None:
            session.task.cancel()

    def end_owner(self, owner: str, reason: str) -> None:
        """End all sessions of an owner that has died, and open no more sessions for this owner."""
        self._recover()
        self._lost_owners.add(owner)
        for session in [session for session in self._sessions.values() if session.owner == owner]:
            self.end(session.trace_id, reason)

    def is_open(self, trace_id: str) -> bool:
        """Return whether the rollout may use its session."""
        session = self._sessions.get(trace_id)
        if session is None or session.end_reason.done() or not session.opened.done():
            return False
        return session.opened.exception() is None

    def stats(self) -> dict[str, Any]:
        """Return the counters of ToolSessionStats, and the current numbers of `open` and `waiting` sessions.

        A session is open from its start request until the server has confirmed its end.
        """
        opened = sum(session.requested for session in self._sessions.values())
        counts = {**asdict(self._stats), "errors": dict(self._stats.errors)}
        return {**counts, "open": opened, "waiting": len(self._sessions) - opened}

    async def close(self, reason: str, deadline_s: float = CLOSE_S) -> int:
        """End all sessions within `deadline_s`, and open no more.

        Returns the number of sessions whose end the server did not confirm; these sessions stay in the journal. The
        method first waits up to half of `deadline_s` for start requests in flight, because the server must not get the
        end request of a session before the start request.
        """
        self._recover()
        self._closed = True
        for session in list(self._sessions.values()):
            self.end(session.trace_id, reason)
            if session.pause is not None:
                session.pause.cancel()
        tasks = [session.task for session in self._sessions.values() if session.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s / 2)
            for session in self._sessions.values():
                if session.start_timeout is not None:
                    session.start_timeout.reschedule(asyncio.get_running_loop().time())
            if late:
                await asyncio.wait(late, timeout=deadline_s / 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in (self._starts, self._ends):
            if client is not None:
                await client.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        return len(self._sessions)

    # -- the task of a session -----------------------------------------------------------------------------------------

    def _create_session(self, trace_id: str, item: dict[str, Any], owner: str) -> _Session:
        loop = asyncio.get_running_loop()
        session = _Session(trace_id, item, owner, loop.create_future(), loop.create_future())
        self._sessions[trace_id] = session
        session.task = loop.create_task(self._run(session))
        session.task.add_done_callback(lambda _: self._on_task_done(session))
        return session

    def _recover(self) -> None:
        """End the sessions that an earlier process left open."""
        left, self._left_open = self._left_open, []
        for trace_id in left:
            session = self._create_session(trace_id, {}, "")
            session.requested = True
            session.fail(ToolFailed("the session was opened by an earlier process"))
            session.request_end(RESTART_REASON)
            self._stats.recovered += 1

    async def _run(self, session: _Session) -> None:
        """Open one session and end it.

        The task that runs this method may be cancelled only before it sends the start request.
        """
        async with self._max_open:
            if not session.requested:
                async with self._starting:
                    await self._wait_for_rate()
                    await self._start(session)
            reason = await session.end_reason
            if session.refused or await self._end(session, reason):
                self._journal_end(session.trace_id)
                del self._sessions[session.trace_id]

    def _on_task_done(self, session: _Session) -> None:
        if not session.requested:
            self._sessions.pop(session.trace_id, None)
        why = f"the session of {session.trace_id} was ended before it was open"
        session.fail(ToolFailed(why, kind="session_over"))

    async def _wait_for_rate(self) -> None:
        """Wait until `1 / rate_limit_per_s` seconds have passed since the previous start request."""
        now = self._timing.clock()
        start_at = max(now, self._next_start)
        self._next_start = start_at + self._gap_s
        if start_at > now:
            await self._timing.sleep(start_at - now)

    async def _start(self, session: _Session) -> None:
        """Send the start request; if it fails, pass the error to the rollout and end the session immediately."""
        session.requested = True
        try:
            self._journal_start(session)
            async with asyncio.timeout(None) as session.start_timeout:
                body = {"type": "session_start", "trace_id": session.trace_id, "item": session.item}
                answer = await self._post(self._starts, body, "start")
            if self._starts is not None and answer is not None and not answer.ok:
                why = "the server must respond with status 200 once the session is ready"
                raise self._starts.make_bad_answer_error(answer, why)
        except TimeoutError:
            self._record_start_failure(
                session, ToolFailed("the session was not started: the run is ending all sessions", kind="session_over")
            )
        except RftError as error:
            session.refused = session.refused or isinstance(error, EndpointRefused)
            self._record_start_failure(session, error)
        else:
            self._stats.started += 1
            if not session.opened.done():
                session.opened.set_result(None)
            if self._start_limit < self._max_start_limit:
                self._start_limit += 1
                self._starting.release()
        finally:
            session.start_timeout = None
            session.item = {}  # free the row, which may be large

    def _record_start_failure(self, session: _Session, error: RftError) -> None:
        self._stats.start_failures += 1
        self._stats.errors[f"start_{error.details.get('kind', 'other')}"] += 1
        session.fail(error)
        session.request_end("start_failed")

    async def _end(self, session: _Session, reason: str) -> bool:
        """Send end requests until the server answers. Return False if CLOSE_TRIES requests fail during `close`."""
        failures = last_failures = 0
        while not await self._send_end(session.trace_id, reason):
            last_failures += self._closed
            if last_failures == CLOSE_TRIES:
                return False
            pause_s = CLOSE_PAUSE_S if self._closed else END_PAUSES_S[min(failures, len(END_PAUSES_S) - 1)]
            session.pause = asyncio.ensure_future(self._timing.sleep(pause_s))
            failures += 1
            try:
                await asyncio.wait([session.pause])
            finally:
                session.pause.cancel()
                session.pause = None
        self._stats.ended += 1
        return True

    async def _send_end(self, trace_id: str, reason: str) -> bool:
        """Send one end request; return whether the server answered, with any status."""
        body = {"type": "session_end", "trace_id": trace_id, "reason": reason}
        try:
            async with self._ending:
                answer = await self._post(self._ends, body, "end")
        except RftError as error:
            self._stats.end_failures += 1
            self._stats.errors[f"end_{error.details.get('kind', 'other')}"] += 1
            now = self._timing.clock()
            if now >= self._next_message_at:
                self._next_message_at = now + MIN_MESSAGE_INTERVAL_S
                self._on_message(
                    f"requests to end sessions fail and are repeated until the server answers: {error.message}"
                )
            return False
        if self._ends is not None and answer is not None and not answer.ok:
            self._stats.errors[f"end_{answer.status}"] += 1
            self.refused_end = self._ends.describe(answer)
        return True

    async def _post(self, client: EndpointClient | None, body: dict[str, Any], what: str) -> HttpResponse | None:
        """Send a request and return the answer; do nothing and return None if `client` is None."""
        if client is None:
            return None
        trace_id = body["trace_id"]
        with self._tracer.span(trace_id, f"session {what}") as span:
            answer = await client.post(body, f"{trace_id}/{what}")
            if not answer.ok:
                mark_failed(span, str(answer.status))
        return answer

    def _journal_start(self, session: _Session) -> None:
        """Record the session in the journal.

        Raises:
            ToolFailed: The journal cannot be written, so the session must not be requested.
        """
        if self._journal is None:
            return
        try:
            self._journal.record_start(session.trace_id)
        except OSError as error:
            session.refused = True
            raise ToolFailed(
                f"no session was opened: the session journal cannot be written ({error.strerror})", kind="disk"
            ) from None

    def _journal_end(self, trace_id: str) -> None:
        if self._journal is None:
            return
        try:
            self._journal.record_end(trace_id)
        except OSError as error:
            self._on_message(f"the session journal cannot be written ({error.strerror})")
