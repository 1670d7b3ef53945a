"""The full check of a job: all problems in one list with code, field, line and fix; a valid job as it is resolved.

Tools and graders are real servers on localhost; there is no Ray and no engine.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from rich.console import Console

from agent_rft.actors.weights.broadcast_sync import BroadcastSync
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.cluster.checks.check_job import CheckedJob, check_job
from agent_rft.cluster.checks.disk_space import FreeSpace
from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun
from agent_rft.cluster.checks.resumption.resume_compat import SettingDifference
from agent_rft.cluster.checks.schema_examples import make_example
from agent_rft.cluster.planning.model_folder import ModelFolder, read_sizes
from agent_rft.cluster.planning.plan_nodes import HEADROOM, Node
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.actor_configs import (
    create_weight_sync,
    learner_config,
    model_files,
    print_plan,
    worker_config,
)
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.job_file import load_job, read_job
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.node_groups import NodeGroup
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, ModelEndpoint, OperatorConfig
from agent_rft.spec.schemas.json_schema import find_schema_problem
from agent_rft.trainer.learner.adapter import AdapterConfig
from tests.support.builders import EXACT, job
from tests.support.fakes_http import LOCAL, Behavior, FakeEndpoint, Received, hangs, says, unused_port
from tests.support.paths import BASE
from tests.support.plans import plan_placement

FEW_ROWS = "the model will memorize so few"
SECRET = "sk-very-secret-4711"
NODE = Node("a", cores=2.0)
HEAD, GPU_NODE = Node("head", cores=0.0), Node("gpu", cores=32.0, gpus=4.0)
PLENTY = FreeSpace(disk_bytes=1 << 40, shm_bytes=1 << 34)
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tool(name: str = "cat", parameters: Any = PARAMETERS) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def row(text: str = "what was debt of vorzen in 2015?", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [tool()], "reference_answer": "1", **more}


@dataclass
class Case:
    """A job on disk that is valid until a test changes it."""

    folder: Path
    tool: FakeEndpoint
    grader: FakeEndpoint
    rows: list[Any] = field(default_factory=lambda: [row(), row("what was costs of lumtra in 2018?")])
    job: dict[str, Any] = field(default_factory=dict)
    reinforcement: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=lambda: [NODE])
    free: FreeSpace = PLENTY
    operator: OperatorConfig = LOCAL

    def write(self, name: str = "train.jsonl", rows: list[Any] | None = None) -> str:
        lines = [r if isinstance(r, str) else json.dumps(r) for r in (self.rows if rows is None else rows)]
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        return name

    def raw(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {SECRET}"}
        reinforcement = {
            "tools": [{"name": "cat", "server_url": self.tool.url, "headers": headers, "max_retries": 0}],
            "grader": {"type": "endpoint", "url": self.grader.url, "headers": headers},
            **self.reinforcement,
        }
        method = {"type": "reinforcement", "reinforcement": reinforcement}
        return {"model": str(BASE), "training_file": self.write(), "method": method, **self.job}

    async def prepare(
        self, learner: bool = True, accepted: bool = False, began: RecordedRun | None = None
    ) -> CheckedJob:
        path = self.folder / "job.json"
        path.write_text(json.dumps(self.raw()))
        job = load_job(path, {})
        job, accepted = (job, accepted) if began is None else (began.apply_to(job), True)
        return await check_job(
            job,
            ModelFolder.find(job.model),
            self.nodes,
            self.folder / "runs",
            self.operator,
            free_space=self.free,
            trains=learner,
            was_accepted=accepted,
            recorded_run=began,
        )

    def began(self, prepared: CheckedJob) -> RecordedRun:
        """A run that has begun with this job."""
        run = RunFolder(self.folder / "run")
        run.write_job(prepared.job, prepared.plan, prepared.values_to_record())
        return RecordedRun.load(run)

    async def warnings(self) -> tuple[str, ...]:
        """Without that of a test's few rows."""
        return tuple(warning for warning in (await self.prepare()).warnings if FEW_ROWS not in warning)

    async def problems(self) -> list[Problem]:
        with pytest.raises(InvalidJob) as raised:
            await self.prepare()
        assert SECRET not in str(raised.value)
        assert all(problem.fix and problem.message for problem in raised.value.problems)
        return raised.value.problems

    async def only_problem(self) -> Problem:
        (problem,) = await self.problems()
        return problem


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    async with FakeEndpoint(says({"output": "1"})) as tools, FakeEndpoint(says({"score": 0.5})) as grader:
        yield Case(tmp_path, tools, grader)


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
    assert few.startswith(f"training_file: 2 rows for 160 epochs: {FEW_ROWS}")


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
    assert "it has only 3 (one every 2 steps)" in warning


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


# -- rows --------------------------------------------------------------------------------------------------------------


async def test_a_row_that_leaves_no_room_for_an_answer_is_too_long(case: Case) -> None:
    case.rows = [row(), row("what was debt of vorzen in 2015? " * 300)]
    problem = await case.only_problem()
    assert (problem.code, problem.field, problem.file, problem.line) == (
        "row_too_long",
        "training_file.messages",
        "train.jsonl",
        2,
    )
    assert "the context has 2048" in problem.message
    assert "raise cluster.context_length" in problem.fix


async def test_a_row_that_the_template_cannot_render_is_named(case: Case) -> None:
    model = copy_of_base(case.folder)
    template = model / "chat_template.jinja"
    template.write_text(
        "{% if 'bad' in messages[0].content %}{{ raise_exception('no') }}{% endif %}" + template.read_text()
    )
    case.job = {"model": str(model), "test_file": case.write("test.jsonl", [row(), row("bad")])}
    problem = await case.only_problem()
    assert (problem.code, problem.field, problem.line) == ("unrenderable_row", "test_file.messages", 2)


async def test_a_row_without_a_value_of_the_graders_template_is_named_by_line(case: Case) -> None:
    case.rows = [row(), {"messages": row()["messages"]}]
    case.reinforcement = {"grader": {"type": "multi", "graders": {"exact": EXACT}, "calculate_output": "exact"}}
    problem = await case.only_problem()
    assert (problem.code, problem.field, problem.line) == ("missing_value", "training_file", 2)
    assert "item.reference_answer" in problem.message
    assert "graders.exact.reference" in problem.message


async def test_a_row_that_is_too_large_for_calls_is_named_by_line(case: Case) -> None:
    case.rows = [row(), row("what is on the page?", page="报" * 170_000)]
    problem = await case.only_problem()
    assert (problem.code, problem.field, problem.line) == ("row_too_large", "training_file", 2)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "objet"}, "is not valid"),
        ({"$ref": "#/$defs/none"}, "cannot be resolved"),
        ({"type": "string", "pattern": "("}, "is not a valid ECMA-262 regular expression"),
        ({"type": "object", "required": "path"}, "$.required"),
    ],
)
def test_invalid_schemas_are_refused(parameters: dict[str, Any], message: str) -> None:
    assert message in str(find_schema_problem(parameters))


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef"])
async def test_references_to_urls_are_never_fetched(case: Case, key: str) -> None:
    async with FakeEndpoint(says({"type": "string"})) as foreign:
        nested = {"type": "object", "properties": {"path": {"anyOf": [{key: foreign.url}]}}}
        case.rows = [{**row(), "tools": [tool(parameters=nested)]}]
        case.reinforcement = {"response_format": {"type": "json_schema", "json_schema": {"schema": nested}}}
        problems = await case.problems()
        assert foreign.received == []
    fields = {problem.field for problem in problems if problem.code == "invalid_schema"}
    assert fields == {"method.reinforcement.response_format", "training_file.tools[0].function.parameters"}
    assert all("points outside the schema" in p.message for p in problems)


async def test_a_job_that_began_with_a_schema_above_todays_caps_goes_on_with_a_warning(case: Case) -> None:
    case.rows = [{**row(), "tools": [tool(parameters={"properties": {"path": {"minLength": 10**9}}})]}]
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("schema_too_large", "training_file.tools[0].function.parameters")
    assert "$.properties.path.minLength: is 1,000,000,000; at most 10,000 are allowed" in problem.message
    prepared = await case.prepare(accepted=True)
    assert any("minLength" in warning and "this job continues" in warning for warning in prepared.warnings)


async def test_a_pattern_that_a_grammar_cannot_express_is_refused_only_beside_a_response_format(case: Case) -> None:
    lookahead = {"type": "object", "properties": {"path": {"pattern": "^(?!/)"}}}
    case.rows = [{**row(), "tools": [tool(parameters=lookahead)]}]
    await case.prepare()
    case.reinforcement = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("unsupported_pattern", "training_file.tools[0].function.parameters")


def test_references_to_files_are_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "credentials.json"
    secret.write_text('{"const": "sk-4711"}')
    mistake = str(find_schema_problem({"$ref": secret.as_uri()}))
    assert "points outside the schema" in mistake and "4711" not in mistake
    based = {"$id": secret.as_uri(), "$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}
    assert find_schema_problem(based) is None, "with an id, the reference still stays within the schema"


def test_a_schema_that_refers_to_itself_only_is_refused() -> None:
    assert "cycle" in str(find_schema_problem({"$ref": "#"}))


def test_valid_schemas_pass() -> None:
    assert find_schema_problem(None) is None
    assert find_schema_problem({}) is None
    assert find_schema_problem(PARAMETERS) is None


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        (PARAMETERS, {"path": ""}),
        ({"properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}, {"n": 3}),
        ({"type": "number", "exclusiveMinimum": 0}, 1),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": ["null", "string"]}, None),
        ({"type": "string", "minLength": 2}, "xx"),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2}, ["a", "a"]),
        ({"const": 7}, 7),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        (
            {"allOf": [{"required": ["a"], "type": "object"}, {"properties": {"b": {}}, "required": ["b"]}]},
            {"a": "", "b": ""},
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer", "default": 5}}}, 5),
        ({"type": "string", "examples": ["2020-01-01"]}, "2020-01-01"),
    ],
)
def test_examples_fit_their_schemas(schema: dict[str, Any], example: Any) -> None:
    assert make_example(schema) == example


def test_an_example_of_a_recursive_schema_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert "next" in make_example(node)


async def test_fifty_thousand_rows_are_checked_in_a_minute(case: Case) -> None:
    count = 2000
    case.rows = [json.dumps(row(f"what was debt of vorzen in {i}?")) for i in range(count)]
    case.reinforcement = {"grader": EXACT}
    begun = time.process_time()
    await case.prepare()
    assert time.process_time() - begun < 60 * count / 50_000


# -- the model ---------------------------------------------------------------------------------------------------------


def copy_of_base(folder: Path) -> Path:
    model = folder / "model"
    shutil.copytree(BASE, model)
    return model


def cut(file: str, size: int) -> Callable[[Path], None]:
    return lambda model: (model / file).write_bytes((model / file).read_bytes()[:size])


def without(*names: str) -> Callable[[Path], None]:
    def remove(model: Path) -> None:
        for name in names:
            (model / name).unlink()

    return remove


def replaced(file: str, *pairs: tuple[str, str]) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        text = (model / file).read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (model / file).write_text(text)

    return replace


def weights_with_endless_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def index_of_two(model: Path) -> None:
    names = {"a": "model.safetensors", "b": "model-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize(
    ("breaks", "code", "message"),
    [
        (without("config.json"), "not_a_model", "has no config.json"),
        (replaced("config.json", ("{", "[")), "not_a_model", "config.json"),
        (replaced("config.json", ('"qwen3"', '"sorcery"')), "not_a_model", "sorcery"),
        (replaced("config.json", ('"qwen3"', '"vit"')), "unsupported_model", "not a causal language model"),
        (replaced("config.json", ('"full_attention"', '"indexed_attention"')), "unsupported_model", "indexed"),
        (without("model.safetensors"), "not_a_model", "has no weights"),
        (cut("model.safetensors", 100_000), "corrupt_weights", "model.safetensors cannot be read"),
        (cut("model.safetensors", 4), "corrupt_weights", "model.safetensors cannot be read"),
        (weights_with_endless_header, "corrupt_weights", "model.safetensors cannot be read"),
        (
            index_of_two,
            "corrupt_weights",
            "model-00002.safetensors is listed in model.safetensors.index.json but is missing",
        ),
        (without(*TOKENIZER_FILES), "not_a_model", "has no tokenizer"),
        (cut("tokenizer.json", 50), "not_a_model", "the tokenizer cannot be read"),
        (without("chat_template.jinja"), "no_chat_template", "no chat template"),
        (replaced("chat_template.jinja", ("{%- for", "{%- each")), "template_syntax", "line 1 of the chat template"),
    ],
)
async def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(
    case: Case, breaks: Callable[[Path], None], code: str, message: str
) -> None:
    model = copy_of_base(case.folder)
    breaks(model)
    case.job = {"model": str(model)}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == (code, "model")
    assert message in problem.message


async def test_layers_with_a_state_are_not_divided_among_ranks(case: Case) -> None:
    model = copy_of_base(case.folder)
    replaced("config.json", ('"full_attention"', '"linear_attention"'))(model)
    case.job = {"model": str(model), "cluster": {"zero_stage": 3}}
    problem = await case.only_problem()
    assert (problem.code, problem.field, problem.fix) == (
        "stateful_layers_under_zero_3",
        "cluster.zero_stage",
        "set it to 2",
    )


@pytest.mark.parametrize(
    ("before", "after", "code", "message"),
    [
        ("{%- if m.role == 'tool' %}", "{%- if m.role == 'tool' %}{{ no() }}", "template_error", "'no' is undefined"),
        ('"name": "', '"called": "', "calls_not_parsed", "hermes does not read"),
    ],
)
async def test_a_template_whose_calls_or_results_are_lost_is_refused_with_what_became_of_them(
    case: Case, before: str, after: str, code: str, message: str
) -> None:
    model = copy_of_base(case.folder)
    replaced("chat_template.jinja", (before, after))(model)
    case.job = {"model": str(model)}
    problem = await case.only_problem()
    assert problem.code == code and problem.field.startswith("model_options.")
    assert message in problem.message


async def test_problems_of_weights_and_tokenizer_are_reported_together(case: Case) -> None:
    model = copy_of_base(case.folder)
    cut("model.safetensors", 100)(model)
    without("chat_template.jinja")(model)
    case.job = {"model": str(model)}
    assert [problem.code for problem in await case.problems()] == ["corrupt_weights", "no_chat_template"]


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("nowhere", "Hugging Face name"),
        ("/no/such/folder", "Hugging Face name"),
        ("org/model-7B", "hf download org/model-7B"),
    ],
)
async def test_a_missing_model_is_reported(case: Case, model: str, fix: str) -> None:
    case.job = {"model": model}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("missing_model", "model")
    assert fix in problem.fix


async def test_a_file_is_not_a_model_folder(case: Case) -> None:
    (case.folder / "model.gguf").write_bytes(b"")
    case.job = {"model": str(case.folder / "model.gguf")}
    assert (await case.only_problem()).code == "not_a_model"


async def test_a_context_longer_than_the_models_is_refused(case: Case) -> None:
    case.job = {"cluster": {"context_length": 4096}}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("context_too_long", "cluster.context_length")
    assert "2048" in problem.message


# -- tools and graders -------------------------------------------------------------------------------------------------


async def test_tools_that_fail_their_first_call(case: Case) -> None:
    await _tool_fails(case, says({"answer": "1"}), "tool_failed", "server_url", '"output"')
    await _tool_fails(case, says("down", 500), "tool_failed", "server_url", "HTTP 500")
    await _tool_fails(case, says("", 307), "wrong_path", "server_url", "HTTP 307")
    await _tool_fails(case, says("", 405), "wrong_path", "server_url", "does not accept POST")
    await _tool_fails(case, says(f"bad token {SECRET}", 401), "endpoint_refused", "headers", "HTTP 401")
    await _tool_fails(case, says("too large for nginx", 413), "tool_failed", "server_url", "client_max_body_size")
    await _tool_fails(case, says("\x1b[31mpay\x1b[0m first", 402), "tool_failed", "server_url", "body: pay first")


async def _tool_fails(case: Case, behave: Behavior, code: str, part: str, text: str) -> None:
    async with FakeEndpoint(behave) as case.tool:
        problem = await case.only_problem()
    assert (problem.code, problem.field) == (code, f"method.reinforcement.tools[0].{part}")
    assert text in problem.message + problem.fix
    assert case.tool.url in problem.message or part == "server_url"


async def test_a_tool_that_is_not_running_is_named_with_its_url(case: Case) -> None:
    url = f"http://127.0.0.1:{unused_port()}/cat"
    case.reinforcement = {"tools": [{"name": "cat", "server_url": url, "max_retries": 0}]}
    problem = await case.only_problem()
    assert problem.code == "tool_failed"
    assert url in problem.message
    assert "refused" in problem.message.lower()
    assert "check that the endpoint is running" in problem.fix
    assert "check that the endpoint is running" not in problem.message


async def test_first_calls_are_made_in_a_session_that_is_ended(case: Case) -> None:
    async with FakeEndpoint(says({})) as server:
        case.reinforcement = {"session": {"start_url": f"{server.url}/start", "end_url": f"{server.url}/end"}}
        await case.prepare()
        await case.prepare()
    start, end = (received.body for received in server.received[:2])
    assert (start["type"], start["item"], end["type"], end["reason"]) == (
        "session_start",
        row(),
        "session_end",
        "dry_run",
    )
    assert len({start["trace_id"], end["trace_id"], *(call.body["trace_id"] for call in case.tool.received[:1])}) == 1


@pytest.mark.parametrize(
    ("path", "answer", "code", "field"),
    [
        ("start", 500, "session_failed", "start_url"),
        ("start", 404, "session_failed", "start_url"),
        ("start", 401, "endpoint_refused", "headers"),
        ("end", 404, "session_failed", "end_url"),
        ("end", 307, "session_failed", "end_url"),
    ],
)
async def test_sessions_that_cannot_be_opened_or_ended(
    case: Case, path: str, answer: int, code: str, field: str
) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        return web.json_response("no machine", status=answer if request.path.endswith(path) else 200)

    async with FakeEndpoint(behave) as server:
        case.reinforcement = {
            "session": {"start_url": f"{server.url}/start", "end_url": f"{server.url}/end", "max_retries": 0}
        }
        problem = await case.only_problem()
    assert (problem.code, problem.field) == (code, f"method.reinforcement.session.{field}")
    assert f"HTTP {answer}" in problem.message and ("no machine" in problem.message or answer in (307, 500))


async def test_a_session_at_an_unusable_url(case: Case) -> None:
    case.reinforcement = {"session": {"end_url": "ftp://machines.example/end"}}
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("invalid_endpoint", "method.reinforcement.session.end_url")


async def test_a_missing_document_is_accepted_but_a_missing_path_is_not(case: Case) -> None:
    async def documents(request: Received) -> web.StreamResponse:
        if request.path == urlsplit(case.tool.url).path:
            arguments = json.loads(request.body["arguments"])  # each request is a call: no server has to bear another
            return web.json_response({"detail": f"no document {arguments}"}, status=404)
        return web.Response(status=404, text=f"Cannot POST {request.path}")

    async with FakeEndpoint(documents) as case.tool:
        await case.prepare()
        case.reinforcement = {"tools": [{"name": "cat", "server_url": case.tool.url + "/cta"}]}
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("wrong_path", "method.reinforcement.tools[0].server_url")


@pytest.mark.parametrize(
    "answer",
    ['{"score": "0.5"}', '{"score": NaN}', '{"score": null}', "{}", "", "0.5", "fine", '{"score": true}', "[1]"],
)
async def test_a_grader_that_returns_no_number_is_refused(case: Case, answer: str) -> None:
    async with FakeEndpoint(says(answer)) as case.grader:
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("grader_failed", "method.reinforcement.grader")
    assert '{"score": number}' in problem.fix


async def test_a_judge_s_server_without_log_probabilities_is_found_by_the_check(case: Case) -> None:
    asked = [{"role": "user", "content": "Is {{ sample.output_text }} right? Say yes or no."}]
    label = {"type": "label_model", "model": "judge", "labels": ["yes", "no"], "passing_labels": ["yes"]}
    case.reinforcement = {"grader": label | {"input": asked}}
    answer = {"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "length"}]}
    async with FakeEndpoint(says(answer)) as server:
        judge = ModelEndpoint(base_url=server.url, scoring="logprobs")
        case.operator = case.operator.model_copy(update={"models": {"judge": judge}})
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("grader_failed", "method.reinforcement.grader")
    assert "no top_logprobs" in problem.message and "remove `scoring` from models.judge" in problem.fix


async def test_a_judge_that_refuses_schemas_is_reported_once_by_the_check(case: Case) -> None:
    judge = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "How good is it?"}]}
    case.reinforcement = {"grader": judge, "held_out_grader": judge}
    verdict = {"choices": [{"message": {"role": "assistant", "content": '{"steps": [], "result": 1}'}}]}

    async def behave(request: Received) -> web.StreamResponse:
        if request.body["response_format"]["type"] == "json_schema":
            return web.json_response({"error": {"message": "use another response_format"}}, status=400)
        return web.json_response(verdict)

    async with FakeEndpoint(behave) as server:
        models = {"judge": ModelEndpoint(base_url=server.url)}
        case.operator = case.operator.model_copy(update={"models": models})
        warnings = [warning for warning in await case.warnings() if "no_json_schema" in warning]
    assert len(warnings) == 1 and "set response_format: json_object in models.judge" in warnings[0]


async def test_a_judge_with_a_wrong_key_is_named_with_its_own_setting_and_reason(case: Case) -> None:
    judge = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "How good is it?"}]}
    case.reinforcement = {"grader": judge}
    async with FakeEndpoint(says({"error": {"message": "Incorrect API key provided"}}, 401)) as server:
        models = {"judge": ModelEndpoint(base_url=server.url)}
        case.operator = case.operator.model_copy(update={"models": models})
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("endpoint_refused", "method.reinforcement.grader")
    assert "Incorrect API key provided" in problem.message and "`api_key` of models.judge" in problem.fix


async def test_a_grader_that_refuses_the_token(case: Case) -> None:
    async with FakeEndpoint(says(SECRET, 403)) as case.grader:
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("endpoint_refused", "method.reinforcement.grader.headers")
    assert case.grader.url in problem.message


async def test_guards_and_the_held_out_grader_are_checked_and_called_too(case: Case) -> None:
    guard = {"name": "brief", "grader": EXACT | {"input": "{{ item.gone }}"}}
    case.reinforcement = {"guards": [guard]}
    assert {problem.code for problem in await case.problems()} == {"missing_value"}
    async with FakeEndpoint(says("down", 500)) as server:
        case.reinforcement = {"held_out_grader": {"type": "endpoint", "url": server.url, "timeout_s": 0.2}}
        problem = await case.only_problem()
    assert (problem.code, problem.field) == ("grader_failed", "method.reinforcement.held_out_grader")


async def test_a_slow_grader_fails_at_its_own_deadline(case: Case) -> None:
    async with FakeEndpoint(hangs) as case.grader:
        case.reinforcement = {"grader": {"type": "endpoint", "url": case.grader.url, "timeout_s": 0.2}}
        problem = await case.only_problem()
    assert "deadline of 0.2 s" in problem.message


async def test_addresses_that_the_operator_does_not_allow_are_found_before_any_call(case: Case) -> None:
    case.operator = DEFAULT_CONFIG
    case.reinforcement = {"session": {"start_url": "http://169.254.169.254/latest"}}
    problems = await case.problems()
    reinforcement = "method.reinforcement"
    assert [(problem.code, problem.field) for problem in problems] == [
        ("forbidden_address", f"{reinforcement}.tools[0].server_url"),
        ("forbidden_address", f"{reinforcement}.session.start_url"),
        ("forbidden_address", f"{reinforcement}.grader.url"),
    ]
    assert "allowed_networks" in problems[0].fix
    assert case.tool.received == case.grader.received == []


async def test_host_names_of_such_addresses_are_found_by_the_first_call(case: Case) -> None:
    case.operator = DEFAULT_CONFIG
    case.reinforcement = {
        "tools": [{"name": "cat", "server_url": "http://localhost:9/cat"}],
        "grader": {"type": "endpoint", "url": "http://localhost:9/grade"},
    }
    tool_problem, grader_problem = await case.problems()
    assert (tool_problem.code, tool_problem.field) == (
        "forbidden_address",
        "method.reinforcement.tools[0].server_url",
    )
    assert "resolves to" in tool_problem.message and "loopback" in tool_problem.message
    assert "allowed_networks" in tool_problem.fix and "allowed_networks" not in tool_problem.message
    assert (grader_problem.code, grader_problem.field) == ("forbidden_address", "method.reinforcement.grader")


JSON_GRADER = {"type": "string_check", "input": "{{sample.output_json.n}}", "reference": "1", "operation": "eq"}


async def test_a_grader_that_reads_json_gets_json_that_fits_the_response_format(case: Case) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    case.reinforcement = {
        "grader": JSON_GRADER,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    await case.prepare()


async def test_a_grader_that_reads_json_needs_a_response_format(case: Case) -> None:
    case.reinforcement = {"grader": JSON_GRADER}
    problem = await case.only_problem()
    assert problem.code == "grader_failed"
    assert "response_format" in problem.fix


async def test_a_grader_that_reads_tool_calls_gets_one(case: Case) -> None:
    name = "{{ sample.output_tools[0].function.name }}"
    case.reinforcement = {"grader": {"type": "string_check", "input": name, "reference": "cat", "operation": "eq"}}
    await case.prepare()


# -- disk and memory ---------------------------------------------------------------------------------------------------


async def test_a_full_disk_is_reported_with_numbers(case: Case) -> None:
    case.free = FreeSpace(disk_bytes=80 << 20, shm_bytes=PLENTY.shm_bytes)
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("disk_full", "--runs")
    assert "5 checkpoints may take 88 MiB" in problem.message
    case.operator = LOCAL.model_copy(update={"checkpoint_store": "memory://"})  # one more stays until it is copied
    problem = await case.only_problem()
    assert "6 checkpoints may take" in problem.message


async def test_a_run_that_only_grades_needs_room_neither_for_a_learner_nor_for_checkpoints(case: Case) -> None:
    case.nodes = [replace(NODE, cores=1)]
    case.free = FreeSpace(disk_bytes=90 << 20, shm_bytes=None)
    prepared = await case.prepare(learner=False)
    assert [place.role for place in prepared.cluster.assignments] == ["engine"]


@pytest.mark.parametrize(("shm_bytes", "message"), [(None, "no shared memory exists"), (1 << 20, "1 MiB are free")])
async def test_too_little_shared_memory_is_refused(case: Case, shm_bytes: int | None, message: str) -> None:
    case.free = FreeSpace(PLENTY.disk_bytes, shm_bytes)
    problem = await case.only_problem()
    assert problem.code == "small_shared_memory"
    assert message in problem.message
    assert "--shm-size=1g" in problem.fix


async def test_shared_memory_is_not_checked_with_several_nodes(case: Case) -> None:
    case.free = FreeSpace(PLENTY.disk_bytes, None)
    case.nodes.append(Node("b", cores=2.0))
    await case.prepare()


async def test_too_few_nodes_are_a_problem_unless_the_operator_lets_jobs_wait_for_more(case: Case) -> None:
    case.nodes = [Node("a", cores=1.0)]
    case.job = {"cluster": {"engine_gpus": 0}}
    assert (await case.only_problem()).code == "too_few_resources"
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    (warning,) = await case.warnings()
    assert warning.startswith("the job needs 2 cores")
    assert warning.endswith("but the cluster has 1; the job waits until nodes join")


async def test_shared_memory_is_not_checked_if_the_job_waits_for_the_nodes_of_its_engines(case: Case) -> None:
    case.nodes = [HEAD]
    case.job = {"cluster": {"engine_gpus": 0}}
    case.free = FreeSpace(PLENTY.disk_bytes, 1 << 20)
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    assert await case.warnings()


async def test_while_nodes_with_gpus_may_join_no_job_is_planned_for_cpus(case: Case) -> None:
    case.nodes = [HEAD, Node("graders", cores=4.0)]
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("unknown_nodes", "cluster.engine_gpus")
    with pytest.raises(InvalidJob):
        await case.prepare(accepted=True)
    case.nodes.append(GPU_NODE)
    assert (await case.prepare()).placement.engine_gpus == 1


async def test_the_operators_list_stands_for_nodes_that_join_on_demand(case: Case) -> None:
    case.nodes = [HEAD]
    nodes = (NodeGroup(name="head", cores=0), NodeGroup(name="gpu", count=2, cores=32, gpus=4))
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0, "nodes": nodes})
    prepared = await case.prepare()
    assert (prepared.placement.engines, prepared.placement.learner_ranks) == (4, 4)
    assert [node.name for node in prepared.cluster.nodes] == ["head", "gpu-0", "gpu-1"]
    case.job = {"cluster": {"engines": 8}}  # would wait forever
    assert (await case.only_problem()).code == "too_few_resources"


async def test_a_list_of_nodes_without_gpus_is_for_training_on_cpus(case: Case) -> None:
    case.nodes = [HEAD]
    nodes = (NodeGroup(name="worker", count=2, cores=1),)
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0, "nodes": nodes})
    assert (await case.prepare()).placement.engine_gpus == 0


async def test_a_resumed_run_waits_for_the_nodes_of_its_layout(case: Case) -> None:
    case.nodes = [HEAD, GPU_NODE]
    began = case.began(await case.prepare())
    case.nodes = [HEAD]
    case.operator = LOCAL.model_copy(update={"wait_for_nodes_s": 60.0})
    resumed = await case.prepare(began=began)
    assert (resumed.placement.engines, resumed.placement.engine_gpus) == (2, 1)
    assert any("waits until nodes join" in warning for warning in resumed.warnings)


async def test_too_little_memory_is_refused(case: Case) -> None:
    case.nodes = [Node("a", cores=2.0, memory_bytes=2 << 30)]
    assert (await case.only_problem()).code == "too_little_memory"


async def test_a_runs_folder_that_is_not_writable_is_refused(case: Case) -> None:
    (case.folder / "runs").write_text("a file")
    problem = await case.only_problem()
    assert (problem.code, problem.field) == ("runs_not_writable", "--runs")
