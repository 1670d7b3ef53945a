"""The driver's side of tool sessions: assigns their owners, reports trouble, and ends all of them with the run.

The dispatcher opens and ends the sessions themselves (`actors/tools/sessions.py`); it outlives engines.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from agent_rft.actors.tools.actor import DispatcherClient
from agent_rft.actors.tools.sessions import CLOSE_S
from agent_rft.errors import CannotStart, EngineFailed, ToolFailed
from agent_rft.events import SessionProblem
from agent_rft.protocols import Emit

NEWS_EVERY_S = 10.0
CLOSE_GRACE_S = 10.0
"""Beyond the dispatcher's own deadline `CLOSE_S`, so that it can still report how many are left."""


class JobSessions:
    """The tool sessions of one run; create it in the run's event loop."""

    def __init__(self, dispatcher: DispatcherClient, journals: Path, emit: Emit) -> None:
        self._dispatcher = dispatcher
        self._where = f"sessions-*.jsonl in {journals} lists them, and resuming the run ends them"
        self._emit = emit
        self._owners: dict[str, str] = {}
        self._incarnations = count(1)
        self._watch = asyncio.create_task(self._pass_on_news())

    def new_owner(self, engine: str) -> str:
        """A new owner name for the engine that starts under the name `engine`."""
        self._owners[engine] = f"{engine}/{next(self._incarnations)}"
        return self._owners[engine]

    def lost(self, engine: str) -> None:
        """End the sessions of the rollouts on an engine that is gone."""
        self._dispatcher.end_sessions_of(self._owners[engine], EngineFailed.reason)

    async def close(self) -> None:
        """End all open sessions. Call this when no rollout is running any more."""
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
                continue  # the dispatcher is restarting, or the job is ending

    async def _news(self) -> None:
        for text in await self._dispatcher.session_news():
            self._emit(SessionProblem(detail=text))
