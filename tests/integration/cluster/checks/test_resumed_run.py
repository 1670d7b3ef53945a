"""A run that is resumed: the values that it keeps, the changes that are refused, and checks that only warn.

The run folder is written by the real check and the real stores. Training it to its end is shown in tests/e2e.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.checks.resumption.file_digests import digest_path
from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.records.run_folder import FORMAT, RunFolder
from agent_rft.cluster.run.driver import claim_run, train
from agent_rft.errors import InvalidJob, OutdatedFormat, Problem, UserError
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import JobLimits, OperatorConfig
from agent_rft.trainer.loop.checkpoint import FORMAT as CHECKPOINT_FORMAT
from agent_rft.trainer.loop.checkpoint import LOOP_STATE_FILE, Checkpoints, LoopState
from tests.support import builders
from tests.support.fakes_http import LOCAL, FakeEndpoint, says
from tests.support.paths import BASE

NODE = Node("a", cores=2.0)
PYTHON = {"type": "python", "source": "def grade(sample, item): return 1"}
PLENTY = FreeSpace(disk_bytes=1 << 40, shm_bytes=1 << 34)
VARIABLES = {"TOKEN": "another-token"}
"""Tokens may change."""
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "function": {"name": "cat", "description": "Read.", "parameters": PARAMETERS}}
ROWS = {"train.jsonl": range(10), "validation.jsonl": (10, 11), "test.jsonl": (12, 13)}
GRADER = {
    "type": "text_similarity",
    "evaluation_metric": "fuzzy_match",
    "pass_threshold": 0.3,
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.reference_answer }}",
}
JOB = {
    "model": "../model",
    "seed": 7,
    "suffix": "first",
    "training_file": "train.jsonl",
    "validation_file": "validation.jsonl",
    "test_file": "test.jsonl",
}


@dataclass(frozen=True, slots=True)
class Stopped:
    """The files of a job that has written checkpoints, and its run folder."""

    home: Path

    @property
    def job(self) -> Path:
        return self.home / "job" / "job.yaml"

    @property
    def run(self) -> Path:
        return self.home / "runs" / "first"

    @property
    def record(self) -> Path:
        return self.run / "current" / "job.resolved.json"

    @property
    def checkpoints(self) -> Path:
        return self.run / "current" / "checkpoints"


def row(number: int) -> str:
    messages = [{"role": "user", "content": f"what was debt of vorzen in {2000 + number}?"}]
    return json.dumps({"messages": messages, "tools": [TOOL], "reference_answer": f"the answer is {number}"})


async def write_checkpoint(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


@pytest.fixture
async def stopped(tmp_path: Path) -> AsyncIterator[Stopped]:
    """A run that stopped after step 4, with a tool that answers."""
    async with FakeEndpoint(says({"output": "costs 17"})) as tool:
        made = Stopped(tmp_path)
        made.job.parent.mkdir()
        shutil.copytree(BASE, made.home / "model")
        for name, numbers in ROWS.items():
            (made.job.parent / name).write_text("".join(f"{row(number)}\n" for number in numbers))
        url = f"{tool.url.removesuffix('/run')}/cat"
        reinforcement = {
            "tools": [{"name": "cat", "server_url": url, "headers": {"Authorization": "Bearer ${TOKEN}"}}],
            "grader": GRADER,
            "hyperparameters": {"n_epochs": 6, "eval_interval": 2, "compute_multiplier": 0.5},
            "limits": {"max_tool_calls": 2, "max_completion_tokens": 24},
        }
        made.job.write_text(yaml.safe_dump(JOB | {"method": {"type": "reinforcement", "reinforcement": reinforcement}}))
        job = load_job(made.job, {"TOKEN": "the-first-token"})
        first = await check_job(job, ModelFolder.find(job.model), [NODE], made.home / "runs", LOCAL, free_space=PLENTY)
        with claim_run(made.run, 0.0, print) as claimed:
            folder = RunFolder(claimed.path, owner_folder=claimed.folder)
            folder.write_job(first.job, first.plan, first.values_to_record())
            checkpoints = Checkpoints(folder.checkpoints)
            for step in (2, 4):
                await checkpoints.save(LoopState(step, step, 0, [], 0, None), write_checkpoint)
        yield made


def change_job(stopped: Stopped, **changes: Any) -> None:
    """Change the job file; the keywords replace top-level keys, None removes one."""
    job = yaml.safe_load(stopped.job.read_text()) | changes
    stopped.job.write_text(yaml.safe_dump({key: value for key, value in job.items() if value is not None}))


def change_method(stopped: Stopped, **changes: Any) -> None:
    method = yaml.safe_load(stopped.job.read_text())["method"]
    change_job(stopped, method=method | {"reinforcement": method["reinforcement"] | changes})


def change_record(stopped: Stopped, **changes: Any) -> None:
    path = stopped.record
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


async def prepared(stopped: Stopped, operator: OperatorConfig = LOCAL) -> CheckedJob:
    """The check of the run that is resumed."""
    began = RecordedRun.load(RunFolder(stopped.run))
    job = began.apply_to(load_job(stopped.job, VARIABLES))
    return await check_job(
        job,
        ModelFolder.find(job.model),
        [NODE],
        stopped.home / "runs",
        operator,
        free_space=PLENTY,
        recorded_run=began,
        was_accepted=True,
    )


def refused(stopped: Stopped) -> list[Problem]:
    with pytest.raises(InvalidJob, match="cannot resume") as raised:
        RecordedRun.load(RunFolder(stopped.run)).apply_to(load_job(stopped.job, VARIABLES))
    assert VARIABLES["TOKEN"] not in str(raised.value)
    return raised.value.problems


async def test_it_can_be_resumed_with_its_plan_and_todays_token(stopped: Stopped) -> None:
    found = await prepared(stopped)
    plan = json.loads(stopped.record.read_text())["plan"]
    assert found.plan.model_dump() == plan and (plan["batch_size"], plan["steps"]) == (10, 6)
    (tool,) = found.job.reinforcement.tools
    assert tool.headers["Authorization"].get_secret_value() == "Bearer another-token"
    assert [warning for warning in found.warnings if "new job" in warning] == []


async def test_it_keeps_its_values_where_todays_defaults_and_rules_differ(stopped: Stopped) -> None:
    record = json.loads(stopped.record.read_text())
    record["job"]["method"]["reinforcement"]["limits"]["rollout_timeout_s"] = 77.0
    record["job"]["method"]["reinforcement"]["grader"]["name"] = "similar"
    record["job"]["cluster"] |= {"max_num_seqs": 7, "micro_batch_tokens": 4096}
    record["plan"] |= {"batch_size": 5, "steps": 12}
    change_record(stopped, **record | {"context_length": 512})
    found = await prepared(stopped)
    assert found.job.reinforcement.limits.rollout_timeout_s == 77.0
    assert (found.placement.max_num_seqs, found.placement.micro_batch_tokens) == (7, 4096)
    assert (found.plan.batch_size, found.plan.steps) == (5, 12) and found.setting_changes == ()
    assert found.context_length == 512


async def test_files_that_were_moved_or_grew_are_the_same_files(stopped: Stopped) -> None:
    moved = stopped.home / "elsewhere"
    shutil.move(stopped.home / "job", moved)
    with (moved / "train.jsonl").open("r+") as file:
        first = file.readline()
        file.seek(0, os.SEEK_END)
        file.write(first)
    began = RecordedRun.load(RunFolder(stopped.run))
    job = began.apply_to(load_job(moved / "job.yaml", VARIABLES))
    found = await check_job(
        job,
        ModelFolder.find(job.model),
        [NODE],
        stopped.home,
        LOCAL,
        free_space=PLENTY,
        recorded_run=began,
        was_accepted=True,
    )
    assert found.job.training_file == str(moved / "train.jsonl")
    assert [change.setting for change in found.setting_changes] == ["training_file", "validation_file", "test_file"]
    assert (len(found.tasks), found.plan.num_rows, found.plan.steps) == (11, 10, 6)


def test_a_value_that_differs_is_refused_with_both_values(stopped: Stopped) -> None:
    change_job(stopped, seed=8)
    change_method(stopped, hyperparameters={"n_epochs": 7, "eval_interval": 2, "compute_multiplier": 0.5})
    seed, epochs = refused(stopped)
    assert (seed.code, seed.field, seed.message) == ("setting_differs", "seed", "is 8, but the run began with 7")
    assert epochs.field == "method.reinforcement.hyperparameters.n_epochs" and "is 7" in epochs.message
    assert "resume with the value that the run began with, or start a new run" in epochs.fix


def test_another_file_is_refused(stopped: Stopped) -> None:
    (stopped.home / "job" / "other.jsonl").write_text(f"{row(14)}\n")
    change_job(stopped, validation_file="test.jsonl", test_file="other.jsonl")
    validation, test = refused(stopped)
    assert validation.field == "validation_file" and validation.message.endswith('/validation.jsonl"')
    assert test.field == "test_file"


def test_a_file_with_another_name_and_the_same_contents_is_the_same(stopped: Stopped) -> None:
    shutil.copy(stopped.home / "job" / "test.jsonl", stopped.home / "job" / "again.jsonl")
    change_job(stopped, test_file="again.jsonl")
    began = RecordedRun.load(RunFolder(stopped.run))
    (change,) = began.list_changes(began.apply_to(load_job(stopped.job, VARIABLES)))
    assert change.setting == "test_file" and change.new.endswith('again.jsonl"')


def test_a_moved_file_with_other_contents_is_refused_once_the_run_has_its_digest(stopped: Stopped) -> None:
    change_record(stopped, digests={"test_file": "0" * 32})
    (stopped.home / "elsewhere").mkdir()
    shutil.copy(stopped.home / "job" / "test.jsonl", stopped.home / "elsewhere")
    change_job(stopped, test_file="../elsewhere/test.jsonl")
    assert [problem.field for problem in refused(stopped)] == ["test_file"]


def test_urls_headers_limits_of_endpoints_and_validations_may_differ_and_are_shown(stopped: Stopped) -> None:
    change_job(stopped, suffix="again")
    was = yaml.safe_load(stopped.job.read_text())["method"]["reinforcement"]["tools"][0]["server_url"]
    tool = {"name": "cat", "server_url": "http://127.0.0.1:9/cat?key=1", "timeout_s": 7}
    change_method(stopped, tools=[tool], hyperparameters={"n_epochs": 6, "eval_interval": 3, "compute_multiplier": 0.5})
    began = RecordedRun.load(RunFolder(stopped.run))
    job = began.apply_to(load_job(stopped.job, VARIABLES))
    assert job.reinforcement.tools[0].headers == {} and job.reinforcement.tools[0].timeout_s == 7
    assert began.recorded_plan(job, builders.plan(eval_interval=3)).eval_interval == 3
    changes = {c.setting.removeprefix("method.reinforcement."): (c.new, c.old) for c in began.list_changes(job)}
    assert changes == {
        "suffix": ('"again"', '"first"'),
        "tools[0].headers": ("{}", '{"Authorization": "**********"}'),
        "tools[0].timeout_s": ("7.0", "120.0"),
        "tools[0].server_url": ('"http://127.0.0.1:9/cat?**********"', json.dumps(was)),
        "hyperparameters.eval_interval": ("3", "2"),
    }


def test_resources_may_differ(stopped: Stopped) -> None:
    change_job(stopped, cluster={"engine_cores": 3, "engines": 2})
    job = RecordedRun.load(RunFolder(stopped.run)).apply_to(load_job(stopped.job, VARIABLES))
    assert (job.cluster.engine_cores, job.cluster.engines) == (3, 2)


# -- checks that are newer than the run --------------------------------------------------------------------------------


async def test_an_operators_lower_cap_warns_a_resumed_run_and_refuses_a_new_one(stopped: Stopped) -> None:
    operator = LOCAL.model_copy(update={"jobs": JobLimits(max_cores=1)})
    found = await prepared(stopped, operator)
    assert any("the operator's limit is 1; a new job would be refused" in warning for warning in found.warnings)
    job = load_job(stopped.job, VARIABLES)
    with pytest.raises(InvalidJob, match="over_limit"):
        await check_job(job, ModelFolder.find(job.model), [NODE], stopped.home, operator, free_space=PLENTY)


async def test_rows_that_are_too_long_today_warn_it(stopped: Stopped) -> None:
    change_record(stopped, context_length=20)
    found = await prepared(stopped)
    first = next(warning for warning in found.warnings if warning.startswith("training_file.messages, rows 1"))
    assert ": the row needs" in first
    assert len(found.tasks) == 10


async def test_a_template_that_is_refused_today_warns_it(stopped: Stopped) -> None:
    template = stopped.home / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace('"name": "', '"called": "'))
    digests = json.loads(stopped.record.read_text())["digests"]
    change_record(stopped, digests=digests | {"model": digest_path(stopped.home / "model")})
    found = await prepared(stopped)
    assert any("hermes does not read tool calls" in warning for warning in found.warnings)


async def test_a_grader_and_numbers_beyond_todays_limits_warn_it(stopped: Stopped) -> None:
    template = "{{ item.answer }}" * 1_001
    length = {"type": "length", "input": template, "max_chars": 10}
    parts = {f"p{i}": PYTHON if i < 17 else length for i in range(70)}
    grader = {"type": "multi", "graders": parts, "calculate_output": "p0"}
    record = json.loads(stopped.record.read_text())
    record["job"]["method"]["reinforcement"]["grader"] = grader
    record["job"]["cluster"]["max_num_seqs"] = 70_000
    change_record(stopped, **record)
    change_method(stopped, grader=grader)
    found = await prepared(stopped)
    for what in ("64 graders", "16 graders that start a process", "1,000 placeholders"):
        assert any(f"has more than {what}" in warning for warning in found.warnings)
    assert any("still uses 70000; in new jobs it must be" in warning for warning in found.warnings)
    assert found.job.cluster.max_num_seqs == 70_000
    job = load_job(stopped.job, VARIABLES)
    with pytest.raises(InvalidJob, match="grader_too_large"):
        await check_job(job, ModelFolder.find(job.model), [NODE], stopped.home, LOCAL, free_space=PLENTY)


async def test_memory_that_is_too_small_by_todays_formula_warns_it(stopped: Stopped) -> None:
    began = RecordedRun.load(RunFolder(stopped.run))
    job = began.apply_to(load_job(stopped.job, VARIABLES))
    small = Node("a", cores=2.0, memory_bytes=1 << 20)
    found = await check_job(
        job,
        ModelFolder.find(job.model),
        [small],
        stopped.home,
        LOCAL,
        free_space=PLENTY,
        recorded_run=began,
        was_accepted=True,
    )
    assert any(warning.startswith("cluster: ") and "memory" in warning for warning in found.warnings)


async def test_a_node_that_it_fitted_without_headroom_warns_it(stopped: Stopped) -> None:
    (used,) = (await prepared(stopped)).cluster.host_bytes
    began = RecordedRun.load(RunFolder(stopped.run))
    job, exact = began.apply_to(load_job(stopped.job, VARIABLES)), replace(NODE, memory_bytes=used)
    with pytest.raises(InvalidJob, match="and 8% of this memory must stay free"):
        await check_job(job, ModelFolder.find(job.model), [exact], stopped.home, LOCAL, free_space=PLENTY)
    found = await check_job(
        job,
        ModelFolder.find(job.model),
        [exact],
        stopped.home,
        LOCAL,
        free_space=PLENTY,
        recorded_run=began,
        was_accepted=True,
    )
    assert any("of this memory must stay free; a new job would be refused" in warning for warning in found.warnings)


async def test_the_checkpoints_that_it_has_written_need_no_room_again(stopped: Stopped) -> None:
    began = RecordedRun.load(RunFolder(stopped.run))
    assert began.num_checkpoints == len(list(stopped.checkpoints.iterdir())) > 0
    job, plan = began.apply_to(load_job(stopped.job, VARIABLES)), dict(began.plan) | {"steps": 60, "eval_interval": 1}

    async def refusal(num_checkpoints: int) -> str:
        run = replace(began, plan=plan, num_checkpoints=num_checkpoints)
        with pytest.raises(InvalidJob, match="disk_full") as raised:
            await check_job(
                job,
                ModelFolder.find(job.model),
                [NODE],
                stopped.home,
                LOCAL,
                free_space=FreeSpace(0, 1 << 34),
                recorded_run=run,
                was_accepted=True,
            )
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
async def test_what_makes_it_impossible_is_an_error(stopped: Stopped, breaks: str, code: str) -> None:
    began = RecordedRun.load(RunFolder(stopped.run))
    job = began.apply_to(load_job(stopped.job, VARIABLES))
    nodes, operator = [NODE], LOCAL
    match breaks:
        case "model":
            shutil.rmtree(stopped.home / "model")
        case "rows":
            (stopped.home / "job" / "train.jsonl").unlink()
        case "endpoint":
            operator = OperatorConfig()
        case "cores":
            nodes = [Node("a", cores=1.0)]
    with pytest.raises(InvalidJob) as raised:
        await check_job(
            job,
            ModelFolder.find(job.model),
            nodes,
            stopped.home,
            operator,
            free_space=PLENTY,
            recorded_run=began,
            was_accepted=True,
        )
    assert code in {problem.code for problem in raised.value.problems}


# -- what cannot be opened ---------------------------------------------------------------------------------------------


async def resume(stopped: Stopped) -> str:
    """The refusal of `agent-rft train --resume`; it comes before a cluster is started."""
    with pytest.raises(UserError) as raised, claim_run(stopped.run, 0.0, print) as claimed:
        job = load_job(stopped.job, VARIABLES)
        model = ModelFolder.find(job.model)
        await train(job, model, stopped.home / "runs", claimed, None, LOCAL, must_resume=True)
    return str(raised.value)


async def test_a_folder_without_a_checkpoint_is_refused(stopped: Stopped) -> None:
    shutil.rmtree(stopped.checkpoints)
    assert "has no checkpoint to resume from" in await resume(stopped)


@pytest.mark.parametrize("text", [None, "{", '{"plan": {}}'])
async def test_a_folder_that_does_not_say_how_it_began_is_refused_with_the_fix(
    stopped: Stopped, text: str | None
) -> None:
    path = stopped.record
    path.unlink() if text is None else path.write_text(text)
    assert "start a new run with `model` set to the checkpoint" in await resume(stopped)


async def test_a_folder_of_a_newer_version_is_refused_with_the_fix(stopped: Stopped) -> None:
    change_record(stopped, format=FORMAT + 1)
    assert "written by a newer version of agent-rft; resume it with that version" in await resume(stopped)


async def test_a_checkpoint_of_a_newer_version_is_refused_with_the_fix(stopped: Stopped) -> None:
    (checkpoint, _) = Checkpoints(stopped.checkpoints).latest() or (stopped.run, None)
    state = json.loads((checkpoint / LOOP_STATE_FILE).read_text())
    (checkpoint / LOOP_STATE_FILE).write_text(json.dumps(state | {"format": CHECKPOINT_FORMAT + 1}))
    assert "was written by a newer version of agent-rft; continue with that version" in await resume(stopped)


# -- folders from before 0.2.0 -----------------------------------------------------------------------------------------

MADE_BEFORE = "was created by a version before 0.2.0; finish or export it with that version"


@pytest.mark.parametrize("number", [None, FORMAT - 1])
async def test_a_folder_from_before_the_first_version_is_refused_and_left_as_it_is(
    stopped: Stopped, number: int | None
) -> None:
    path = stopped.record
    record = json.loads(path.read_text()) | {"format": number}
    path.write_text(json.dumps({name: value for name, value in record.items() if value is not None}))
    before = sorted(stopped.run.rglob("*"))
    assert await resume(stopped) == f"the run folder {stopped.run} {MADE_BEFORE}"
    assert sorted(stopped.run.rglob("*")) == before
    with pytest.raises(OutdatedFormat):
        RecordedRun.load(RunFolder(stopped.run))


async def test_a_checkpoint_from_before_the_first_version_is_refused(stopped: Stopped) -> None:
    path = stopped.checkpoints / "step-000004" / LOOP_STATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    assert (await resume(stopped)).endswith(f"step-000004 {MADE_BEFORE}")
