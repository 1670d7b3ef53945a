"""Two drivers and one checkpoint store: a suspended one that wakes up changes none of its successor's checkpoints."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from agent_rft.cluster.records.checkpoint_store import CheckpointStore
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import CheckpointUploaded
from agent_rft.trainer.loop.checkpoint import latest_checkpoint, list_checkpoints
from tests.chaos.jobs import process_tree, read_to_end, read_until, training
from tests.e2e.command import marked, processes_left
from tests.support.held_files import plugin
from tests.support.supervised_job import supervised_job

STEPS, INTERVAL = 80, 20
NAMES = [f"step-{step:06d}" for step in range(INTERVAL, STEPS + 1, INTERVAL)]
DEADLINE_S = 240.0


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for_file(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Wait until a file exists, while a process runs."""
    deadline = time.monotonic() + DEADLINE_S
    while not list(folder.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline, pattern
        time.sleep(0.01)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_driver_that_is_suspended_during_an_upload_changes_no_checkpoint_of_its_successor(tmp_path: Path) -> None:
    """It is suspended between the files of step 40 and their manifest, and its successor uploads step 40, too."""
    stored, gate, run = tmp_path / "store", tmp_path / "gate", tmp_path / "runs" / "imitated"
    _, middle, _, last = NAMES
    job = supervised_job(tmp_path, STEPS, INTERVAL, f"held://{stored}")
    environment = marked(os.environ | plugin(tmp_path / "plugins", gate))
    options = ("--config", str(tmp_path / "agent-rft.yaml"))
    store = CheckpointStore(f"file://{stored}")
    for step in (middle, last):
        (gate / step).touch()
    with training(job, run, environment, *options) as suspended:
        wait_for_file(gate, f"{middle}.*", suspended)
        family = process_tree(suspended)
        for one in family:
            one.suspend()
        newest = latest_checkpoint(RunFolder(run).checkpoints)
        assert newest is not None and newest[0].name == middle, "it was suspended too late"
        (gate / middle).unlink()
        with training(job, run, environment, *options) as successor:
            wait_for_file(gate, f"{last}.*", successor)
            assert store.list_complete("imitated") == NAMES[:3]
            before = files_in(stored / "imitated")
            for one in reversed(family):
                one.resume()
            read_until(suspended, "another process has taken over")
            assert read_to_end(suspended, 60)[0] == 1
            after = files_in(stored / "imitated")
            assert {name: after.get(name) for name in before} == before
            assert store.fetch(tmp_path / "early" / "imitated") == NAMES[:3]
            (gate / last).unlink()
            code, output = read_to_end(successor, 120)
            assert code == 0, output
    assert processes_left() == []
    local = RunFolder(run).checkpoints
    assert (
        store.fetch(tmp_path / "late" / "imitated") == [path.name for path, _ in list_checkpoints(local)] == NAMES[1:]
    )
    assert files_in(tmp_path / "late" / "imitated" / "checkpoints") == files_in(local)
    assert [path.name for path in (stored / "imitated").glob("owner-*.json")] == ["owner-000002.json"]
    copied = [event.step for event in RunFolder(run).events() if isinstance(event.event, CheckpointUploaded)]
    assert copied == [INTERVAL, 2 * INTERVAL, 3 * INTERVAL, STEPS]
