"""The traces of a real job, at a collector: what belongs together has one trace id, and what failed says so."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

import pytest
import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.types import Rollout
from tests.chaos.ledger import faulty_ledger
from tests.chaos.plan import Faults, Plan
from tests.e2e.command import AGENT_RFT, kill, marked, processes_left
from tests.support.collector import Collector, Received
from tests.support.paths import LEDGER

STEPS, BATCH = 2, 4
KEPT = ("training_file", "seed", "method", "model_options")
ERROR = "error.type"
REACHED = (None, "tool_error")
"""The errors of calls that are sent; others are answered by the engine's process."""


def job_in(folder: Path, collector: str) -> list[str]:
    """The command that trains the example's job on a few rows, with all its rollouts traced."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    job = {key: job[key] for key in KEPT} | {"model": str(LEDGER / "base")}
    with (LEDGER / job["training_file"]).open() as file:
        (folder / "train.jsonl").write_text("".join(islice(file, STEPS * BATCH)))
    job["training_file"] = "train.jsonl"
    numbers = {"batch_size": BATCH, "n_epochs": 1, "compute_multiplier": 1}
    job["method"]["reinforcement"]["hyperparameters"] = numbers
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    operator = {"traces": {"endpoint": collector, "sampling_ratio": 1.0}}
    (folder / "agent-rft.yaml").write_text(yaml.safe_dump(operator))
    command = [AGENT_RFT, "train", str(folder / "job.yaml"), "--config", str(folder / "agent-rft.yaml")]
    return [*command, "--run-folder", str(folder / "run")]


def train(command: list[str], environment: dict[str, str], kills: str | None = None) -> tuple[int, str]:
    """The exit code of a training and its output; `kills` names a process that is killed when the first step begins."""
    with subprocess.Popen(
        command, env=marked(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            if kills is not None and "training" in line and "training" not in output:
                kill(kills)
            output += line
        return process.wait(), output


@pytest.mark.nightly
async def test_a_trace_joins_rollout_calls_and_grade_and_steps_link_to_it(tmp_path: Path) -> None:
    tools = Faults(shares={"404": 0.1, "500": 0.03}, sticky=True)
    endpoints = dict.fromkeys(("tools/list", "tools/search", "tools/cat"), tools)
    plan = Plan(seed=1, endpoints={**endpoints, "grade": Faults(shares={"500": 0.15}, sticky=True)})
    async with Collector() as collector:
        with faulty_ledger(plan) as faulty:
            command = job_in(tmp_path, collector.url)
            code, output = await asyncio.to_thread(train, command, faulty.environment, "RankProcess")
            secret = faulty.environment["LEDGER_TOKEN"]
    assert code == 0, output
    assert processes_left() == []
    assert all((ERROR in span.attributes) == span.failed for span in collector.spans)
    assert secret not in str(collector.spans)
    traces: dict[str, list[Received]] = defaultdict(list)
    for span in collector.spans:
        traces[span.trace_id].append(span)

    folder = RunFolder(tmp_path / "run")
    steps = {f"step-{step:06d}": folder.read_groups(f"step-{step:06d}") for step in range(1, STEPS + 1)}
    graded = [rollout for groups in steps.values() for group in groups for rollout in group.rollouts]
    discarded = [lost for groups in steps.values() for group in groups for lost in group.discarded]
    for rollout in graded:
        check_rollout(rollout, traces[rollout.trace_id.removeprefix("trace_")])
    for lost in discarded:
        (root,) = (span for span in traces[lost.trace_id.removeprefix("trace_")] if not span.parent_id)
        assert (root.name, root.attributes[ERROR]) == ("invoke_agent", lost.reason)

    errors = Counter((span.name.split()[0], span.attributes[ERROR]) for span in collector.spans if span.failed)
    assert {("execute_tool", "tool_error"), ("execute_tool", "ToolFailed"), ("grade", "GraderFailed")} <= set(errors)
    tries = [span for span in collector.spans if span.name == "training step"]
    assert [(span.attributes[ERROR], span.links) for span in tries if span.failed] == [("LearnerFailed", [])]
    done = [span for span in tries if not span.failed]
    for span, groups in zip(done, steps.values(), strict=True):
        learned = {rollout.trace_id.removeprefix("trace_") for group in groups for rollout in group.rollouts}
        assert span.process == "driver" and span.links and set(span.links) <= learned
        parts = [part.name for part in traces[span.trace_id] if part.parent_id == span.span_id]
        assert {"sampling", "learning", "weight sync"} <= set(parts)


@pytest.mark.nightly
async def test_the_step_in_which_a_job_fails_is_a_trace_with_its_error(tmp_path: Path) -> None:
    plan = Plan(endpoints={"grade": Faults(shares={"401": 1.0})})  # the key was revoked after the dry run
    async with Collector() as collector:
        with faulty_ledger(plan) as faulty:
            code, output = await asyncio.to_thread(train, job_in(tmp_path, collector.url), faulty.environment)
    assert code == 1, output
    (step,) = (span for span in collector.spans if span.name == "training step")
    assert (step.process, step.failed, step.attributes[ERROR]) == ("driver", True, "EndpointRefused")
    assert processes_left() == []


def check_rollout(rollout: Rollout, spans: list[Received]) -> None:
    """One trace has all of a rollout: its turns, the calls that were sent, and its grade, below its root."""
    (root,) = (span for span in spans if not span.parent_id)
    assert (root.name, root.process, root.failed) == ("invoke_agent", "engine-0", False)
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    names = Counter(span.name.split()[0] for span in spans)
    assert (names["chat"], names["grade"]) == (len(rollout.turns), 1)
    called = {span.attributes["gen_ai.tool.call.id"]: span for span in spans if span.name.startswith("execute_tool")}
    sent = {result.call_id: result.error for result in rollout.results if result.error in REACHED}
    assert {call: span.attributes.get(ERROR) for call, span in called.items()} == sent
    assert len(spans) == 1 + names["chat"] + len(called) + 1
