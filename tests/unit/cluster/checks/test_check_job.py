"""The check of a valid job, as it is resolved, and the one list of problems of an invalid one."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from agent_rft.actors.weights.broadcast_sync import BroadcastSync
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.checks.resumption.resume_compat import SettingDifference
from agent_rft.cluster.planning.model_folder import ModelFolder, read_sizes
from agent_rft.cluster.planning.plan_nodes import HEADROOM, Node
from agent_rft.cluster.run.actor_configs import (
    create_weight_sync,
    learner_config,
    model_files,
    print_plan,
    worker_config,
)
from agent_rft.errors import InvalidJob
from agent_rft.spec.job_file import read_job
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import AdapterConfig
from tests.support.builders import job
from tests.support.fakes_http import LOCAL
from tests.support.job_case import FEW_ROWS, GPU_NODE, NODE, SECRET, Case, row, tool
from tests.support.paths import BASE
from tests.support.plans import plan_placement

# -- a valid job -------------------------------------------------------------------------------------------------------


async def test_a_valid_job_is_resolved(case: Case) -> None:
    case.job = {"validation_file": case.write("valid.jsonl", [row("new question?")])}
    prepared = await case.prepare()
    assert (prepared.plan.num_rows, prepared.plan.batch_size, prepared.plan.n_epochs) == (2, 2, 160)
    assert prepared.context_length == 2048
    assert prepared.placement.dtype == "float32"
    assert [len(tasks) for tasks in (prepared.tasks, prepared.validation, prepared.test)] == [2, 1, 0]
    assert prepared.job.model == str(BASE)
    (few,) = prepared.warnings
    assert few.startswith(f"training_file: has only 2 rows for 160 epochs, so {FEW_ROWS}")


async def test_each_tool_and_the_grader_is_called_once_with_values_that_fit(case: Case) -> None:
    await case.prepare()
    (call,), (grade,) = case.tool.received, case.grader.received
    assert (call.body["name"], call.body["arguments"]) == ("cat", '{"path": ""}')
    assert call.headers["Authorization"] == f"Bearer {SECRET}"
    assert call.body["item"] == grade.body["item"] == row()
    assert [c["function"]["name"] for c in grade.body["sample"]["output_tools"]] == ["cat"]
    assert grade.body["sample"]["output_text"] == ""


async def test_a_job_without_tools_passes(case: Case) -> None:
    case.rows = [{"messages": row()["messages"]}]
    case.reinforcement = {"tools": []}
    assert await case.warnings() == ()


async def test_a_supervised_job_is_checked_by_whole_conversations_and_calls_no_endpoint(case: Case) -> None:
    turn = {"role": "assistant", "content": "1 2 3 " * 1000}
    case.rows = [{"messages": [*row()["messages"], turn]}, row()]
    case.job = {"method": {"type": "supervised"}, "cluster": {"context_length": 100}}
    too_long, bad = sorted(await case.problems(), key=lambda problem: problem.code, reverse=True)
    assert (too_long.code, too_long.line, too_long.field) == ("row_too_long", 1, "training_file.messages")
    assert (bad.code, bad.line) == ("invalid_row", 2)
    assert case.tool.received == case.grader.received == []


async def test_a_supervised_job_makes_one_update_a_batch_at_its_own_rate(case: Case) -> None:
    case.rows = [{"messages": [*row()["messages"], {"role": "assistant", "content": "1"}]}]
    case.job = {"method": {"type": "supervised"}}
    prepared = await case.prepare()
    learner = learner_config(prepared)
    assert (learner.method, learner.algorithm.updates_per_batch) == ("supervised", 1)
    assert learner.learning_rate == prepared.plan.learning_rate == 1.2e-3
    assert learner.warm_up_steps is None
    assert "algorithm.learning_rate" in [choice.setting for choice in prepared.choices]


def micro_batches(prepared: CheckedJob) -> int:
    return learner_config(prepared).micro_batch_tokens


def small(size: int) -> Node:
    """A node whose memory is just enough for micro-batches of `size` tokens."""
    model, _ = read_sizes(ModelFolder.find(str(BASE)))
    assert model is not None
    (needed,) = plan_placement(job(cluster={"micro_batch_tokens": size}), [NODE], model.shape, 2048).host_bytes
    return replace(NODE, memory_bytes=math.ceil(needed / (1 - HEADROOM)) + 1)


def printed(prepared: CheckedJob) -> str:
    console = Console(record=True, width=400, file=io.StringIO())
    print_plan(console, prepared)
    return console.export_text()


async def test_the_learner_gets_the_size_of_micro_batches_that_fits(case: Case) -> None:
    prepared = await case.prepare()
    assert prepared.job.cluster.micro_batch_tokens == "auto" and micro_batches(prepared) == 8192
    assert "cluster.micro_batch_tokens: auto is 8192 (8,192 tokens or the context length of 2,048" in printed(prepared)
    case.nodes = [small(5120)]
    assert micro_batches(await case.prepare()) == 5120
    case.job = {"cluster": {"micro_batch_tokens": 3000}}
    prepared = await case.prepare()
    assert micro_batches(prepared) == 3000
    assert "cluster.micro_batch_tokens" not in [choice.setting for choice in prepared.choices]


async def test_a_resumed_run_keeps_its_micro_batches_while_they_fit(case: Case) -> None:
    case.nodes = [small(5120)]
    began = case.began(await case.prepare())
    case.nodes = [NODE]
    kept = await case.prepare(began=began)
    assert (micro_batches(kept), kept.choices, kept.setting_changes, kept.layout_changes) == (5120, (), (), ())
    assert "context 2048 tokens, micro-batches of 5120 tokens" in printed(kept)
    case.nodes = [small(4096)]
    smaller = await case.prepare(began=began)
    assert micro_batches(smaller) == 4096
    assert smaller.layout_changes == (SettingDifference("cluster.micro_batch_tokens", "4096", "5120"),)
    case.job = {"cluster": {"micro_batch_tokens": 2048}}
    given = await case.prepare(began=began)
    assert micro_batches(given) == 2048
    assert given.setting_changes == (SettingDifference("cluster.micro_batch_tokens", "2048", "5120"),)


async def test_a_resumed_run_whose_layout_no_longer_fits_gets_another_and_reports_both(case: Case) -> None:
    case.nodes = [GPU_NODE]
    began = case.began(await case.prepare())
    assert (await case.prepare(began=began)).layout_changes == ()
    case.nodes = [replace(GPU_NODE, cores=16.0, gpus=2.0)]
    resumed = await case.prepare(began=began)
    (change,) = resumed.layout_changes
    assert change.setting == "cluster"
    assert change.old.startswith("2 engines of 1 GPU and 2 learner ranks, ZeRO stage 0")
    assert change.new.startswith("1 engine of 1 GPU and 1 learner rank, ZeRO stage 0")
    assert "cluster is 1 engine of 1 GPU and 1 learner rank" in printed(resumed)


async def test_a_run_that_began_with_a_number_keeps_it(case: Case) -> None:
    case.job = {"cluster": {"micro_batch_tokens": 3000}}
    began = case.began(await case.prepare())
    for cluster in ({}, {"micro_batch_tokens": "auto"}):
        case.job = {"cluster": cluster}
        kept = await case.prepare(began=began)
        assert (micro_batches(kept), kept.setting_changes) == (3000, ())


@pytest.mark.parametrize(
    ("lora", "cluster", "trained"),
    [
        ("auto", {}, None),
        ("auto", {"share_engines": True}, LoraSpec()),
        ({"rank": 4}, {}, LoraSpec(rank=4)),
    ],
)
async def test_the_card_of_a_model_has_the_adapter_that_was_trained(
    case: Case, lora: Any, cluster: dict[str, Any], trained: LoraSpec | None
) -> None:
    case.reinforcement, case.job = {"algorithm": {"lora": lora}}, {"cluster": cluster}
    prepared = await case.prepare()
    assert model_files(prepared).card.lora == prepared.placement.lora == trained


@pytest.mark.parametrize("method", ["supervised", "reinforcement"])
async def test_the_learner_warms_up_for_as_many_steps_as_the_job_says(case: Case, method: str) -> None:
    case.rows = [{"messages": [*row()["messages"], {"role": "assistant", "content": "1"}]}] * 2
    algorithm = {"algorithm": {"warm_up_steps": 1}}
    if method == "supervised":
        case.job = {"method": {"type": "supervised", "supervised": algorithm}}
    else:
        case.rows, case.reinforcement = [row()], algorithm
    assert learner_config(await case.prepare()).warm_up_steps == 1


async def test_with_lora_engines_have_slots_for_its_adapters_which_go_through_the_object_store(case: Case) -> None:
    source: Any = SimpleNamespace(incarnation=1)
    case.job = {"cluster": {"weight_transport": "broadcast"}}
    prepared = await case.prepare()
    assert worker_config(prepared, [], None, None).engine.lora is None
    assert isinstance(create_weight_sync(prepared, source), BroadcastSync)
    case.reinforcement = {"algorithm": {"lora": {"rank": 8, "alpha": 16, "targets": ["q_proj"]}}}
    prepared = await case.prepare()
    assert worker_config(prepared, [], None, None).engine.lora == AdapterConfig(8, 16.0, ("q_proj",))
    assert type(create_weight_sync(prepared, source)) is WeightSync


async def test_early_stop_needs_a_validation_file(case: Case) -> None:
    case.reinforcement = {"early_stop": {"patience": 2}, "hyperparameters": {"n_epochs": 9, "eval_interval": 1}}
    [problem] = await case.problems()
    assert (problem.code, problem.field) == ("early_stop_without_validation", "method.reinforcement.early_stop")
    assert "set validation_file" in problem.fix
    case.job = {"validation_file": case.write("validation.jsonl", [row("new question?")])}
    assert (await case.prepare()).warnings == ()


async def test_a_patience_that_is_never_used_up_gives_a_warning(case: Case) -> None:
    case.reinforcement = {"early_stop": {"patience": 3}, "hyperparameters": {"n_epochs": 5, "eval_interval": 2}}
    case.job = {"validation_file": case.write("validation.jsonl", [row("new question?")])}
    [warning] = (await case.prepare()).warnings
    assert "the job has only 3 validations (one every 2 steps)" in warning


async def test_settings_that_are_rarely_intended_give_warnings(case: Case) -> None:
    tools = case.raw()["method"]["reinforcement"]["tools"]
    case.reinforcement = {
        "tools": [*tools, tools[0] | {"name": "grep"}],
        "hyperparameters": {"reasoning_effort": "low"},
    }
    case.job = {"test_file": case.write("test.jsonl", [row(), row("new question?")])}
    shared, unused, reasoning = await case.warnings()
    assert "1 of 2 rows are also in the training file" in shared
    assert "'grep'" in unused
    assert "cannot be limited" in reasoning
    assert case.tool.received[-1].body["name"] == "cat"


async def test_checkpoints_that_take_longer_than_their_interval_give_warnings(case: Case) -> None:
    case.job = {"cluster": {"checkpoint_interval": {"minutes": 1e-6}}}
    (slow,) = (warning for warning in await case.warnings() if "slow_checkpoints" in warning)
    assert slow.startswith("cluster.checkpoint_interval.minutes: writing a checkpoint takes about ")


# -- one list ----------------------------------------------------------------------------------------------------------

MANY_MISTAKES = """
model: {base}
modle: typo
training_file: train.jsonl
validation_file: nowhere.jsonl
method:
  type: reinforcement
  reinforcement:
    tools:
      - {{name: cat, server_url: "http://127.0.0.1:1/cat", headers: {{Authorization: "Bearer ${{NO_SUCH_TOKEN}}"}}}}
    grader: {{type: endpoint, uri: "http://127.0.0.1:1"}}
    algorithm: {{top_p: 0.9, clip_low: 7}}
cluster: {{engine_cores: 40, context_length: 100000, dtype: bfloat16}}
"""


async def test_mistakes_of_all_kinds_are_in_one_list(case: Case) -> None:
    rows = [
        row(),
        '{"messages": [',
        row(tools=[tool("grep")]),
        {"tools": []},
        row(tools=[tool(parameters={"type": 3})]),
    ]
    case.write(rows=rows)
    (case.folder / "job.yaml").write_text(MANY_MISTAKES.format(base=BASE))
    job, found = read_job(case.folder / "job.yaml", {})
    assert job is not None
    with pytest.raises(InvalidJob, match="the job has 16 problems") as raised:
        await check_job(
            job,
            ModelFolder.find(job.model),
            [NODE],
            case.folder,
            LOCAL,
            known_problems=found,
            free_space=FreeSpace(0, None),
        )
    name = str(case.folder / "job.yaml")
    reinforcement = "method.reinforcement"
    assert [(p.code, p.field, p.file, p.line) for p in raised.value.problems] == [
        ("missing_variable", f"{reinforcement}.tools[0].headers.Authorization", name, 10),
        ("invalid_missing", f"{reinforcement}.grader.url", name, 11),
        ("invalid_extra_forbidden", f"{reinforcement}.grader.uri", name, 11),
        ("invalid_less_than", f"{reinforcement}.algorithm.clip_low", name, 12),
        ("truncated_sampling", f"{reinforcement}.algorithm.top_p", name, 12),
        ("invalid_extra_forbidden", "modle", name, 3),
        ("broken_json", "training_file", "train.jsonl", 2),
        ("invalid_row", "training_file", "train.jsonl", 4),
        ("missing_file", "validation_file", "nowhere.jsonl", None),
        ("tool_without_server", "training_file.tools[0]", "train.jsonl", 3),
        ("invalid_schema", "training_file.tools[0].function.parameters", "train.jsonl", 5),
        ("context_too_long", "cluster.context_length", None, None),
        ("bfloat16_on_cpu", "cluster.dtype", None, None),
        ("too_few_resources", "cluster", None, None),
        ("disk_full", "--runs", None, None),
        ("small_shared_memory", "cluster", None, None),
    ]


async def test_many_problems_of_one_kind_are_counted(case: Case) -> None:
    case.rows = [row(tools=[tool(f"grep{i}")]) for i in range(50)]
    problems = await case.problems()
    assert len(problems) == 11
    assert problems[-1].message == "and 40 more of this kind"
    assert (problems[-1].file, problems[-1].line, problems[-1].rows) == ("train.jsonl", 11, "11-50")


async def test_the_same_problem_of_many_rows_is_one(case: Case) -> None:
    case.rows = [row(tools=[tool(), tool("grep")][i % 2 :]) for i in range(50)]
    problem = await case.only_problem()
    assert (problem.field, problem.line) == ("training_file.tools[1]", 1)
    assert problem.message == "the row's tool 'grep' has no server" and problem.rows == "1-50"
    assert str(problem).startswith("training_file.tools[1] (train.jsonl, rows 1-50): the row's tool")


async def test_the_rows_of_a_shared_mistake_keep_their_lines(case: Case) -> None:
    bad = (*range(1, 8), 9, *range(12, 21))
    case.rows = [row() if line not in bad else {"messages": []} for line in range(1, 30)]
    problem = await case.only_problem()
    assert (problem.line, problem.rows) == (1, "1-7, 9, 12-20")


async def test_no_endpoint_is_called_while_the_method_has_mistakes(case: Case) -> None:
    case.reinforcement = {"grader": {"type": "endpoint", "url": "nowhere"}}
    assert (await case.only_problem()).field == "method.reinforcement.grader.url"
    assert case.tool.received == []
