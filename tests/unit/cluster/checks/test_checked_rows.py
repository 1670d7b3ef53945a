"""Rows, schemas and prompts in the check of a job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.checks.schema_examples import make_example
from agent_rft.spec.schemas.json_schema import find_schema_problem
from tests.support.builders import EXACT
from tests.support.fakes_http import FakeEndpoint, says
from tests.support.job_case import PARAMETERS, Case, copy_of_base, row, tool


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


async def test_a_duplicate_key_in_a_row_is_a_warning_with_its_line(case: Case) -> None:
    case.rows = [row(), json.dumps(row("what was costs of lumtra in 2018?"))[:-1] + ', "reference_answer": "2"}']
    (warning,) = await case.warnings()
    assert warning == (
        "training_file, line 2: the key 'reference_answer' is duplicated in an object, and only its last value counts; "
        "remove all but one [duplicate_row_key]"
    )


def conversation(*turns: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "what was debt of vorzen in 2015?"}, *turns], "tools": [tool()]}


def calling(name: str = "cat", arguments: str = '{"path": "a"}') -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}


RESULT = {"role": "tool", "tool_call_id": "a", "content": "1"}
ANSWER = {"role": "assistant", "content": "1"}


async def test_a_supervised_row_that_no_served_model_could_have_produced_is_an_error(case: Case) -> None:
    unanswered = conversation(calling(), ANSWER)
    untrained = conversation(ANSWER | {"weight": 0})
    without_tools = {"messages": conversation(calling(), RESULT, ANSWER)["messages"]}
    case.rows = [conversation(ANSWER), unanswered, untrained, without_tools, unanswered]
    case.job = {"method": {"type": "supervised"}}
    found = {(problem.code, problem.field, problem.line, problem.rows) for problem in await case.problems()}
    assert found == {
        ("unanswered_call", "training_file.messages[1].tool_calls[0]", 2, "2, 5"),
        ("nothing_trained", "training_file.messages", 3, ""),
        ("call_without_tools", "training_file.messages[1].tool_calls[0]", 4, ""),
    }
    assert await case.prepare(accepted=True), "a run that was accepted before continues"


async def test_a_supervised_row_that_teaches_a_questionable_call_is_a_warning(case: Case) -> None:
    case.rows = [
        conversation(calling(), RESULT, ANSWER),
        conversation(calling("rm"), RESULT, ANSWER),
        conversation(calling(arguments="a"), RESULT, ANSWER),
        conversation(calling(arguments="{}"), RESULT, ANSWER),
        conversation(ANSWER, ANSWER),
        conversation(ANSWER | {"weight": 0.5}),
        conversation(ANSWER | {"weight": "0"}),
    ]
    case.job = {"method": {"type": "supervised"}}
    warnings = [warning for warning in await case.warnings() if " repeat " not in warning]
    places = [
        ("training_file.messages[1].tool_calls[0], line 2", "unknown_tool"),
        ("training_file.messages[1].tool_calls[0].function.arguments, line 3", "invalid_arguments"),
        ("training_file.messages[1].tool_calls[0].function.arguments, line 4", "invalid_arguments"),
        ("training_file.messages[2], line 5", "repeated_assistant"),
        ("training_file.messages[1].weight, line 6", "invalid_weight"),
        ("training_file.messages[1].weight, line 7", "invalid_weight"),
    ]
    assert len(warnings) == len(places)
    for warning, (place, code) in zip(warnings, places, strict=True):
        assert warning.startswith(f"{place}: ") and warning.endswith(f" [{code}]") and "; " in warning


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
