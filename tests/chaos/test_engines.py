"""Faults with real engines: bursts of rollouts, and a job that is killed among them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.grading.grader_pool import GraderPoolActor
from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.rollout.engine_assignment import find_idlest
from agent_rft.actors.rollout.episode import EpisodeSpec
from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.actors.rollout.rollout_worker import RolloutWorker, WorkerConfig
from agent_rft.actors.tools.dispatcher_actor import start_dispatchers
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.events import Event
from agent_rft.spec.job_file import load_job
from tests.chaos.ledger import FaultyLedger, faulty_ledger
from tests.chaos.plan import Burst, Faults, Latency, Plan
from tests.e2e.command import AGENT_RFT, marked, processes, processes_left
from tests.support.builders import group_request, tasks_of
from tests.support.fakes_http import LOCAL
from tests.support.paths import LEDGER

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)

TOOLS = ("tools/list", "tools/search", "tools/cat")
TWO_DISPATCHERS = 2
STEPS, BATCH = 4, 4


@pytest.fixture
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.nightly
async def test_five_hundred_concurrent_rollouts_survive_a_burst_of_429_and_503s(local_ray: None) -> None:
    """On one real engine and two dispatchers.

    For three seconds, half of the tool calls get a 429; a fifth of the others, and of the grades, gets a 503.
    """
    busy = Faults(shares={"503": 0.2}, bursts=(Burst("429", 1.0, 3.0, share=0.5, retry_after_s=1.0),))
    plan = Plan(seed=5, endpoints={**dict.fromkeys(TOOLS, busy), "grade": Faults(shares={"503": 0.2})})
    with faulty_ledger(plan) as faulty:
        job = load_job(LEDGER / "job.yaml", faulty.environment)
        r = job.reinforcement
        graders: Any = GraderPoolActor
        config = WorkerConfig(
            EngineConfig(job.model, "float32", context_length=2048, max_num_seqs=64, seed=0),
            EpisodeSpec("7", r.limits, r.reward, r.max_episode_steps, 2048),
            DEFAULT_DIALECT,
            start_dispatchers(r.tools, LOCAL, TWO_DISPATCHERS),
            graders.remote(r, LOCAL),
        )
        worker = ray.remote(RolloutWorker).options(num_cpus=1, max_concurrency=1000)
        events: list[Event] = []
        canary_limit = CANARY_LIMITS["float32"]
        fleet = Fleet(lambda _: worker.remote(config), 1, find_idlest, canary_limit, r.limits, events.append)
        await fleet.start()
        try:
            tasks = tasks_of(Path(job.training_file))[:63]
            requests = [group_request(i, task=task) for i, task in enumerate(tasks)]
            groups = await asyncio.gather(*(fleet.sample(request) for request in requests))
            counts = await fleet.get_counts()
        finally:
            await fleet.shutdown()
        record = faulty.record()

    assert {len(group.rollouts) for group in groups} == {8}
    assert not any(group.discarded for group in groups)
    account = counts
    assert (
        account["rollout_attempts/started"],
        account["rollout_attempts/graded"],
        account["rollout_attempts/in_flight"],
    ) == (504, 504, 0)
    assert events == []
    calls = [call for group in groups for rollout in group.rollouts for call in rollout.calls]
    seen = {name: record["endpoints"][name] for name in (*TOOLS, "grade") if name in record["endpoints"]}
    answered = sum(len(seen[name]["answered"]) for name in TOOLS if name in seen)
    refused = {"unknown_tool", "malformed_call", "invalid_arguments", "over_budget"}
    sent = [result for g in groups for r_ in g.rollouts for result in r_.results if result.error not in refused]
    assert len(calls) >= len(sent) == answered
    assert len(seen["grade"]["answered"]) == 504
    assert max(count for one in seen.values() for count in one["answered"].values()) == 1
    assert sum(one["faults"].get("429", 0) + one["faults"].get("503", 0) for one in seen.values()) > 200


@pytest.fixture
def faulty() -> Iterator[FaultyLedger]:
    errors = {"503": 0.1, "500": 0.05, "drop": 0.03}
    slow = Faults(Latency(0.1), errors)  # long enough for a rollout to be killed while its session is open
    plan = Plan(
        seed=2, endpoints=dict.fromkeys(TOOLS, slow) | dict.fromkeys(("grade", "session/end"), Faults(shares=errors))
    )
    with faulty_ledger(plan) as faulty:
        yield faulty


def session_job(folder: Path, faulty: FaultyLedger) -> Path:
    """The example's job on a few rows, each rollout with a session."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    job = {key: job[key] for key in ("training_file", "seed", "method")} | {"model": str(LEDGER / "base")}
    with (LEDGER / job["training_file"]).open() as file:
        (folder / "train.jsonl").write_text("".join(islice(file, STEPS * BATCH)))
    job["training_file"] = "train.jsonl"
    job["method"]["reinforcement"] |= {
        "hyperparameters": {"batch_size": BATCH, "n_epochs": 1, "eval_interval": 1},
        "session": {"start_url": f"{faulty.url}/session/start", "end_url": f"{faulty.url}/session/end"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


@pytest.mark.nightly
@pytest.mark.timeout(600)  # two engine starts
def test_a_killed_job_resumes_and_ends_each_session_that_it_opened(tmp_path: Path, faulty: FaultyLedger) -> None:
    command = [AGENT_RFT, "train", str(session_job(tmp_path, faulty)), "--runs", str(tmp_path / "runs")]
    environment = marked(faulty.environment)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as first:
        assert first.stdout is not None
        output = []
        for line in first.stdout:
            output.append(line)
            if f"step 1/{STEPS}:" in line:
                while not faulty.record()["open"]:  # before the sessions of the last step
                    time.sleep(0.01)
                for process in processes():  # its engine too, which would otherwise end its sessions
                    process.kill()
    assert first.returncode == -signal.SIGKILL, "".join(output)
    assert processes_left() == []
    left_open = faulty.record()["open"]
    assert left_open

    (run,) = (tmp_path / "runs").iterdir()
    resumed = subprocess.run([*command, "--resume", str(run)], env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert processes_left() == []
    last = sorted((run / "checkpoints").iterdir())[-1]
    state = json.loads((last / "loop.json").read_text())
    assert state["step"] == STEPS
    rows = state["epoch"] * STEPS * BATCH + len(set(state["rows_done"]))
    assert rows >= STEPS * BATCH  # rows without signal were replaced by others
    record = faulty.record()
    assert record["open"] == []
    started, ended = set(record["started"]), set(record["ended"])
    assert started <= ended
    cut_off = ended - started  # starts that the server never got: they were in flight when all was killed
    assert {record["reasons"][trace] for trace in cut_off.union(left_open)} == {"job_restarted"}
    assert len(record["started"]) >= STEPS * BATCH * 8
