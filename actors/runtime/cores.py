"""The CPU cores that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Return the number of cores: the container's CPU quota, or those of the process's affinity if they are fewer.

    Without either, the affinity has all cores of the machine. A quota of 1.5 cores counts as 1, as in Ray.
    """
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *_quotas(cgroups, own_groups)])))


def _quotas(cgroups: Path, own_groups: Path) -> Iterator[float]:
    """The limits in cores of our control groups and of the groups around them, of version 2 and of version 1."""
    with suppress(OSError):
        for line in own_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                for folder in _around(cgroups, path):
                    with suppress(OSError, ValueError):  # no limit here, or "max"
                        quota, period = (folder / "cpu.max").read_text().split()
                        yield int(quota) / int(period)
            elif "cpu" in controllers.split(","):
                for folder in _around(cgroups / "cpu", path):
                    with suppress(OSError):
                        limit = int((folder / "cpu.cfs_quota_us").read_text())
                        if limit > 0:  # -1: no limit
                            yield limit / int((folder / "cpu.cfs_period_us").read_text())


def _around(root: Path, path: str) -> list[Path]:
    """The folder at `path` and those above it. In a container it may not exist, and the container's is the root."""
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
