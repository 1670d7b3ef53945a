"""Number of CPU cores that this process can use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def count_usable_cores(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Return the smaller of the container's CPU quota and the number of cores in the process's CPU affinity.

    By default, the affinity contains all cores of the node. A quota of 1.5 cores counts as 1, as in Ray. The result is
    at least 1.
    """
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *_read_quotas(cgroups, own_groups)])))


def _read_quotas(cgroups: Path, own_groups: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of this process's cgroups (v1 and v2) and their parent groups."""
    with suppress(OSError):
        for line in own_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                for folder in _with_parents(cgroups, path):
                    with suppress(OSError, ValueError):  # no limit here, or "max"
                        quota, period = (folder / "cpu.max").read_text().split()
                        yield int(quota) / int(period)
            elif "cpu" in controllers.split(","):
                for folder in _with_parents(cgroups / "cpu", path):
                    with suppress(OSError):
                        limit = int((folder / "cpu.cfs_quota_us").read_text())
                        if limit > 0:  # -1: no limit
                            yield limit / int((folder / "cpu.cfs_period_us").read_text())


def _with_parents(root: Path, path: str) -> list[Path]:
    """Return the folder at `path` and its parents up to `root`.

    In a container, `path` may not exist; the container's cgroup is then `root`.
    """
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
