"""Usable cores are the least of the quotas of all our control groups and the affinity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_rft.actors.runtime.cpu_cores import count_usable_cores

MACHINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("own_groups", "files", "cores"),
    [
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, MACHINE),
        ("0::/", {"cpu.max": "6400000000 100000"}, MACHINE),
        ("0::/", {}, MACHINE),
        ("0::/a.slice/b.scope", {"a.slice/cpu.max": "100000 100000", "a.slice/b.scope/cpu.max": "max 100000"}, 1),
        ("0::/../elsewhere", {"cpu.max": "100000 100000"}, 1),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu,cpuacct:/docker/1", {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, MACHINE),
        ("1:cpuset:/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, MACHINE),
    ],
)
def test_the_quota_of_a_container_counts(own_groups: str, files: dict[str, str], cores: int, tmp_path: Path) -> None:
    (tmp_path / "own").write_text(f"3:memory:/\n{own_groups}\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    assert count_usable_cores(tmp_path / "groups", tmp_path / "own") == cores


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert count_usable_cores(tmp_path, tmp_path / "none") == 1
    finally:
        os.sched_setaffinity(0, allowed)
