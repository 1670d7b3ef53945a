"""A rollout's session at the user's server: told once that it opens, and on every path that it ended.

What must hold: once a start may have been on the wire, an end is told, until the server has heard it - whatever became
of the rollout, of its engine or of this process (`session_journal`). Each session lives in a task of the book's own,
so no cancelled rollout can leave one behind, and no end overtakes its start. A session that the server does not know
may be ended too; the server says 404 or anything else, and has heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from actors.endpoints.answer import HttpAnswer, status_text
from actors.endpoints.client import EndpointClient
from actors.runtime.timing import REAL_TIMING, Timing
from actors.tools.session_journal import SessionJournal
from trainer.errors import EndpointRefused, RftError, ToolFailed
from trainer.spec.endpoints import SessionSpec
from trainer.spec.operator import NOTHING_ALLOWED, Operator

WARM_UP_STARTS = 4
"""So many starts are on the wire at once in the beginning; each that succeeds lets one more out at a time."""
END_PAUSES_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Between the tries to end a session that the server does not answer for; the last one for ever."""
CLOSE_S = 60.0
CLOSE_TRIES = 3
CLOSE_PAUSE_S = 0.5
"""While the book closes, an end that fails is tried so often (each time with all retries), with so short a pause."""
NEWS_S = 60.0
"""Between two events on ends that fail."""
RESTARTED = "job_restarted"
LOG = logging.getLogger(__name__)
REMEMBERED = 10_000
"""So many ends of sessions that were never asked for are kept in mind: their starts may have been overtaken."""


@dataclass(slots=True)
class SessionStats:
    """Counts since the start. `ended`: the server has heard. `end_failures`: tries to end one that came to nothing.
    `errors`: failed starts (`start_...`) and ends (`end_...`) by kind.
    """

    started: int = 0
    start_failures: int = 0
    ended: int = 0
    end_failures: int = 0
    recovered: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class _Session:
    """`opened` is set when it can be used, or to the error; `over` to the reason of its end. `begun`: its start may
    have reached the server. `refused`: it certainly came to nothing, so no end is told.
    """

    trace_id: str
    item: dict[str, Any]
    owner: str
    opened: asyncio.Future[None]
    over: asyncio.Future[str]
    begun: bool = False
    refused: bool = False
    life: asyncio.Task[None] | None = None
    starting: asyncio.Timeout | None = None
    pause: asyncio.Future[None] | None = None

    def failed(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # else asyncio complains where the rollout is gone

    def ends(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)


class SessionBook:
    """The sessions of a job. `journal`: the file that knows them over restarts; what an earlier process left open in it
    is ended first. `tell` takes what the user should hear of, with the endpoint's name.
    """

    def __init__(
        self,
        spec: SessionSpec,
        journal: Path | None = None,
        operator: Operator = NOTHING_ALLOWED,
        *,
        tell: Callable[[str], None] = LOG.warning,
        timing: Timing = REAL_TIMING,
    ) -> None:
        """Raises:
        UserError: a URL or a header cannot be used.
        OSError: the journal cannot be written.
        """
        self._starts = _client("session start", spec.start_url, spec, operator, timing)
        unhurried = spec.model_copy(update={"rate_limit_per_s": None})
        self._ends = _client("session end", spec.end_url, unhurried, operator, timing)
        self._journal = None if journal is None else SessionJournal(journal)
        self._left_open = [] if self._journal is None else self._journal.open
        self._tell = tell
        self._timing = timing
        self._sessions: dict[str, _Session] = {}
        self._places: AbstractAsyncContextManager[Any] = (
            nullcontext() if spec.max_open is None else asyncio.Semaphore(spec.max_open)
        )
        # Turns are taken here and not in the client, so that waiting for one is not taken from `timeout_s`.
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

    async def start(self, trace_id: str, item: dict[str, Any], owner: str = "") -> None:
        """Returns when the session of one rollout can be used; waits for a place first. Cancelled at any moment, it
        is ended.

        Raises:
            ToolFailed: it could not be opened, or was ended meanwhile.
            EndpointRefused: the server answered 401 or 403.
        """
        self._recover()
        if self._closed or owner in self._lost_owners or trace_id in self._ended_early:
            raise ToolFailed(f"no session is opened for {trace_id}: it has ended already", kind="session_over")
        if trace_id in self._sessions:
            raise ValueError(f"{trace_id} has a session already")
        session = self._new(trace_id, item, owner)
        try:
            await asyncio.shield(session.opened)
        except asyncio.CancelledError:
            self.end(trace_id, "cancelled")
            raise

    def end(self, trace_id: str, reason: str) -> None:
        """The rollout has ended: returns at once, the book sees to the rest. Told twice, the first reason counts."""
        self._recover()
        session = self._sessions.get(trace_id)
        if session is None:
            self._ended_early[trace_id] = None
            if len(self._ended_early) > REMEMBERED:
                del self._ended_early[next(iter(self._ended_early))]
            return
        session.ends(reason)
        if not session.begun and session.life is not None:
            session.life.cancel()

    def end_owner(self, owner: str, reason: str) -> None:
        """End all sessions of an owner that is gone for good; it gets no more."""
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
        """SessionStats as plain values, and how many are `open` (asked for, and the server has not heard of an end)
        and `waiting` (for a place or a turn) now.
        """
        opened = sum(session.begun for session in self._sessions.values())
        counts = {**asdict(self._stats), "errors": dict(self._stats.errors)}
        return {**counts, "open": opened, "waiting": len(self._sessions) - opened}

    async def close(self, reason: str, deadline_s: float = CLOSE_S) -> int:
        """End all sessions and take no more. Returns, by the deadline, how many the server has not heard of: these
        stay in the journal. Half of the time is left to starts that are on the wire, so that no end overtakes them.
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

    # -- a session's life ----------------------------------------------------------------------------------------------

    def _new(self, trace_id: str, item: dict[str, Any], owner: str) -> _Session:
        loop = asyncio.get_running_loop()
        session = _Session(trace_id, item, owner, loop.create_future(), loop.create_future())
        self._sessions[trace_id] = session
        session.life = loop.create_task(self._live(session))
        session.life.add_done_callback(lambda _: self._lived(session))
        return session

    def _recover(self) -> None:
        """End what an earlier process left open."""
        left, self._left_open = self._left_open, []
        for trace_id in left:
            session = self._new(trace_id, {}, "")
            session.begun = True
            session.failed(ToolFailed("the session was opened by an earlier process"))
            session.ends(RESTARTED)
            self._stats.recovered += 1

    async def _live(self, session: _Session) -> None:
        """From the wait for a place, in which alone it may be cancelled, to the end that the server has heard."""
        async with self._places:
            if not session.begun:
                async with self._starting:
                    await self._turn()
                    await self._start(session)
            reason = await session.over
            if session.refused or await self._end(session, reason):
                self._journal_end(session.trace_id)
                del self._sessions[session.trace_id]

    def _lived(self, session: _Session) -> None:
        if not session.begun:
            self._sessions.pop(session.trace_id, None)
        why = f"the session of {session.trace_id} was ended before it was open"
        session.failed(ToolFailed(why, kind="session_over"))

    async def _turn(self) -> None:
        """Starts keep `1 / rate_limit_per_s` apart."""
        now = self._timing.clock()
        turn = max(now, self._next_start)
        self._next_start = turn + self._gap_s
        if turn > now:
            await self._timing.sleep(turn - now)

    async def _start(self, session: _Session) -> None:
        """Ask for it. What fails on the way is the rollout's affair; the session is then to be ended at once."""
        session.begun = True
        try:
            self._journal_start(session)
            async with asyncio.timeout(None) as session.starting:
                body = {"type": "session_start", "trace_id": session.trace_id, "item": session.item}
                answer = await _post(self._starts, body, f"{session.trace_id}/start")
            if answer is not None and not answer.ok:
                raise ToolFailed(f"session start failed: it answered {status_text(answer.status)}", kind="bad_answer")
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
            session.item = {}  # rows may be large, and the server has it now

    def _start_failed(self, session: _Session, error: RftError) -> None:
        self._stats.start_failures += 1
        self._stats.errors[f"start_{error.details.get('kind', 'other')}"] += 1
        session.failed(error)
        session.ends("start_failed")

    async def _end(self, session: _Session, reason: str) -> bool:
        """Tell the server until it has heard. False: the book is closed and the server has not."""
        failures = last_failures = 0
        while not await self._heard(session.trace_id, reason):
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

    async def _heard(self, trace_id: str, reason: str) -> bool:
        """Whether the server has heard of the end."""
        body = {"type": "session_end", "trace_id": trace_id, "reason": reason}
        try:
            async with self._ending:
                answer = await _post(self._ends, body, f"{trace_id}/end")
        except RftError as error:
            self._stats.end_failures += 1
            self._stats.errors[f"end_{error.details.get('kind', 'other')}"] += 1
            now = self._timing.clock()
            if now >= self._next_news:
                self._next_news = now + NEWS_S
                self._tell(f"sessions that are over cannot be ended, which is tried again and again: {error.message}")
            return False
        if answer is not None and not answer.ok:
            self._stats.errors[f"end_{answer.status}"] += 1
        return True

    def _journal_start(self, session: _Session) -> None:
        """Raises:
        ToolFailed: it cannot be written, so the session is not asked for.
        """
        if self._journal is None:
            return
        try:
            self._journal.started(session.trace_id)
        except OSError as error:
            session.refused = True
            raise ToolFailed(f"no session was opened: its journal cannot be written ({error})", kind="disk") from None

    def _journal_end(self, trace_id: str) -> None:
        if self._journal is None:
            return
        try:
            self._journal.ended(trace_id)
        except OSError as error:
            self._tell(f"the journal of sessions cannot be written ({error})")


def _client(what: str, url: str | None, spec: SessionSpec, operator: Operator, timing: Timing) -> EndpointClient | None:
    if url is None:
        return None
    return EndpointClient(what, url, spec, ToolFailed, timing, allowed_networks=operator.allowed_networks)


async def _post(client: EndpointClient | None, body: dict[str, Any], key: str) -> HttpAnswer | None:
    """None where the job names no such URL: then nothing is to be told."""
    return None if client is None else await client.post(body, key)
