"""What something costs: processor seconds and peak memory. Unlike wall time, they do not depend on the load."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


@contextmanager
def budget(cpu_s: float = 1.0, mib: float = 100.0, *, children: bool = True) -> Iterator[None]:
    """Assert that the block costs this process, and with `children` those that it waits for, at most this much.

    Memory is the highest resident size in the block beyond that before it. A block that would take all of the machine's
    memory ends in MemoryError. The oldest generation of objects is not collected meanwhile: that takes the longer, the
    more modules other tests have imported into this process, up to 0.4 s each time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], 1 << 30)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, hard))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, begun = _status("VmRSS"), _cpu_s(children)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        gc.set_threshold(*thresholds)
    spent, grown = _cpu_s(children) - begun, (_status("VmHWM") - before) / MIB
    assert spent <= cpu_s, f"took {spent:.2f} s of CPU time, {cpu_s:g} s are allowed"
    assert grown <= mib, f"took {grown:.0f} MiB, {mib:g} MiB are allowed"


@contextmanager
def budget_of(pid: int, cpu_s: float = 1.0, mib: float = 100.0) -> Iterator[None]:
    """The same for another process, without its children. The block must wait until that process has done its work."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before, begun = _status("VmRSS", pid), cpu_of(pid)
    yield
    spent, grown = cpu_of(pid) - begun, (_status("VmHWM", pid) - before) / MIB
    assert spent <= cpu_s, f"took {spent:.2f} s of CPU time, {cpu_s:g} s are allowed"
    assert grown <= mib, f"took {grown:.0f} MiB, {mib:g} MiB are allowed"


def cpu_of(pid: int) -> float:
    """Seconds of a processor that a process has used, its threads included."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_s(children: bool) -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + (ended.ru_utime + ended.ru_stime if children else 0.0)


def _status(name: str, pid: int | str = "self") -> int:
    """Bytes of a line of a process's status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
