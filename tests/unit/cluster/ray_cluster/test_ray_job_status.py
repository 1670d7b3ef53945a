"""A process recognizes that it runs as a Ray job, and warns if a stop would not leave time for its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from agent_rft.cluster.planning.cluster_plan import StopTime
from agent_rft.cluster.ray_cluster.ray_job_status import (
    RayJobStatus,
    check_run_folder,
    check_stop_wait,
    find_submission_id,
)
from agent_rft.events import PhaseStarted, StepDone
from tests.support.events import run_event

RAY_JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {"job_submission_id": "ledger-7"}})}


def test_only_a_submitted_job_has_a_submission_id() -> None:
    assert find_submission_id(RAY_JOB) == "ledger-7"
    assert find_submission_id({}) is None


def test_a_stop_that_kills_too_soon_is_warned_of_with_a_fix() -> None:
    warning = check_stop_wait(None, RAY_JOB)
    assert warning is not None
    assert "after 3 s" in warning
    assert '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' in warning
    assert check_stop_wait(None, RAY_JOB | {"RAY_JOB_STOP_WAIT_TIME_S": "60"}) is None
    assert check_stop_wait(None, {}) is None


def test_a_large_checkpoint_needs_more_time() -> None:
    environment = RAY_JOB | {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
    assert check_stop_wait(StopTime(1_000_000, write_bytes_per_s=1e9), environment) is None
    warning = check_stop_wait(StopTime(8_000_000_000, write_bytes_per_s=1e9), environment)
    assert warning is not None
    assert "after 60 s" in warning and '"RAY_JOB_STOP_WAIT_TIME_S": "150"' in warning  # 128 GB at 1 GB/s, and a margin


async def test_outside_a_ray_job_nothing_is_written() -> None:
    status = RayJobStatus("run")
    status.handle_event(run_event(PhaseStarted(phase="actors", detail="engines")))
    status.handle_event(run_event(StepDone(step=1, total_steps=3, metrics={"step": 1.0})))
    await status.stop()


def test_a_run_folder_in_rays_copy_of_the_working_directory_is_warned_of(tmp_path: Path) -> None:
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1" / "runs" / "mine"
    assert "--runs" in str(check_run_folder(copy))
    assert check_run_folder(tmp_path / "runs" / "mine") is None
