"""The memory that the processes of one sandbox use, as the launcher sees it from outside.

Counted are private memory, swapped memory, the files of the scratch folder (mapped or not) and what the buffers of
sockets can hold. The filter denies all other memory that outlives its mapping (`agent_rft.actors.sandbox.seccomp`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

BUFFER_FILE = "/proc/sys/net/core/wmem_default"
USUAL_BUFFER_BYTES = 212_992


class Usage(NamedTuple):
    """Measures the sandbox with first process `pid`.

    `socket_bytes` is what one of its sockets can hold, 0 if they are not counted; `scratch` is None if its files are
    not.
    """

    pid: int
    scratch: str | None
    socket_bytes: int

    def exceeds(self, limit_bytes: int) -> bool:
        """Whether the sandbox uses more memory than that; the slow exact sum is made only if a fast bound exceeds."""
        pids = tree(self.pid)
        around = self._socket_bytes() + self._scratch_bytes()
        return around + resident_bytes(pids) > limit_bytes and around + memory_bytes(pids, self.scratch) > limit_bytes

    def _socket_bytes(self) -> int:
        """A bound of what is in sockets, which may belong to no process while they are sent or closed."""
        if not self.socket_bytes:
            return 0
        with suppress(OSError), open(f"/proc/{self.pid}/net/sockstat") as file:
            return int(file.readline().split()[2]) * self.socket_bytes
        return 0  # it has just ended

    def _scratch_bytes(self) -> int:
        if self.scratch is None:
            return 0
        with suppress(OSError):
            place = f"/proc/{self.pid}/root{self.scratch}"
            if os.stat(place).st_dev == os.stat(self.scratch).st_dev:
                return 0  # it has not entered its own root yet
            status = os.statvfs(place)
            return (status.f_blocks - status.f_bfree) * status.f_frsize
        return 0


def socket_bytes() -> int:
    """The most that one socket of a pair holds: its buffer, exceeded by at most one message of that size."""
    try:
        with open(BUFFER_FILE) as file:
            return 2 * int(file.read())
    except OSError:  # in a container; the value cannot be changed there
        return 2 * USUAL_BUFFER_BYTES


def tree(pid: int) -> list[int]:
    """`pid` and its descendants: all of its namespace, since orphans become children of the first process."""
    pids = [pid]
    for parent in pids:
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    pids += [int(child) for child in file.read().split()]
        except OSError:
            continue  # it has just ended
    return pids


def memory_bytes(pids: list[int], scratch: str | None = None) -> int:
    """The memory of these processes, with shared pages counted once (Pss), or more if that is unreadable.

    Mapped files of the scratch folder are left out if that is counted.
    """
    kinds = ("Pss_Anon:", "SwapPss:") if scratch else ("Pss_Anon:", "SwapPss:", "Pss_Shmem:")
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(kinds)) << 10
        except PermissionError:
            total += resident_bytes([pid])
        except OSError:
            continue  # it has just ended
    return total


def resident_bytes(pids: list[int]) -> int:
    """A cheap upper bound of `memory_bytes`: shared pages are counted for each process."""
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/status") as file:  # it may have just ended
            wanted = ("RssAnon:", "RssShmem:", "VmSwap:")
            total += sum(int(line.split()[1]) for line in file if line.startswith(wanted)) << 10
    return total
