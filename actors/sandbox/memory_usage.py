"""Memory usage of the processes of one sandbox, measured from outside.

The sum includes private memory, swapped memory, the files of the scratch folder (mapped or not) and the capacity of
socket buffers. The seccomp filter (`agent_rft.actors.sandbox.seccomp`) denies system calls that allocate other kinds of
memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

BUFFER_FILE = "/proc/sys/net/core/wmem_default"
USUAL_BUFFER_BYTES = 212_992


class SandboxMemory(NamedTuple):
    """Memory measurement of the sandbox whose first process is `pid`.

    `socket_bytes` is the capacity of one socket, or 0 to ignore sockets. `scratch` is the scratch folder, or None to
    ignore its files.
    """

    pid: int
    scratch: str | None
    socket_bytes: int

    def exceeds(self, limit_bytes: int) -> bool:
        """Return whether the sandbox exceeds `limit_bytes`. Tries a fast upper bound before the exact value."""
        pids = list_process_tree(self.pid)
        shared = self._socket_bytes() + self._scratch_bytes()
        return shared + resident_bytes(pids) > limit_bytes and shared + memory_bytes(pids, self.scratch) > limit_bytes

    def _socket_bytes(self) -> int:
        """Return an upper bound of the bytes in all sockets, including sockets in transit, which no process owns."""
        if not self.socket_bytes:
            return 0
        with suppress(OSError), open(f"/proc/{self.pid}/net/sockstat") as file:
            return int(file.readline().split()[2]) * self.socket_bytes
        return 0  # the sandbox has just ended

    def _scratch_bytes(self) -> int:
        if self.scratch is None:
            return 0
        with suppress(OSError):
            place = f"/proc/{self.pid}/root{self.scratch}"
            if os.stat(place).st_dev == os.stat(self.scratch).st_dev:
                return 0  # the process has not entered its new root yet
            status = os.statvfs(place)
            return (status.f_blocks - status.f_bfree) * status.f_frsize
        return 0


def read_socket_capacity() -> int:
    """Return the number of bytes that one socket of a socket pair can hold.

    This is twice the size of the socket's buffer. A socket accepts a message while its buffer is not full, and the
    message may be as large as the buffer.
    """
    try:
        with open(BUFFER_FILE) as file:
            return 2 * int(file.read())
    except OSError:  # in a container, where the value cannot be changed
        return 2 * USUAL_BUFFER_BYTES


def list_process_tree(pid: int) -> list[int]:
    """Return the ids of process `pid` and all its descendants."""
    pids = [pid]
    for parent in pids:
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    pids += [int(child) for child in file.read().split()]
        except OSError:
            continue  # the process has just ended
    return pids


def memory_bytes(pids: list[int], scratch: str | None = None) -> int:
    """Return the memory of these processes, counting shared pages once (Pss). If Pss is unreadable, use an upper bound.

    With `scratch`, shared memory is excluded, because the files of the scratch folder are counted separately.
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
            continue  # the process has just ended
    return total


def resident_bytes(pids: list[int]) -> int:
    """Return a cheap upper bound of `memory_bytes`. Shared pages are counted once for each process."""
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/status") as file:  # may have just ended
            fields = ("RssAnon:", "RssShmem:", "VmSwap:")
            total += sum(int(line.split()[1]) for line in file if line.startswith(fields)) << 10
    return total
