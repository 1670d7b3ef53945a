"""What version 0289249 left behind goes on with real engines: a run is resumed, a server's jobs continue.

What its folders show without engines is in tests/integration/upgrade.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from cluster.records.run_folder import RunFolder
from tests.e2e.command import AGENT_RFT, marked, processes_left, run
from tests.support.fakes_http import FakeEndpoint, says
from tests.support.old_version import OldVersion, old_version
from trainer.loop.checkpoint import Checkpoints

DEADLINE_S = 300.0
CAPPED = "cluster: the job needs 2 cores, but the operator's limit is 1; a new job would be refused"


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[OldVersion]:
    async with FakeEndpoint(says({"output": "costs 17"})) as tool:
        yield old_version(tmp_path / "old", tool.url.removesuffix("/run"))


def environment(old: OldVersion) -> dict[str, str]:
    return dict(os.environ) | {"OLD_TOKEN": old.tool_token}


def lower_cap(old: OldVersion) -> Path:
    """The operator's configuration with a limit that refuses the same jobs as new ones."""
    config = old.home / "job" / "agent-rft.yaml"
    config.write_text(f"{config.read_text()}jobs: {{max_cores: 1}}\n")
    return config


async def test_a_run_is_resumed_to_its_end_although_the_operator_lowered_a_limit(old: OldVersion) -> None:
    options = ("--resume", old.run, "--config", lower_cap(old))
    ended = await asyncio.to_thread(run, "train", old.job, *options, environment=environment(old))
    assert ended.returncode == 0, ended.stdout
    assert f"warning {CAPPED}" in ended.stdout
    assert "relative" in ended.stdout, "the table compares with the grade that the older version recorded"
    folder = RunFolder(old.run)
    assert [step["step"] for step in folder.metrics()] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in folder.validations()] == [0, 2, 6] and "test-after" in folder.evaluations()
    assert Checkpoints(folder.checkpoints).all()[-1][1].step == 6
    assert "step-000006" in folder.rollout_names() and "<html" in folder.report.read_text()[:1000]
    assert processes_left() == []


@pytest.mark.nightly
async def test_a_supervised_run_is_resumed_to_its_end_and_a_checkpoint_is_evaluated(old: OldVersion) -> None:
    job, folder = old.home / "job" / "supervised.yaml", old.home / "runs" / "supervised"
    ended = await asyncio.to_thread(run, "train", job, "--resume", folder, environment=environment(old))
    assert ended.returncode == 0, ended.stdout
    assert RunFolder(folder).metrics()[-1]["step"] == 200
    (checkpoint, _), *_ = Checkpoints(old.run / "checkpoints").all()
    runs = old.home / "evaluations"
    options = ("--model", checkpoint, "--runs", runs)
    ended = await asyncio.to_thread(run, "eval", old.job, *options, environment=environment(old))
    assert ended.returncode == 0, ended.stdout
    (evaluated,) = runs.iterdir()
    assert RunFolder(evaluated).evaluations()["eval-test"].num_rollouts == 2


# -- a server ----------------------------------------------------------------------------------------------------------


@contextmanager
def server(old: OldVersion) -> Iterator[str]:
    """The URL of `agent-rft serve` of today over the folder."""
    config = lower_cap(old)
    command = [AGENT_RFT, "serve", "--folder", str(old.server), "--port", "0", "--config", str(config)]
    with subprocess.Popen(command, env=marked(environment(old)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(found[1] for line in process.stdout if (found := re.search(r"serving at (\S+)", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def go_on(old: OldVersion) -> None:
    with server(old) as url:
        client = openai.OpenAI(api_key=old.keys["admin"], base_url=url, timeout=300, max_retries=5)
        jobs = client.fine_tuning.jobs

        def told(job_id: str, text: str) -> bool:
            assert jobs.retrieve(job_id).status != "failed", jobs.retrieve(job_id).error
            return any(text in event.message for event in jobs.list_events(job_id, limit=100))

        wait_for(lambda: told(old.jobs["running"], "resumed at step"))
        assert told(old.jobs["running"], CAPPED)
        jobs.cancel(old.jobs["running"])
        jobs.resume(old.jobs["paused"])
        wait_for(lambda: jobs.retrieve(old.jobs["validating_files"]).status == "failed")
        refused = jobs.retrieve(old.jobs["validating_files"]).error
        assert refused is not None and refused.code == "over_limit", "it was not accepted yet"
        wait_for(lambda: jobs.retrieve(old.jobs["queued"]).status == "succeeded")
        wait_for(lambda: told(old.jobs["paused"], "resumed at step"))
        jobs.cancel(old.jobs["paused"])
        for job_id in (old.jobs["succeeded"], old.jobs["queued"]):
            tuned = jobs.retrieve(job_id).fine_tuned_model
            assert tuned is not None
            answer = client.chat.completions.create(
                model=tuned, messages=[{"role": "user", "content": "what was debt?"}]
            )
            assert answer.model == tuned and 0 < answer.usage.completion_tokens <= 24


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_a_servers_jobs_continue_and_its_models_answer(old: OldVersion) -> None:
    await asyncio.to_thread(go_on, old)
    assert processes_left() == []
