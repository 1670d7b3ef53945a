"""The driver's side of sessions: whose they are, what the user hears of them, and that none is left at the end.

They are opened and ended by the dispatcher's book (`actors/tools/sessions.py`), which outlives engines.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from actors.tools.actor import DispatcherClient
from actors.tools.sessions import CLOSE_S
from trainer.errors import CannotStart, EngineFailed, ToolFailed
from trainer.events import SessionProblem
from trainer.protocols import Emit

NEWS_EVERY_S = 10.0
CLOSE_GRACE_S = 10.0
"""The book's own deadline comes first: it says how many are left."""


class JobSessions:
    """Of one run; made in its event loop."""

    def __init__(self, dispatcher: DispatcherClient, journals: Path, emit: Emit) -> None:
        self._dispatcher = dispatcher
        self._where = f"sessions-*.jsonl in {journals} names them, and a resumed run ends them"
        self._emit = emit
        self._owners: dict[str, str] = {}
        self._incarnations = count(1)
        self._watch = asyncio.create_task(self._pass_on_news())

    def new_owner(self, engine: str) -> str:
        """The name of an engine that takes this seat now."""
        self._owners[engine] = f"{engine}/{next(self._incarnations)}"
        return self._owners[engine]

    def lost(self, engine: str) -> None:
        """The engine in this seat is gone: its rollouts' sessions are ended."""
        self._dispatcher.end_sessions_of(self._owners[engine], EngineFailed.reason)

    async def close(self) -> None:
        """End all that is open; call it when no rollout runs any more."""
        self._watch.cancel()
        try:
            async with asyncio.timeout(CLOSE_S + CLOSE_GRACE_S):
                left = await self._dispatcher.close_sessions("job_stopped")
                await self._news()
        except (TimeoutError, ToolFailed, CannotStart) as error:
            self._emit(SessionProblem(detail=f"sessions may still be open; {self._where}: {error}"))
            return
        if left:
            self._emit(SessionProblem(detail=f"{left} sessions could not be ended; {self._where}"))

    async def _pass_on_news(self) -> None:
        while True:
            await asyncio.sleep(NEWS_EVERY_S)
            try:
                await self._news()
            except (ToolFailed, CannotStart):
                continue  # it is being started anew, or the job ends

    async def _news(self) -> None:
        for text in await self._dispatcher.session_news():
            self._emit(SessionProblem(detail=text))
