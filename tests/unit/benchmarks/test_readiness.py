"""The ten tasks of the verdict's benchmark are jobs that can be read, and its gain is that of the held-out grade."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.metrics.confidence_intervals import Interval
from agent_rft.spec.job_file import load_job
from agent_rft.types import Grade, Group
from benchmarks.readiness import GRADERS, TASKS, Result, Variation, gain_of, graders, write_job
from tests.support.builders import group, group_request, task


@pytest.mark.parametrize("variation", TASKS, ids=lambda variation: variation.name)
def test_a_task_is_a_job_with_rows(variation: Variation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("LEDGER_TOKEN", "t")
    job = load_job(write_job(variation, 1, "http://127.0.0.1:2", tmp_path))
    served = {tool.name for tool in job.reinforcement.tools}
    rows = [json.loads(line) for line in Path(job.training_file).read_text().splitlines()]
    assert 10 <= len(rows) <= 160
    assert {tool["function"]["name"] for row in rows for tool in row["tools"]} == served
    (row,) = rows[:1]
    assert 0.0 <= GRADERS["true"](row["reference_answer"], row) == 1.0


def held_out(change: float) -> list[Group]:
    groups = []
    for number in range(40):
        made = group(group_request(number, task=task(f"{number}-x")), [0.0])
        graded = replace(made.rollouts[0], grade=Grade(0.0, held_out=0.3 + change))
        groups.append(replace(made, rollouts=(graded,)))
    return groups


def test_the_gain_is_that_of_the_held_out_grade(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.handle_groups("test-before", held_out(0.0))
    run.close()
    assert gain_of(run) is None
    run = RunFolder(tmp_path)
    run.handle_groups("test-after", held_out(0.5))
    run.close()
    gain = gain_of(run)
    assert gain is not None and gain.mean == pytest.approx(0.5) and gain.n == 40


@pytest.mark.parametrize(
    ("verdict", "low", "right"),
    [("train", 0.1, True), ("train", -0.1, False), ("sft_warm_up", 0.1, False), ("fix_first", -0.1, True)],
)
def test_a_verdict_is_right_if_it_foretold_the_gain(verdict: str, low: float, right: bool) -> None:
    assert Result("t", verdict, (), Interval(0.2, low, 0.4, 40), 1.0, 1.0).right is right
    assert Result("t", verdict, (), None, 1.0, 1.0).right is (verdict != "train")


def test_the_graders_are_served_by_their_names() -> None:
    body = json.dumps({"sample": {"output_text": "12"}, "item": {"reference_answer": "12"}}).encode()
    with graders() as url:
        for name, score in (("true", 1.0), ("any_number", 1.0), ("never", 0.0)):
            with urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", body)) as answer:
                assert json.loads(answer.read()) == {"score": score}
