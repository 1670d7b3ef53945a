"""A run folder of version 0289249 under today's commands: traces, report, grades; and what resuming it checks.

That it is trained to its end is shown with real engines: tests/e2e/test_upgrade.py.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.grading.pool import GraderPool
from cluster.jobs.driver_settings import DriverSettings, Server
from cluster.planning.nodes import Node
from cluster.preflight.prepare import Prepared, prepare
from cluster.preflight.resumed import Began
from cluster.preflight.space import Free
from cluster.records.run_folder import RunFolder
from cluster.run.driver import claim_run, train
from cluster.stores.migrate import migrate
from cluster.views.before_after import compare
from cluster.views.comparison.compare import compare_sides
from cluster.views.comparison.sides import sides_of
from cluster.views.regrade import grade_file
from cluster.views.report.page import write_report
from cluster.views.traces import select_traces, trace_json
from tests.support import builders
from tests.support.fakes_http import LOCAL, FakeEndpoint, says
from tests.support.old_version import OldVersion, old_version
from trainer.errors import GraderFailed, InvalidJob, Problem, UserError
from trainer.loop.checkpoint import FORMAT, Checkpoints
from trainer.spec.job_file import load_job
from trainer.spec.operator.config import JobLimits, Operator
from trainer.types import Grade

NODE = Node("a", cores=2.0)
PYTHON = {"type": "python", "source": "def grade(sample, item): return 1"}
PLENTY = Free(disk_bytes=1 << 40, shm_bytes=1 << 34)
VARIABLES = {"OLD_TOKEN": "another-token"}
"""Tokens may change."""


# -- reading it --------------------------------------------------------------------------------------------------------


def test_events_metrics_and_evaluations_are_read(old: OldVersion) -> None:
    run = RunFolder(old.run)
    events = run.events()
    assert any(event.message.startswith("checkpoint step-") for event in events)
    assert {event.kind for event in events} == {""}, "that version's events had no kinds"
    assert [step["step"] for step in run.metrics()] == [1, 2, 3, 4]
    assert [step for step, _ in run.validations()] == [0, 2]
    assert run.evaluations()["test-before"].num_rollouts == 2


def test_every_rollout_is_shown(old: OldVersion) -> None:
    run = RunFolder(old.run)
    for name in run.rollout_names():
        traces = select_traces(run, name=name)
        assert traces and all(json.loads(trace_json(trace)) for trace in traces)
    assert {"step-000001", "test-before", "validation-000000"} <= set(run.rollout_names())


@pytest.mark.parametrize("name", ["reinforcement", "supervised"])
def test_the_report_is_written(old: OldVersion, name: str) -> None:
    path = write_report(RunFolder(old.home / "runs" / name))
    assert "<html" in path.read_text()[:1000]


def test_before_and_after_are_compared(old: OldVersion) -> None:
    before = RunFolder(old.run).evaluations()["test-before"]
    assert {change.name for change in compare(before, before)} >= {"grade"}


def test_its_evaluations_are_compared_row_by_row(old: OldVersion) -> None:
    names = [f"{old.run}:validation-0", f"{old.run}:validation-2"]
    comparison = compare_sides(sides_of(names, name=None, file=None, evaluate=None), 1)
    assert len(comparison.rows) == 2 and comparison.only == ((), ())
    assert {change.name for change in comparison.against[0].changes} >= {"grade", "tool_calls"}


async def test_its_rollouts_are_graded_again_as_they_were(old: OldVersion) -> None:
    grader = old.home / "grader.yaml"
    grader.write_text(yaml.safe_dump(yaml.safe_load(old.job.read_text())["method"]["reinforcement"]["grader"]))
    _, cases, (outcomes,) = await grade_file(old.run, grader, Operator(), name="step-000001")
    grades = [outcome.value for outcome in outcomes if isinstance(outcome, Grade)]
    assert len(grades) == 40 and grades == pytest.approx([case.recorded for case in cases])


# -- what a resumed run keeps ------------------------------------------------------------------------------------------


@pytest.fixture
async def resumable(tmp_path: Path) -> AsyncIterator[OldVersion]:
    """The run folder, with a tool that answers."""
    async with FakeEndpoint(says({"output": "costs 17"})) as tool:
        yield old_version(tmp_path / "old", tool.url.removesuffix("/run"))


def change_job(old: OldVersion, **changes: Any) -> None:
    """Change the job file; the keywords replace top-level keys, None removes one."""
    job = yaml.safe_load(old.job.read_text()) | changes
    old.job.write_text(yaml.safe_dump({key: value for key, value in job.items() if value is not None}))


def change_method(old: OldVersion, **changes: Any) -> None:
    method = yaml.safe_load(old.job.read_text())["method"]
    change_job(old, method=method | {"reinforcement": method["reinforcement"] | changes})


def change_record(old: OldVersion, **changes: Any) -> None:
    path = old.run / "job.resolved.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


async def prepared(old: OldVersion, operator: Operator = LOCAL) -> Prepared:
    """The check of the run that is resumed."""
    began = Began.of(RunFolder(old.run))
    job = began.keep(load_job(old.job, VARIABLES))
    return await prepare(job, [NODE], old.home / "runs", operator, free=PLENTY, began=began, accepted=True)


def refused(old: OldVersion) -> list[Problem]:
    with pytest.raises(InvalidJob, match="cannot resume") as raised:
        Began.of(RunFolder(old.run)).keep(load_job(old.job, VARIABLES))
    assert VARIABLES["OLD_TOKEN"] not in str(raised.value)
    return raised.value.problems


async def test_it_can_be_resumed_with_its_plan_and_todays_token(resumable: OldVersion) -> None:
    found = await prepared(resumable)
    plan = json.loads((resumable.run / "job.resolved.json").read_text())["plan"]
    assert found.plan.model_dump() == plan and (plan["batch_size"], plan["steps"]) == (10, 6)
    (tool,) = found.job.reinforcement.tools
    assert tool.headers["Authorization"].get_secret_value() == "Bearer another-token"
    assert found.job.reinforcement.algorithm.max_divergence is None, "that version had no limit"
    assert found.job.model_options.tool_parser == found.dialect.tool_parser == "hermes", "its default"
    assert [warning for warning in found.warnings if "new job" in warning] == []


async def test_it_keeps_its_values_where_todays_defaults_and_rules_differ(resumable: OldVersion) -> None:
    record = json.loads((resumable.run / "job.resolved.json").read_text())
    record["job"]["method"]["reinforcement"]["limits"]["rollout_timeout_s"] = 77.0
    record["job"]["method"]["reinforcement"]["grader"]["name"] = "similar"
    record["job"]["cluster"] |= {"max_num_seqs": 7, "micro_batch_tokens": 4096}
    record["plan"] |= {"batch_size": 5, "steps": 12}
    change_record(resumable, **record | {"context_length": 512})
    found = await prepared(resumable)
    assert found.job.reinforcement.limits.rollout_timeout_s == 77.0
    assert (found.placement.max_num_seqs, found.placement.micro_batch_tokens) == (7, 4096)
    assert (found.plan.batch_size, found.plan.steps) == (5, 12) and found.changes == ()
    assert found.context_length == 512


async def test_files_that_were_moved_or_grew_are_the_same_files(resumable: OldVersion) -> None:
    moved = resumable.home / "elsewhere"
    shutil.move(resumable.home / "job", moved)
    with (moved / "train.jsonl").open("r+") as file:
        first = file.readline()
        file.seek(0, os.SEEK_END)
        file.write(first)
    began = Began.of(RunFolder(resumable.run))
    job = began.keep(load_job(moved / "job.yaml", VARIABLES))
    found = await prepare(job, [NODE], resumable.home, LOCAL, free=PLENTY, began=began, accepted=True)
    assert found.job.training_file == str(moved / "train.jsonl")
    assert [change.setting for change in found.changes] == ["training_file", "validation_file", "test_file"]
    assert (len(found.tasks), found.plan.num_rows, found.plan.steps) == (11, 10, 6)


def test_a_value_that_differs_is_refused_with_both_values(old: OldVersion) -> None:
    change_job(old, seed=8)
    change_method(old, hyperparameters={"n_epochs": 7, "eval_interval": 2, "compute_multiplier": 0.5})
    seed, epochs = refused(old)
    assert (seed.code, seed.field, seed.message) == ("job_changed", "seed", "is 8, but the run began with 7")
    assert epochs.field == "method.reinforcement.hyperparameters.n_epochs" and "is 7" in epochs.message
    assert "resume with the value that the run began with, or start a new run" in epochs.remedy


def test_another_file_is_refused(old: OldVersion) -> None:
    change_job(old, validation_file="test.jsonl", test_file="bad.jsonl")
    validation, test = refused(old)
    assert validation.field == "validation_file" and validation.message.endswith('/validation.jsonl"')
    assert test.field == "test_file"


def test_a_file_with_another_name_and_the_same_contents_is_the_same(old: OldVersion) -> None:
    shutil.copy(old.home / "job" / "test.jsonl", old.home / "job" / "again.jsonl")
    change_job(old, test_file="again.jsonl")
    began = Began.of(RunFolder(old.run))
    (change,) = began.changes(began.keep(load_job(old.job, VARIABLES)))
    assert change.setting == "test_file" and change.now.endswith('again.jsonl"')


def test_a_moved_file_with_other_contents_is_refused_once_the_run_has_its_digest(old: OldVersion) -> None:
    change_record(old, digests={"test_file": "0" * 32})
    (old.home / "elsewhere").mkdir()
    shutil.copy(old.home / "job" / "test.jsonl", old.home / "elsewhere")
    change_job(old, test_file="../elsewhere/test.jsonl")
    assert [problem.field for problem in refused(old)] == ["test_file"]


def test_urls_headers_limits_of_endpoints_and_validations_may_differ_and_are_shown(old: OldVersion) -> None:
    change_job(old, suffix="again")
    tool = {"name": "cat", "server_url": "http://127.0.0.1:9/cat?key=1", "timeout_s": 7}
    change_method(old, tools=[tool], hyperparameters={"n_epochs": 6, "eval_interval": 3, "compute_multiplier": 0.5})
    began = Began.of(RunFolder(old.run))
    job = began.keep(load_job(old.job, VARIABLES))
    assert job.reinforcement.tools[0].headers == {} and job.reinforcement.tools[0].timeout_s == 7
    assert began.plan_of(job, builders.plan(eval_interval=3)).eval_interval == 3
    changes = {c.setting.removeprefix("method.reinforcement."): (c.now, c.was) for c in began.changes(job)}
    assert changes == {
        "suffix": ('"again"', '"old"'),
        "tools[0].headers": ("{}", '{"Authorization": "**********"}'),
        "tools[0].timeout_s": ("7.0", "120.0"),
        "tools[0].server_url": ('"http://127.0.0.1:9/cat?**********"', '"http://127.0.0.1:18473/cat"'),
        "hyperparameters.eval_interval": ("3", "2"),
    }


def test_resources_may_differ(old: OldVersion) -> None:
    change_job(old, cluster={"engine_cores": 3, "engines": 2})
    job = Began.of(RunFolder(old.run)).keep(load_job(old.job, VARIABLES))
    assert (job.cluster.engine_cores, job.cluster.engines, job.cluster.rank_cores) == (3, 2, 1)


# -- checks that are newer than the run --------------------------------------------------------------------------------


async def test_an_operators_lower_cap_warns_a_resumed_run_and_refuses_a_new_one(resumable: OldVersion) -> None:
    operator = LOCAL.model_copy(update={"jobs": JobLimits(max_cores=1)})
    found = await prepared(resumable, operator)
    assert any("the operator's limit is 1; a new job would be refused" in warning for warning in found.warnings)
    with pytest.raises(InvalidJob, match="over_limit"):
        await prepare(load_job(resumable.job, VARIABLES), [NODE], resumable.home, operator, free=PLENTY)


async def test_rows_that_are_too_long_today_warn_it(resumable: OldVersion) -> None:
    change_record(resumable, context_length=20)
    found = await prepared(resumable)
    first = next(warning for warning in found.warnings if warning.startswith("training_file.messages, rows 1"))
    assert ": the row takes" in first
    assert len(found.tasks) == 10


async def test_a_template_that_is_refused_today_warns_it(resumable: OldVersion) -> None:
    template = resumable.home / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace('"name": "', '"called": "'))
    found = await prepared(resumable)
    assert any("hermes does not read the calls" in warning for warning in found.warnings)


async def test_a_grader_and_numbers_beyond_todays_limits_warn_it(resumable: OldVersion) -> None:
    template = "{{ item.answer }}" * 1_001
    length = {"type": "length", "input": template, "max_chars": 10}
    parts = {f"p{i}": PYTHON if i < 17 else length for i in range(70)}
    grader = {"type": "multi", "graders": parts, "calculate_output": "p0"}
    record = json.loads((resumable.run / "job.resolved.json").read_text())
    record["job"]["method"]["reinforcement"]["grader"] = grader
    record["job"]["cluster"]["max_num_seqs"] = 70_000
    change_record(resumable, **record)
    change_method(resumable, grader=grader)
    found = await prepared(resumable)
    for what in ("64 graders", "16 graders that start a process", "1,000 placeholders"):
        assert any(f"has more than {what}" in warning for warning in found.warnings)
    assert any("keeps 70000, which a new job may not have" in warning for warning in found.warnings)
    assert found.job.cluster.max_num_seqs == 70_000
    pool = GraderPool.of(found.job.reinforcement, LOCAL)  # such a job still grades
    with pytest.raises(GraderFailed, match="has no value"):
        await pool.grade({}, {}, "trace_1")
    await pool.close()
    job = load_job(resumable.job, VARIABLES)
    with pytest.raises(InvalidJob, match="grader_too_large"):
        await prepare(job, [NODE], resumable.home, LOCAL, free=PLENTY)


async def test_memory_that_is_too_small_by_todays_formula_warns_it(resumable: OldVersion) -> None:
    began = Began.of(RunFolder(resumable.run))
    job = began.keep(load_job(resumable.job, VARIABLES))
    small = Node("a", cores=2.0, memory_bytes=1 << 20)
    found = await prepare(job, [small], resumable.home, LOCAL, free=PLENTY, began=began, accepted=True)
    assert any(warning.startswith("cluster: ") and "memory" in warning for warning in found.warnings)


async def test_a_node_that_it_fitted_without_headroom_warns_it(resumable: OldVersion) -> None:
    (used,) = (await prepared(resumable)).cluster.host_bytes
    began = Began.of(RunFolder(resumable.run))
    job, exact = began.keep(load_job(resumable.job, VARIABLES)), replace(NODE, memory_bytes=used)
    with pytest.raises(InvalidJob, match="of which 8% stay free"):
        await prepare(job, [exact], resumable.home, LOCAL, free=PLENTY)
    found = await prepare(job, [exact], resumable.home, LOCAL, free=PLENTY, began=began, accepted=True)
    assert any("of which 8% stay free; a new job would be refused" in warning for warning in found.warnings)


async def test_the_checkpoints_that_it_has_written_need_no_room_again(resumable: OldVersion) -> None:
    began = Began.of(RunFolder(resumable.run))
    assert began.num_checkpoints == len(list((resumable.run / "checkpoints").iterdir())) > 0
    job, plan = began.keep(load_job(resumable.job, VARIABLES)), dict(began.plan) | {"steps": 60, "eval_interval": 1}

    async def refusal(num_checkpoints: int) -> str:
        run = replace(began, plan=plan, num_checkpoints=num_checkpoints)
        with pytest.raises(InvalidJob, match="disk_full") as raised:
            await prepare(job, [NODE], resumable.home, LOCAL, free=Free(0, 1 << 34), began=run, accepted=True)
        return str(raised.value)

    for written, needed in (
        (0, "5 checkpoints may"),
        (2, "3 checkpoints may"),
        (4, "1 checkpoint may"),
        (9, "1 check"),
    ):
        assert needed in await refusal(written)


@pytest.mark.parametrize(
    ("breaks", "code"),
    [
        ("model", "missing_model"),
        ("rows", "missing_file"),
        ("endpoint", "forbidden_address"),
        ("cores", "too_few_resources"),
    ],
)
async def test_what_makes_it_impossible_is_an_error(resumable: OldVersion, breaks: str, code: str) -> None:
    began = Began.of(RunFolder(resumable.run))
    job = began.keep(load_job(resumable.job, VARIABLES))
    nodes, operator = [NODE], LOCAL
    match breaks:
        case "model":
            shutil.rmtree(resumable.home / "model")
        case "rows":
            (resumable.home / "job" / "train.jsonl").unlink()
        case "endpoint":
            operator = Operator()
        case "cores":
            nodes = [Node("a", cores=1.0)]
    with pytest.raises(InvalidJob) as raised:
        await prepare(job, nodes, resumable.home, operator, free=PLENTY, began=began, accepted=True)
    assert code in {problem.code for problem in raised.value.problems}


async def test_a_servers_job_is_checked_alike_when_it_goes_on(resumable: OldVersion) -> None:
    server = Server(DriverSettings.read(resumable.server / "driver.json"))
    migrate(server.database)  # as the server does that starts the driver
    job_id = resumable.jobs["paused"]
    began = Began.of(RunFolder(resumable.server / "runs" / job_id))
    job = began.keep(server.spec(server.store.get(job_id)))
    server.close()
    operator = LOCAL.model_copy(update={"jobs": JobLimits(max_cores=1)})
    found = await prepare(job, [NODE], resumable.home, operator, dry_run=False, free=PLENTY, began=began, accepted=True)
    assert found.plan.steps == 60 and any("operator's limit" in warning for warning in found.warnings)


# -- what cannot be opened ---------------------------------------------------------------------------------------------


async def resume(old: OldVersion) -> str:
    """The refusal of `agent-rft train --resume`; it comes before a cluster is started."""
    with pytest.raises(UserError) as raised, claim_run(old.run, 0.0, print) as claimed:
        await train(load_job(old.job, VARIABLES), old.home / "runs", claimed, None, LOCAL)
    return str(raised.value)


async def test_a_folder_without_a_checkpoint_is_refused(old: OldVersion) -> None:
    shutil.rmtree(old.run / "checkpoints")
    assert "has no checkpoint to resume from" in await resume(old)


@pytest.mark.parametrize("text", [None, "{", '{"plan": {}}'])
async def test_a_folder_that_does_not_say_how_it_began_is_refused_with_the_remedy(
    old: OldVersion, text: str | None
) -> None:
    path = old.run / "job.resolved.json"
    path.unlink() if text is None else path.write_text(text)
    assert "start a new run with `model` set to the checkpoint" in await resume(old)


async def test_a_folder_of_a_newer_version_is_refused_with_the_remedy(old: OldVersion) -> None:
    change_record(old, format=3)
    assert "written by a newer version of agent-rft; resume it with that version" in await resume(old)


async def test_a_checkpoint_of_a_newer_version_is_refused_with_the_remedy(old: OldVersion) -> None:
    (checkpoint, _) = Checkpoints(old.run / "checkpoints").latest() or (old.run, None)
    state = json.loads((checkpoint / "loop.json").read_text())
    (checkpoint / "loop.json").write_text(json.dumps(state | {"format": FORMAT + 1}))
    assert "was written by a newer version of agent-rft; continue with that version" in await resume(old)


def test_events_of_a_newer_version_keep_their_messages(old: OldVersion) -> None:
    line = {"time": "2027-01-01T00:00:00+00:00", "level": "warn", "kind": "step_done", "version": 99, "message": "new"}
    with (old.run / "events.jsonl").open("a") as file:
        file.write(json.dumps(line | {"job": "j", "step": 4, "data": {"other": 1}}) + "\n")
    last = RunFolder(old.run).events()[-1]
    assert (last.message, last.level, last.event) == ("new", "warn", None)
    write_report(RunFolder(old.run))
