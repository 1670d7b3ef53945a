"""A rollout's session at the user's server: started once, and ended on every path.

Once a start request may have been sent, an end request is sent until the server has answered it, whatever happens to
the rollout, its engine or this process (`session_journal`). Each session runs in its own task of the SessionBook, so a
cancelled rollout cannot leave one open, and no end request overtakes its start request. The server may get an end
request for a session that it does not know; any answer, such as a 404, confirms the end.
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

from agent_rft.actors.endpoints.answer import HttpAnswer
from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer, failed
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.actors.tools.session_journal import SessionJournal
from agent_rft.errors import EndpointRefused, RftError, ToolFailed
from agent_rft.spec.endpoints import SessionSpec
from agent_rft.spec.operator.config import NOTHING_ALLOWED, Operator

WARM_UP_STARTS = 4
"""The number of concurrent start requests at first; each success raises it by one, up to `max_concurrency`."""
END_PAUSES_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses between attempts to end a session while the server does not answer; the last one repeats forever."""
CLOSE_S = 60.0
CLOSE_TRIES = 3
CLOSE_PAUSE_S = 0.5
"""While the book closes, a failed end request is repeated this often (each time with all retries), with this pause."""
NEWS_S = 60.0
"""The least time between two events about failed end requests."""
RESTARTED = "job_restarted"
LOG = logging.getLogger(__name__)
REMEMBERED = 10_000
"""How many ends of unknown sessions are remembered: their `start` calls may arrive later."""


@dataclass(slots=True)
class SessionStats:
    """Counts since the start.

    `ended` counts ends that the server has confirmed, `end_failures` failed attempts to end a session; `errors` counts
    failed starts (`start_...`) and ends (`end_...`) by kind.
    """

    started: int = 0
    start_failures: int = 0
    ended: int = 0
    end_failures: int = 0
    recovered: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class _Session:
    """One session.

    `opened` is resolved when it can be used, or fails with the error; `over` gets the reason of its end. `requested`
    says that its start may have reached the server; `refused` that it certainly was not opened, so that no end is sent.
    """

    trace_id: str
    item: dict[str, Any]
    owner: str
    opened: asyncio.Future[None]
    over: asyncio.Future[str]
    requested: bool = False
    refused: bool = False
    life: asyncio.Task[None] | None = None
    starting: asyncio.Timeout | None = None
    pause: asyncio.Future[None] | None = None

    def failed(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # otherwise asyncio logs it if the rollout is gone

    def ends(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)


class SessionBook:
    """The sessions of a job.

    `journal` is the file that keeps them across restarts; sessions that an earlier process left open are ended first.
    `tell` gets messages for the user.
    """

    def __init__(
        self,
        spec: SessionSpec,
        journal: Path | None = None,
        operator: Operator = NOTHING_ALLOWED,
        *,
        tell: Callable[[str], None] = LOG.warning,
        timing: Timing = REAL_TIMING,
        signer: Signer | None = None,
        tracer: Tracer = NO_TRACES,
        has_answered: bool = False,
    ) -> None:
        """Open the journal; sessions of an earlier process are ended at the first call of a method.

        `has_answered`: see EndpointClient.

        Raises:
            UserError: a URL or a header is invalid.
            OSError: the journal cannot be written.
        """
        client = partial(
            EndpointClient,
            failure=ToolFailed,
            timing=timing,
            allowed_networks=operator.reachable,
            signer=signer,
            has_answered=has_answered,
        )
        at_once = spec.model_copy(update={"rate_limit_per_s": None})
        self._starts = None if spec.start_url is None else client("session start", spec.start_url, spec)
        self._ends = None if spec.end_url is None else client("session end", spec.end_url, at_once)
        self._journal = None if journal is None else SessionJournal(journal)
        self._left_open = [] if self._journal is None else self._journal.open
        self._tell = tell
        self._tracer = tracer
        self._timing = timing
        self._sessions: dict[str, _Session] = {}
        self._max_open: AbstractAsyncContextManager[Any] = (
            nullcontext() if spec.max_open is None else asyncio.Semaphore(spec.max_open)
        )
        # Starts are queued here and not in the client, so that the wait does not count against `timeout_s`.
        self._max_at_once = spec.max_concurrency
        self._at_once = min(WARM_UP_STARTS, spec.max_concurrency)
        self._starting = asyncio.Semaphore(self._at_once)
        self._ending = asyncio.Semaphore(spec.max_concurrency)
        self._gap_s = 0.0 if spec.rate_limit_per_s is None else 1 / spec.rate_limit_per_s
        self._next_start = timing.clock()
        self._lost_owners: set[str] = set()
        self._ended_early: dict[str, None] = {}
        self._next_news = timing.clock()
        self._closed = False
        self._stats = SessionStats()
        self.refused_end = ""
        """The latest answer to an end request other than a 2xx, for messages."""

    async def start(self, trace_id: str, item: dict[str, Any], owner: str = "") -> None:
        """Open the session of one rollout; returns when it can be used. Cancelling this ends the session.

        It waits while `max_open` sessions are open.

        Raises:
            ToolFailed: it could not be opened, or was ended meanwhile.
            EndpointRefused: the server refuses its key.
        """
        self._recover()
        if self._closed or owner in self._lost_owners or trace_id in self._ended_early:
            raise ToolFailed(f"cannot open a session for {trace_id}: it has already ended", kind="session_over")
        if trace_id in self._sessions:
            raise ValueError(f"{trace_id} already has a session")
        session = self._new(trace_id, item, owner)
        try:
            await asyncio.shield(session.opened)
        except asyncio.CancelledError:
            self.end(trace_id, "cancelled")
            raise

    def end(self, trace_id: str, reason: str) -> None:
        """End a rollout's session in the background; of several calls, the first reason counts."""
        self._recover()
        session = self._sessions.get(trace_id)
        if session is None:
            self._ended_early[trace_id] = None
            if len(self._ended_early) > REMEMBERED:
                del self._ended_early[next(iter(self._ended_early))]
            return
        session.ends(reason)
        if not session.requested and session.life is not None:
            session.life.cancel()

    def end_owner(self, owner: str, reason: str) -> None:
        """End all sessions of an owner that is gone for good, and open no more for it."""
        self._recover()
        self._lost_owners.add(owner)
        for session in [session for session in self._sessions.values() if session.owner == owner]:
            self.end(session.trace_id, reason)

    def is_open(self, trace_id: str) -> bool:
        """Whether the rollout may use its session."""
        session = self._sessions.get(trace_id)
        if session is None or session.over.done() or not session.opened.done():
            return False
        return session.opened.exception() is None

    def stats(self) -> dict[str, Any]:
        """SessionStats as plain values, and the current numbers of `open` and `waiting` sessions.

        A session is open from its start request until the server has confirmed its end.
        """
        opened = sum(session.requested for session in self._sessions.values())
        counts = {**asdict(self._stats), "errors": dict(self._stats.errors)}
        return {**counts, "open": opened, "waiting": len(self._sessions) - opened}

    async def close(self, reason: str, deadline_s: float = CLOSE_S) -> int:
        """End all sessions and open no more; returns by the deadline.

        Returns how many ends the server has not confirmed; these sessions stay in the journal. Start requests in flight
        get half of the time, so that no end overtakes them.
        """
        self._recover()
        self._closed = True
        for session in list(self._sessions.values()):
            self.end(session.trace_id, reason)
            if session.pause is not None:
                session.pause.cancel()
        lives = [session.life for session in self._sessions.values() if session.life is not None]
        if lives:
            _, late = await asyncio.wait(lives, timeout=deadline_s / 2)
            for session in self._sessions.values():
                if session.starting is not None:
                    session.starting.reschedule(asyncio.get_running_loop().time())
            if late:
                await asyncio.wait(late, timeout=deadline_s / 2)
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        for client in (self._starts, self._ends):
            if client is not None:
                await client.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        return len(self._sessions)

    # -- the task of a session -----------------------------------------------------------------------------------------

    def _new(self, trace_id: str, item: dict[str, Any], owner: str) -> _Session:
        loop = asyncio.get_running_loop()
        session = _Session(trace_id, item, owner, loop.create_future(), loop.create_future())
        self._sessions[trace_id] = session
        session.life = loop.create_task(self._live(session))
        session.life.add_done_callback(lambda _: self._task_done(session))
        return session

    def _recover(self) -> None:
        """End the sessions that an earlier process left open."""
        left, self._left_open = self._left_open, []
        for trace_id in left:
            session = self._new(trace_id, {}, "")
            session.requested = True
            session.failed(ToolFailed("the session was opened by an earlier process"))
            session.ends(RESTARTED)
            self._stats.recovered += 1

    async def _live(self, session: _Session) -> None:
        """Open and end one session; may be cancelled only before the start request."""
        async with self._max_open:
            if not session.requested:
                async with self._starting:
                    await self._keep_rate()
                    await self._start(session)
            reason = await session.over
            if session.refused or await self._end(session, reason):
                self._journal_end(session.trace_id)
                del self._sessions[session.trace_id]

    def _task_done(self, session: _Session) -> None:
        if not session.requested:
            self._sessions.pop(session.trace_id, None)
        why = f"the session of {session.trace_id} was ended before it was open"
        session.failed(ToolFailed(why, kind="session_over"))

    async def _keep_rate(self) -> None:
        """Wait until this start request keeps `1 / rate_limit_per_s` seconds from the previous one."""
        now = self._timing.clock()
        start_at = max(now, self._next_start)
        self._next_start = start_at + self._gap_s
        if start_at > now:
            await self._timing.sleep(start_at - now)

    async def _start(self, session: _Session) -> None:
        """Send the start request; a failure goes to the rollout, and the session is then ended at once."""
        session.requested = True
        try:
            self._journal_start(session)
            async with asyncio.timeout(None) as session.starting:
                body = {"type": "session_start", "trace_id": session.trace_id, "item": session.item}
                answer = await self._post(self._starts, body, "start")
            if self._starts is not None and answer is not None and not answer.ok:
                raise self._starts.bad_answer(answer, "a session that is ready must be answered with 200")
        except TimeoutError:
            self._start_failed(session, ToolFailed("session start: all sessions are being ended", kind="session_over"))
        except RftError as error:
            session.refused = session.refused or isinstance(error, EndpointRefused)
            self._start_failed(session, error)
        else:
            self._stats.started += 1
            if not session.opened.done():
                session.opened.set_result(None)
            if self._at_once < self._max_at_once:
                self._at_once += 1
                self._starting.release()
        finally:
            session.starting = None
            session.item = {}  # rows may be large, and it is no longer needed

    def _start_failed(self, session: _Session, error: RftError) -> None:
        self._stats.start_failures += 1
        self._stats.errors[f"start_{error.details.get('kind', 'other')}"] += 1
        session.failed(error)
        session.ends("start_failed")

    async def _end(self, session: _Session, reason: str) -> bool:
        """Send end requests until the server confirms; False if the book is closed before that."""
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
        """Send one end request; returns whether the server answered, in whatever way."""
        body = {"type": "session_end", "trace_id": trace_id, "reason": reason}
        try:
            async with self._ending:
                answer = await self._post(self._ends, body, "end")
        except RftError as error:
            self._stats.end_failures += 1
            self._stats.errors[f"end_{error.details.get('kind', 'other')}"] += 1
            now = self._timing.clock()
            if now >= self._next_news:
                self._next_news = now + NEWS_S
                self._tell(f"sessions that are over cannot be ended, which is tried again and again: {error.message}")
            return False
        if self._ends is not None and answer is not None and not answer.ok:
            self._stats.errors[f"end_{answer.status}"] += 1
            self.refused_end = self._ends.described(answer)
        return True

    async def _post(self, client: EndpointClient | None, body: dict[str, Any], what: str) -> HttpAnswer | None:
        """The answer; None if the job has no such URL, so that there is nothing to send."""
        if client is None:
            return None
        trace_id = body["trace_id"]
        with self._tracer.span(trace_id, f"session {what}") as span:
            answer = await client.post(body, f"{trace_id}/{what}")
            if not answer.ok:
                failed(span, str(answer.status))
        return answer

    def _journal_start(self, session: _Session) -> None:
        """Record the session in the journal.

        Raises:
            ToolFailed: the journal cannot be written, so the session is not requested.
        """
        if self._journal is None:
            return
        try:
            self._journal.started(session.trace_id)
        except OSError as error:
            session.refused = True
            raise ToolFailed(
                f"no session was opened: its journal cannot be written ({error.strerror})", kind="disk"
            ) from None

    def _journal_end(self, trace_id: str) -> None:
        if self._journal is None:
            return
        try:
            self._journal.ended(trace_id)
        except OSError as error:
            self._tell(f"the journal of sessions cannot be written ({error.strerror})")
