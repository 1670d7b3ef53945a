"""The speed at which a checkpoint will be written, measured before a run begins."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from agent_rft.cluster.checks.disk_space import SAMPLE_BYTES, measure_write_speed

MIB = 1 << 20


@pytest.mark.parametrize("checkpoint_bytes", [1, 128 * MIB, 1 << 40])
def test_a_small_file_shows_the_speed_and_is_removed(tmp_path: Path, checkpoint_bytes: int) -> None:
    """At most a sixteenth of a checkpoint is written, and 64 MiB."""
    ticks = count()
    speed = measure_write_speed(tmp_path / "runs", checkpoint_bytes, lambda: next(ticks) / 1000)
    assert speed == pytest.approx(MIB * 1000)  # the clock goes on by a millisecond for each MiB
    assert next(ticks) - 1 == max(1, min(SAMPLE_BYTES, checkpoint_bytes // 16) // MIB)
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_asked_for_half_a_second_only(tmp_path: Path) -> None:
    ticks = count()
    speed = measure_write_speed(tmp_path, 1 << 40, lambda: next(ticks) * 0.2)
    assert speed is not None and speed < 5 * MIB
    assert next(ticks) == 5


def test_a_folder_that_cannot_be_written_has_no_speed(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    assert measure_write_speed(tmp_path / "runs", MIB) is None
