"""Which jobs use a shared engine. A job whose lease is not renewed has lost it, and an engine without leases ends.

Time is counted in ticks of the engine's own process: while that is unresponsive, no lease runs out.
"""

from __future__ import annotations

TICK_S = 5.0
LEASE_TICKS = 12
"""How long a job may be silent: a minute."""
IDLE_TICKS = 12
"""How long an engine stays without a job: a minute."""
START_TICKS = 72
"""How long an engine stays for a job that waits for the rest of its resources: six minutes."""


class Leases:
    """The leases of at most `most` jobs at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: dict[str, int] = {}
        self._idle_left = IDLE_TICKS

    def take(self, job: str) -> bool:
        """Whether there was one left for this job."""
        if len(self._left) >= self._most:
            return False
        self._left[job] = LEASE_TICKS
        self._idle_left = IDLE_TICKS
        return True

    def renew(self, job: str) -> None:
        """Let a lease begin again, unless it has ended."""
        if job in self._left:
            self._left[job] = LEASE_TICKS

    def end(self, job: str) -> bool:
        """Give a lease up; whether there was one."""
        self.keep(IDLE_TICKS)
        return self._left.pop(job, None) is not None

    def keep(self, ticks: int) -> None:
        """Stay at least as long without a job, until the next one comes."""
        self._idle_left = max(self._idle_left, ticks)

    def tick(self) -> list[str]:
        """The jobs whose leases have run out now."""
        if not self._left:
            self._idle_left -= 1
        self._left = {job: left - 1 for job, left in self._left.items()}
        late = [job for job, left in self._left.items() if left <= 0]
        for job in late:
            self.end(job)
        return late

    @property
    def are_over(self) -> bool:
        """Whether the engine may end."""
        return not self._left and self._idle_left <= 0
