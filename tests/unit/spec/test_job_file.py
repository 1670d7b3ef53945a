"""Job files: clear error messages, environment variables, no secret shown, and how auto is resolved."""

from __future__ import annotations

import json
import re
import tempfile
from os.path import expanduser, relpath
from pathlib import Path
from typing import Any

import pytest

from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.config_reader import REMOVED_SETTINGS
from agent_rft.spec.job import FILES, JobSpec
from agent_rft.spec.job_file import add_lines, load_job, read_job
from tests.support.builders import EXACT, raw_job
from tests.support.paths import ROOT
from tests.support.settings import all_models


def job_of(raw: Any, environment: dict[str, str] | None = None) -> JobSpec:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(raw))
        return load_job(path, environment or {})


def problems_of(job: Any, environment: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(InvalidJob) as raised:
        job_of(job, environment)
    return raised.value.problems


def test_a_minimal_job_needs_model_file_and_grader() -> None:
    job = job_of(raw_job())
    assert Path(job.training_file).name == "train.jsonl"
    assert job.cluster.engines == job.cluster.learner_ranks == "auto"


def test_yaml_and_json_are_equivalent_and_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "job.json").write_text(json.dumps(raw_job() | {"model": "base"}))
    (tmp_path / "job.yaml").write_text(json.dumps(raw_job() | {"model": "base"}))
    job = load_job(tmp_path / "job.yaml", {})
    assert job == load_job(tmp_path / "job.json", {})
    assert job.model == str(tmp_path / "base")


def test_a_tilde_in_paths_of_a_job_is_the_home(tmp_path: Path) -> None:
    home = expanduser("~")
    (tmp_path / "sub").mkdir()
    here = f"~/{relpath(tmp_path, home)}"
    (tmp_path / "base").mkdir()
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    files = {name: f"{here}/{name}.jsonl" for name in FILES}
    options = {"model_options": {"chat_template": f"{here}/own.jinja"}}
    (tmp_path / "sub" / "job.json").write_text(json.dumps(raw_job() | {"model": f"{here}/base"} | files | options))
    job = load_job(tmp_path / "sub" / "job.json", {})
    assert job.model == str(tmp_path / "base")
    assert [getattr(job, name) for name in FILES] == [str(tmp_path / f"{name}.jsonl") for name in FILES]
    assert job.model_options.chat_template == "{{ messages }}"
    (tmp_path / "sub" / "job.json").write_text(json.dumps(raw_job() | {"model": "~/nowhere/base"}))
    assert load_job(tmp_path / "sub" / "job.json", {}).model == f"{home}/nowhere/base"  # shown where it is missing


@pytest.mark.parametrize(
    ("job", "field", "said"),
    [
        (raw_job() | {"modle": 1}, "modle", "unknown key"),
        (raw_job(algorithm={"clip": 0.2}), "method.reinforcement.algorithm.clip", "unknown key"),
        (raw_job(algorithm={"clip_low": 2}), "method.reinforcement.algorithm.clip_low", "less than 1"),
        (
            raw_job(hyperparameters={"batch_size": "many"}),
            "method.reinforcement.hyperparameters.batch_size",
            "integer, or 'auto' (given: 'many')",
        ),
        (raw_job(grader={"type": "vote"}), "method.reinforcement.grader", "unknown type 'vote'"),
        (raw_job(grader={}), "method.reinforcement.grader", "`type` is missing"),
        (raw_job(limits={"on_timeout": "zero"}), "method.reinforcement.limits.on_timeout", "'discard' or 'grade'"),
        (raw_job(limits=3), "method.reinforcement.limits", "must be a mapping of keys to values"),
        (raw_job() | {"suffix": "x" * 65}, "suffix", "must have at most 64 characters"),
        (raw_job(tools=[{"name": "a"}]), "method.reinforcement.tools[0].server_url", "is missing"),
        (raw_job(response_format={"type": "xml"}), "method.reinforcement.response_format", "json_schema"),
        (
            {"model": "m", "training_file": "t", "method": {"type": "reinforcement"}},
            "method",
            "`reinforcement` are missing",
        ),
        (raw_job() | {"seed": -1}, "seed", "greater than or equal to 0"),
        (
            raw_job(tools=[{"name": "a", "server_url": "https://a.example", "timeout_s": 21_601}]),
            "method.reinforcement.tools[0].timeout_s",
            "must be at most 21600 s (six hours) (given: 21601)",
        ),
        (
            raw_job(grader={"type": "endpoint", "url": "https://a.example", "attempt_timeout_s": 1e9}),
            "method.reinforcement.grader.attempt_timeout_s",
            "must be at most 21600 s (six hours) (given: 1000000000.0)",
        ),
        ([], "job", "must be a mapping"),
        (raw_job() | {"cluster": {"context_length": 0}}, "cluster.context_length", "equal to 1, or 'auto' (given: 0)"),
    ],
)
def test_a_mistake_names_its_field(job: Any, field: str, said: str) -> None:
    found = [p for p in problems_of(job) if p.field.startswith(field)]
    assert found, problems_of(job)
    assert said in found[0].message
    assert found[0].fix
    assert Path(str(found[0].file)).name == "job.json"


def test_calls_of_tools_sessions_and_graders_may_take_six_hours() -> None:
    long = {"timeout_s": 21_600, "attempt_timeout_s": 21_600}
    tool, grader = {"name": "a", "server_url": "https://a.example"}, {"type": "endpoint", "url": "https://a.example"}
    session = {"start_url": "https://a.example"}
    job = JobSpec.model_validate(raw_job(tools=[tool | long], grader=grader | long, session=session | long))
    assert job.reinforcement.tools[0].timeout_s == 21_600


@pytest.mark.parametrize(
    ("named", "name"), [({"name": "exact"}, "exact"), ({}, "string_check"), ({"name": 7}, "string_check")]
)
def test_single_grader_in_place_of_named_graders_is_one_problem(named: dict[str, Any], name: str) -> None:
    one = EXACT | named
    (problem,) = problems_of(raw_job(grader={"type": "multi", "graders": one, "calculate_output": name}))
    assert problem.field == "method.reinforcement.grader.graders"
    assert (
        problem.message == f"is a single grader, but must be a mapping of names to graders, such as {{{name}: {{...}}}}"
    )
    assert problem.fix == "put the grader under a name in this mapping, and use the name in calculate_output"
    job_of(raw_job(grader={"type": "multi", "graders": {"type": EXACT}, "calculate_output": "type"}))


@pytest.mark.parametrize("on_timeout", ["discard", "grade"])
def test_time_outs_are_discarded_or_graded(on_timeout: str) -> None:
    assert job_of(raw_job(limits={"on_timeout": on_timeout})).reinforcement.limits.on_timeout == on_timeout
    assert job_of(raw_job()).reinforcement.limits.on_timeout == "discard"


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p"])
def test_truncated_sampling_is_rejected_with_the_reason(name: str) -> None:
    (problem,) = problems_of(raw_job(algorithm={name: 0.9}))
    assert problem.code == "truncated_sampling"
    assert "log-probabilities" in problem.fix


def test_all_mistakes_are_reported_together() -> None:
    assert len(problems_of(raw_job(algorithm={"a": 1, "b": 2}) | {"c": 3})) == 3


def in_yaml(folder: Path, text: str, environment: dict[str, str] | None = None) -> tuple[JobSpec | None, list[Problem]]:
    (folder / "job.yaml").write_text(text)
    return read_job(folder / "job.yaml", environment or {})


JOB = """
model: org/model
training_file: train.jsonl
method:
  type: reinforcement
  reinforcement:
    grader: {type: string_check, input: a, reference: b, operation: eq}
"""


def test_a_mistake_names_its_line(tmp_path: Path) -> None:
    _, problems = in_yaml(
        tmp_path, JOB + "    tools:\n    - name: a\n    - {name: b, server_url: '${X}'}\nclutser: {}\n"
    )
    assert [(problem.field, problem.line) for problem in problems] == [
        ("method.reinforcement.tools[1].server_url", 10),
        ("method.reinforcement.tools[0].server_url", 9),
        ("clutser", 11),
    ]


def test_a_duplicate_key_is_a_mistake(tmp_path: Path) -> None:
    job, (problem,) = in_yaml(tmp_path, JOB + "seed: 1\nseed: 2\n")
    assert (problem.code, problem.field, problem.line) == ("duplicate_key", "seed", 9)
    assert job is not None


@pytest.mark.parametrize(
    ("mistake", "kept"),
    [
        ("clutser: {}", True),
        ("seed: -1", True),
        ("cluster: {engines: none}", True),
        ("    tools: [{name: a}]", True),
        ("    tools: [{name: a, server_url: b}, {name: a, server_url: c}]", True),
        ("    limits: {max_tool_calls: '${UNSET}'}", True),
        ("suffix: ['${UNSET}']", True),
        ("    tools: 3", True),
        ("    session: {start_url: '${UNSET}/start', end_url: '${UNSET}/end'}", True),
        ("    held_out_grader: {type: endpoint, url: '${UNSET}/grade'}", True),
        ("    guards: [{name: a, reward: 0, grader: {type: endpoint, url: '${UNSET}/grade'}}]", True),
        ("    guards: [{name: a, reward: 0}]", True),
        ("model: 3", False),
        ("method: {type: magic}", False),
    ],
)
def test_the_valid_rest_of_a_job_can_still_be_checked(tmp_path: Path, mistake: str, kept: bool) -> None:
    job, problems = in_yaml(tmp_path, JOB + mistake + "\n")
    assert problems
    assert (job is not None) == kept
    with pytest.raises(InvalidJob):
        load_job(tmp_path / "job.yaml", {})


def test_an_invalid_grader_leaves_the_rest_of_the_job(tmp_path: Path) -> None:
    job, (problem,) = in_yaml(tmp_path, JOB.replace("string_check", "magic"))
    assert problem.field == "method.reinforcement.grader"
    assert job is not None
    assert job.training_file == str(tmp_path / "train.jsonl")


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: x\nmethod: [1,\nseed: 2\n")
    with pytest.raises(InvalidJob) as raised:
        load_job(tmp_path / "job.yaml", {})
    assert raised.value.problems[0].line is not None
    with pytest.raises(InvalidJob, match="cannot be read"):
        load_job(tmp_path / "none.yaml", {})


def test_environment_variables_are_replaced_and_missing_ones_reported() -> None:
    tools = [{"name": "a", "server_url": "${URL}/a", "headers": {"Authorization": "Bearer ${TOKEN}"}}]
    job = job_of(raw_job(tools=tools), {"URL": "http://host", "TOKEN": "hunter2"})
    (tool,) = job.reinforcement.tools
    assert tool.server_url == "http://host/a"
    assert tool.headers["Authorization"].get_secret_value() == "Bearer hunter2"
    (problem,) = problems_of(raw_job(tools=tools), {"URL": "http://host"})
    assert (problem.code, problem.field) == ("missing_variable", "method.reinforcement.tools[0].headers.Authorization")


def test_a_missing_variable_is_one_problem_however_often_it_is_used_and_has_no_consequences() -> None:
    tools = [{"name": name, "server_url": f"${{URL}}/{name}"} for name in "ab"]
    url, seeds, unknown = problems_of(raw_job(tools=tools) | {"seed": "${SEED}", "sed": "${SEED}"})
    assert (unknown.code, unknown.field) == ("invalid_extra_forbidden", "sed")
    assert (seeds.code, seeds.field) == ("missing_variable", "seed")
    assert (url.code, url.field) == ("missing_variable", "method.reinforcement.tools[0].server_url")
    assert url.message.endswith("URL is not set, but used 2 times") and "SEED is not set" in seeds.message


def test_the_line_break_of_a_file_does_not_count_in_a_variable() -> None:
    url, headers = "${URL}/run", {"Authorization": "Bearer ${KEY}"}
    tools = [{"name": "search", "server_url": url, "headers": headers}]
    job = job_of(raw_job(tools=tools), {"URL": "http://host\n", "KEY": "sk-1\r\n"})
    (tool,) = job.reinforcement.tools
    assert (tool.server_url, tool.headers["Authorization"].get_secret_value()) == ("http://host/run", "Bearer sk-1")


def test_no_secret_is_shown() -> None:
    tools = [{"name": "a", "server_url": "http://h", "headers": {"Authorization": "hunter2"}}]
    job = job_of(raw_job(tools=tools))
    assert "hunter2" not in repr(job) + str(job) + job.model_dump_json()
    bad = problems_of(raw_job(tools=[tools[0] | {"headers": {"Authorization": 12345678}}]))
    assert "12345678" not in str(bad)
    assert "12345678" not in str(problems_of(raw_job(signing_secret=12345678)))
    assert "hunter2" not in str(problems_of(raw_job(signing_secret=["hunter2"] * 9)))
    assert "hunter2" not in str(problems_of(raw_job() | {"api_key": "hunter2"}))
    (problem,) = problems_of(raw_job() | {"seed": "seed of ${TOKEN}"}, {"TOKEN": "hunter2"})
    assert "hunter2" not in str(problem)
    assert "${TOKEN}" in problem.message


def test_broken_yaml_does_not_quote_its_lines(tmp_path: Path) -> None:
    _, (problem,) = in_yaml(tmp_path, "headers: {Authorization: Bearer hunter2\nx: [")
    assert problem.code == "job_syntax"
    assert "hunter2" not in str(problem)


def test_unknown_keys_of_a_tool_are_kept() -> None:
    job = job_of(raw_job(tools=[{"name": "a", "server_url": "http://h", "note": 1}]))
    assert job.reinforcement.tools[0].model_extra == {"note": 1}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}},
        {"type": "json_schema", "schema": {"a": 1}},
    ],
)
def test_response_format_accepts_the_chat_completions_form_and_the_responses_form(given: dict[str, Any]) -> None:
    assert job_of(raw_job(response_format=given)).reinforcement.response_format == {"a": 1}
    assert job_of(raw_job(response_format=None)).reinforcement.response_format is None


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def test_the_template_of_a_job_file_is_a_path_and_becomes_the_text(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.jinja").write_text(TEMPLATE + "${NOT_A_VARIABLE}")
    (tmp_path / "job.json").write_text(
        json.dumps(raw_job() | {"model_options": {"chat_template": "templates/own.jinja"}})
    )
    assert load_job(tmp_path / "job.json", {}).model_options.chat_template == TEMPLATE + "${NOT_A_VARIABLE}"


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, "unreadable_template", "own.jinja cannot be read: No such file"),
        (b"\xff", "unreadable_template", "is not UTF-8 text"),
        (b"{{ x }}" + bytes(65_000), "unreadable_template", "is larger than 64,000 bytes"),
        (b"hello", "invalid_value_error", "must be the text of a Jinja template"),
    ],
)
def test_a_template_that_cannot_be_one_is_refused_with_its_line(
    tmp_path: Path, content: bytes | None, code: str, said: str
) -> None:
    if content is not None:
        (tmp_path / "own.jinja").write_bytes(content)
    job = raw_job() | {"seed": -1, "model_options": {"chat_template": "own.jinja", "tools_in_prompt": False}}
    (tmp_path / "job.yaml").write_text(json.dumps(job, indent=1))
    rest, problems = read_job(tmp_path / "job.yaml", {})
    (problem,) = [problem for problem in problems if problem.field != "seed"]
    assert (problem.code, problem.field) == (code, "model_options.chat_template")
    assert said in problem.message and len(problem.message) < 500
    assert problem.line is not None
    assert rest is not None and not rest.model_options.tools_in_prompt, "the rest can be checked"


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"template_arguments": {"messages": 1}}, "template_arguments", "'messages' is set by the renderer"),
        ({"template_arguments": {"add_generation_prompt": True}}, "template_arguments", "is set by the renderer"),
        ({"template_arguments": {"a b": 1}}, "template_arguments", "'a b' must be a name of at most"),
        ({"template_arguments": {"a": "x" * 4_001}}, "template_arguments.a", "at most 4000 characters"),
        ({"template_arguments": {"a": [1]}}, "template_arguments.a", "must be a string"),
        ({"template_arguments": {f"a{i}": i for i in range(33)}}, "template_arguments", "at most 32"),
        ({"stop_tokens": ["x"] * 17}, "stop_tokens", "at most 16"),
        ({"stop_tokens": [""]}, "stop_tokens[0]", "at least 1"),
        ({"stop_tokens": ["x" * 65]}, "stop_tokens[0]", "at most 64"),
        ({"tool_parser": ""}, "tool_parser", "at least 1"),
        ({"tool_parsr": "hermes"}, "tool_parsr", "unknown key"),
    ],
)
def test_model_options_have_bounds(options: dict[str, Any], field: str, said: str) -> None:
    (problem,) = problems_of(raw_job() | {"model_options": options})
    assert problem.field == f"model_options.{field}"
    assert said in problem.message


def test_arguments_of_a_template_keep_their_types() -> None:
    given = {"a": "1", "b": 1, "c": True, "d": 0.5, "e": None}
    options = job_of(raw_job() | {"model_options": {"template_arguments": given}}).model_options
    assert json.dumps(options.template_arguments) == json.dumps(given)


SUPERVISED: dict[str, Any] = {"model": "m", "training_file": "t", "method": {"type": "supervised"}}


@pytest.mark.parametrize(
    ("job", "field", "message"),
    [
        (
            raw_job(limits={"straggler_quorum": 0.75}),
            "method.reinforcement.limits.straggler_quorum",
            "straggler_quorum was removed: the quorum is always 0.75",
        ),
        (
            raw_job() | {"cluster": {"dispatchers": 2}},
            "cluster.dispatchers",
            "dispatchers was removed: the number of dispatchers is derived from max_num_seqs of the engines "
            "and max_concurrency of the tools",
        ),
        (
            SUPERVISED | {"method": {"type": "supervised", "supervised": {"algorithm": {"context_weight": 0.1}}}},
            "method.supervised.algorithm.context_weight",
            "context_weight was removed: the model is trained only on the assistant's tokens",
        ),
    ],
)
def test_a_removed_setting_is_refused_with_what_holds_instead(job: Any, field: str, message: str) -> None:
    (problem,) = problems_of(job)
    assert (problem.field, problem.message, problem.fix) == (field, message, "delete this setting")


def test_no_current_setting_has_the_name_of_a_removed_one() -> None:
    current = {name for model in all_models() for name in model.model_fields}
    assert current.isdisjoint(REMOVED_SETTINGS)


def test_the_jobs_of_the_examples_are_valid() -> None:
    for path in sorted((ROOT / "examples").glob("*/job*.yaml")):
        names = re.findall(r"\$\{(\w+)\}", path.read_text())
        environment = {name: "http://x" if name.endswith("URL") else "1" for name in names}
        assert load_job(path, environment).method.type == "reinforcement"


@pytest.mark.parametrize(
    ("reinforcement", "field", "fix"),
    [
        ({"reward": {"tool_cal_budget": 5}}, "reward.tool_cal_budget", "did you mean 'tool_call_budget'?"),
        ({"batch_size": 4}, "batch_size", "move it to method.reinforcement.hyperparameters"),
        ({"zzz": 4}, "zzz", "remove it or check its spelling"),
        (
            {"tools": [{"name": "a", "sever_url": "x"}]},
            "tools[0].server_url",
            "rename 'sever_url' to 'server_url'",
        ),
        ({"tools": [{"name": "a"}]}, "tools[0].server_url", "add `server_url: ...`"),
    ],
)
def test_a_wrong_key_comes_with_the_right_one(reinforcement: dict[str, Any], field: str, fix: str) -> None:
    (problem,) = problems_of(raw_job(**reinforcement))
    assert problem.field == f"method.reinforcement.{field}"
    assert problem.fix == fix


def test_a_problem_found_after_reading_gets_the_line_of_its_field(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: m\nmethod:\n  reinforcement:\n    tools:\n      - {name: a}\n      - {name: b}\n")
    headers = Problem("refused", "method.reinforcement.tools[1].headers", "HTTP 401", "fix it")
    elsewhere = Problem("disk_full", "--runs", "no space", "free some")
    row = Problem("broken_json", "model", "not valid JSON", "fix it", "train.jsonl", 7)
    model = Problem("missing_model", "model", "there is no folder m", "fix it")
    found = add_lines(path, [headers, model, elsewhere, row])
    assert [(problem.file, problem.line) for problem in found[:2]] == [(str(path), 6), (str(path), 1)]
    assert found[2:] == [elsewhere, row]
