"""A real job with real engines, killed three times and robbed of its learner: nothing is sampled or trained twice."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import LearnerRestarted, UpdatesReplayed
from examples.ledger.services import services
from tests.chaos.jobs import ledger_job
from tests.e2e.command import AGENT_RFT, kill, marked, processes, processes_left

STEPS, BATCH, KILLS = 6, 8, 3


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # four starts of the engine
def test_a_job_that_is_killed_three_times_and_loses_its_learner_trains_each_row_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown if the test fails
    draw = random.Random(seed)
    run = tmp_path / "run"
    command = [AGENT_RFT, "train", str(ledger_job(tmp_path, STEPS, BATCH)), "--run-folder", str(run)]
    with services() as environment:
        for _ in range(KILLS):
            with subprocess.Popen(
                command, env=marked(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process:
                assert process.stdout is not None
                output = []
                for line in process.stdout:
                    output.append(line)
                    if "step " in line and f"/{STEPS}:" in line:
                        time.sleep(draw.uniform(0, 3))
                        for one in processes():
                            one.kill()
            assert process.returncode == -signal.SIGKILL, "".join(output)
            assert processes_left() == []
        with subprocess.Popen(
            command, env=marked(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            output = []
            for line in process.stdout:
                output.append(line)
                if "training" in line and not any("restarts from the last checkpoint" in earlier for earlier in output):
                    kill("RankProcess")
            assert process.wait() == 0, "".join(output)
        assert processes_left() == []
    folder = RunFolder(run)
    assert [metrics["step"] for metrics in folder.metrics()] == list(range(1, STEPS + 1))
    groups = [group for step in range(1, STEPS + 1) for group in folder.read_groups(f"step-{step:06d}")]
    rows = Counter((group.request.epoch, group.request.task.row_id) for group in groups)
    assert max(rows.values()) == 1
    kinds = [type(event.event) for event in folder.events()]
    assert kinds.count(UpdatesReplayed) == KILLS
    assert kinds.count(LearnerRestarted) == 1
