"""The commands shown at the end of a run work: they are parsed by the command line itself."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.next_steps import next_steps
from agent_rft.events import AlarmRaised
from agent_rft.metrics.missing_rollouts import ValidationScore
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from tests.docs.test_blocks import commands, parse
from tests.support.events import run_event
from tests.support.synthetic import Synthetic


async def nothing(path: Path) -> None: ...


def save(
    run: RunFolder,
    step: int,
    reward: float | None,
    *,
    is_servable: bool = True,
    score: ValidationScore | None = None,
) -> None:
    state = LoopState(step, step, 0, [], 0, reward, is_servable=is_servable, score=score)
    asyncio.run(Checkpoints(run.checkpoints).save(state, nothing))


def test_the_best_checkpoint_is_named_with_commands_that_parse(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path / "a run's folder")
    for step, reward in ((4, 0.5), (8, 0.75), (12, 0.6)):
        save(run, step, reward)
    save(run, 13, None, is_servable=False)
    found = dict(next_steps(run, ["my job.yaml", "--config", "a.yaml"]))
    best = run.checkpoints / "step-000008"
    assert found.pop("best checkpoint") == f"{best} (validation reward 0.750)"
    assert list(found) == ["compare", "worst rows", "try it", "serve it"]
    for text in found.values():
        for arguments in commands(text):
            parse(arguments)
    assert shlex.split(found["try it"])[2:] == [
        "my job.yaml",
        "--config",
        "a.yaml",
        "--file",
        "training_file",
        "--model",
        str(best),
    ]
    assert shlex.split(found["compare"])[2:] == [f"{run.path}:test-before", f"{run.path}:test-after"]
    assert shlex.split(found["worst rows"])[2:] == [str(run.path), "--name", "test-after", "--worst", "3"]
    assert yaml.safe_load(shlex.split(found["serve it"])[1]) == {"aliases": {"tuned": str(best.resolve())}}


def test_the_first_alarm_of_each_rule_comes_before_the_checkpoint(tmp_path: Path, synthetic: Synthetic) -> None:
    synthetic.run(tmp_path)
    run = RunFolder(tmp_path)
    for step, rule, traces in ((3, "drift", ()), (5, "diverged", ("trace_1", "trace_2")), (6, "diverged", ())):
        alarm = AlarmRaised(
            step=step, rule=rule, metric="held_out_grade_mean", initial_value=0.5, value=0.1, traces=traces
        )
        run.handle_event(run_event(alarm))
    run.close()
    save(run, 12, 0.6)
    found = dict(next_steps(run, []))
    assert list(found)[:3] == ["alarm drift", "alarm diverged", "best checkpoint"]
    assert found["alarm drift"] == "agent-rft explain drift"
    explained, shown = commands(found["alarm diverged"])
    parse(explained)
    parse(shown)
    assert shown[-3:] == [str(run.path), "--trace", "trace_1"]


def test_without_validation_the_last_checkpoint_is_the_best(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path, validation_every=0, test=False, steps=3)
    for step in (1, 2, 3):
        save(run, step, None)
    found = dict(next_steps(run, []))
    assert found["best checkpoint"].endswith("step-000003") and not {"try it", "compare"} & found.keys()
    assert "step-000003" in found["worst rows"]


def test_a_run_that_failed_before_its_first_step_has_nothing_to_propose(tmp_path: Path) -> None:
    assert list(next_steps(RunFolder(tmp_path), ["job.yaml"])) == []


def test_the_rollouts_that_the_best_validation_lacks_are_named(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path)
    save(run, 4, 0.5, score=ValidationScore({"a": 0.5}, num_rows=40, num_missing=3))
    save(run, 8, 0.9, score=ValidationScore({"a": 0.9}, num_rows=40, num_missing=10))
    best = run.checkpoints / "step-000004"
    shown = dict(next_steps(run, []))["best checkpoint"]
    assert shown == f"{best} (validation reward 0.500; 3 of 40 rollouts have no grade)"
