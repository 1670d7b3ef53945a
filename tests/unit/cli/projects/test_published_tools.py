"""Published lists of tools: what is selected, what is merged, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.cli.projects.openapi_document import SourceDocument
from agent_rft.cli.projects.own_project import ProjectRequest, write_own_project
from agent_rft.cli.projects.published_tools import read_tool_document
from agent_rft.errors import InvalidJob, Problem, UserError
from agent_rft.spec.schemas.json_schema import find_schema_problem
from tests.unit.cli.projects.test_own_project import answers, call, check_files

KEYS = ("type", "properties", "required", "items", "enum", "name", "function", "parameters", "$ref", "anyOf")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VERL = """\
tools:
  - class_name: tools.gsm8k.Gsm8kTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: submit
        description: Submits the answer.
        parameters:
          type: object
          properties:
            answer: {type: str, description: The answer.}
          required: [answer]
"""


def document(name: str, **properties: Any) -> dict[str, Any]:
    """A function document of BFCL."""
    schema = {"type": "dict", "properties": properties, "required": [*properties]}
    return {"name": name, "description": f"Runs {name}.", "parameters": schema, "response": {"type": "dict"}}


FILES = [document("gorilla.ls", all={"type": "boolean", "default": False}), document("cd", folder={"type": "string"})]


def tool(name: Any = "find", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **more}}


def written(folder: Path, name: str, content: Any, *selected: str) -> tuple[dict[str, Any], str]:
    """The functions in the rows of the project for a list, by name, and what `init` says."""
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")
    said = write_own_project(folder / "project", ProjectRequest((str(folder / name),), selected))
    check_files(folder / "project", 30)
    row = json.loads((folder / "project" / "rows" / "train.jsonl").read_text().splitlines()[0])
    return {tool["function"]["name"]: tool["function"] for tool in row["tools"]}, said


def problems_of(folder: Path, name: str, content: Any, *selected: str) -> list[Problem]:
    with pytest.raises(InvalidJob) as refused:
        written(folder, name, content, *selected)
    assert not (folder / "project").exists()
    return refused.value.problems


def test_the_project_of_a_list_runs_at_once(tmp_path: Path) -> None:
    tools, said = written(tmp_path, "gorilla.json", "\n".join(map(json.dumps, [*FILES, document("pwd")])))
    assert list(tools) == ["gorilla_ls", "cd", "pwd"]
    assert tools["cd"]["parameters"]["required"] == ["folder"] and tools["pwd"]["parameters"]["properties"] == {}
    assert "warning: dots in names became _: gorilla_ls" in said
    assert "warning: the type dict became object: gorilla_ls, cd, pwd" in said
    assert "implement `run_tool` in server.py" in said
    ran, unknown = answers(tmp_path / "project", call("cd", {"folder": "a"}), call("rm", {}))
    assert ran == [200, '{"output":"placeholder result of cd"}'] and unknown[0] == 404


def test_a_tool_that_raises_a_value_error_answers_the_model(tmp_path: Path) -> None:
    written(tmp_path, "tools.json", [tool()])
    server = tmp_path / "project" / "server.py"
    code = server.read_text()
    server.write_text(code.replace('return f"placeholder result of {name}"', 'raise ValueError("no such city")'))
    (refused,) = answers(tmp_path / "project", call("find", {"city": "a"}))
    assert refused[0] == 400 and "no such city" in str(refused[1])


def test_the_tools_of_verl_are_named_with_their_lines(tmp_path: Path) -> None:
    tools, said = written(tmp_path, "tool_config.yaml", VERL)
    assert tools["submit"]["parameters"]["properties"]["answer"]["type"] == "string"
    assert "warning: the type str became string: submit" in said
    (problem,) = problems_of(_new(tmp_path), "tool_config.yaml", VERL.replace("type: str,", "type: text/plain,"))
    field = "tools[0].tool_schema.function.parameters.properties.answer.type"
    assert (problem.line, problem.field) == (12, field)


def _new(folder: Path) -> Path:
    (folder / "new").mkdir()
    return folder / "new"


def test_tools_of_rows_are_merged(tmp_path: Path) -> None:
    padded = tool(parameters=CITY | {"properties": {"city": {"type": "string", "enum": None}, "other": None}})
    rows = [
        {"item": {"messages": [], "tools": [tool()]}},
        {"messages": [], "name": "Ada"},
        {"messages": [], "tools": None},
        {"messages": [], "tools": [padded, tool("get")]},
        {"messages": [], "tools": [tool()]},
    ]
    text = "\n".join(map(json.dumps, rows))
    tools, said = written(tmp_path, "rows.jsonl", text)
    assert list(tools) == ["find", "get"] and tools["find"]["parameters"] == CITY
    assert "warning: null values were removed: find" in said
    different = {"messages": [], "tools": [tool(description="Another.")]}
    (problem,) = problems_of(_new(tmp_path), "rows.jsonl", f"{text}\n{json.dumps(different)}")
    assert (problem.line, problem.field) == (6, "tools[0].function")
    assert "'find' is defined differently at line 1" in problem.message


def test_only_the_selected_tools_are_read(tmp_path: Path) -> None:
    broken = [tool(), {"type": "web_search"}, tool("bad name"), tool("wrong", parameters={"type": "map"}), 7]
    tools, _ = written(tmp_path, "tools.json", broken, "find")
    assert list(tools) == ["find"]
    (folder := tmp_path / "dots").mkdir()
    assert list(written(folder, "tools.json", [tool("math.add"), tool()], "math.add")[0]) == ["math_add"]
    with pytest.raises(UserError, match=r"--tool get: .* has no such tool; available: find"):
        written(_new(tmp_path), "tools.json", [tool()], "get")


def test_a_list_with_further_pages_is_noted(tmp_path: Path) -> None:
    _, said = written(tmp_path, "tools.json", {"tools": [{"name": "a", "inputSchema": CITY}], "nextCursor": "x"})
    assert "warning: the list has further pages (nextCursor), whose tools are missing" in said


@pytest.mark.parametrize("parameters", [{"parameters": None}, {"parameters": {}}, {}])
def test_a_tool_without_parameters_takes_no_arguments(parameters: dict[str, Any], tmp_path: Path) -> None:
    tools, said = written(tmp_path, "tools.json", [{"type": "function", "name": "now", **parameters}, tool()])
    assert tools["now"]["parameters"] in ({"type": "object", "properties": {}}, {"type": "object"})
    assert "warning" not in said


@pytest.mark.parametrize(
    ("entry", "field", "message", "fix"),
    [
        ({"type": "web_search"}, "[0].type", "'web_search' is not a supported type of tool", 'write "function"'),
        ({"type": {"a": 1}}, "[0].type", "must be a string", 'write "function"'),
        ({"type": "function", "function": 1}, "[0].function", "must be an object", '"name"'),
        (7, "[0]", "must be an object", '"type": "function"'),
        ({"parameters": CITY}, "[0].name", "is missing", "--tool"),
        (tool("bad name"), "[0].function.name", "'bad name' is not a valid name", "write bad_name"),
        (tool(5), "[0].function.name", "must be a string", "write a name, or leave out this tool"),
        (tool(description=["a"]), "[0].function.description", "must be a string", "sentence"),
        (tool(parameters=[]), "[0].function.parameters", "must be the JSON schema of an object", '"properties"'),
        (tool(parameters={"city": {"type": "str"}}), "[0].function.parameters", "the JSON schema of", '"properties"'),
        (
            tool(parameters={"type": "string"}),
            "[0].function.parameters",
            "the JSON schema of an object",
            '"properties"',
        ),
        (tool(parameters=CITY | {"required": True}), "[0].function.parameters.required", "must be a list", "names"),
        (tool(parameters=CITY | {"required": "city"}), "[0].function.parameters.required", "array", "JSON schema"),
        (
            tool(parameters={"$ref": "#/x", "type": "object"}),
            "[0].function.parameters.$ref",
            "does not exist",
            "correct",
        ),
        ({"class_name": "a.B", "config": {"type": "mcp"}}, "[0].tool_schema", "is missing", "tools/list"),
    ],
)
def test_an_entry_that_cannot_be_a_tool_is_refused(
    entry: Any, field: str, message: str, fix: str, tmp_path: Path
) -> None:
    (problem,) = problems_of(tmp_path, "tools.json", json.dumps([entry], indent=1))
    assert (problem.code, problem.field) == ("unsupported_tool", field) and problem.line is not None
    assert message in problem.message and fix in problem.fix


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tools.json", "[]", "has no tools: give an OpenAI tools array"),
        ("tools.json", '{"tools": []}', "has no tools"),
        ("tools.json", '{"a": 1}', "is not an OpenAPI document"),
        ("rows.jsonl", '{"messages": []}\n{"question": "", "answer": ""}', "has no tools"),
        ("rows.jsonl", '{"tools": []}\n{"tools": [', "rows.jsonl:2 is not valid JSON"),
        ("tools.json", '{"name": "a"}\n{', "tools.json:2 is not valid JSON"),
        ("tools.json", '{"name": "a",\n', "is not valid JSON"),
    ],
)
def test_a_file_without_tools_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        written(tmp_path, name, text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["dict", "any", "string"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(KEYS), part, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(JSON, JSON)
def test_any_list_is_read_or_refused_with_a_message(entry: Any, schema: Any) -> None:
    document = SourceDocument(json.dumps([entry, tool(parameters=schema)]), "tools.json")
    try:
        tools = read_tool_document(document).tools
    except InvalidJob as refused:
        assert refused.problems and all(problem.message and problem.fix for problem in refused.problems)
    else:
        assert all(find_schema_problem(one.parameters) is None for one in tools)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tools.json", '[{"name": "a", "parameters": {"properties": {"b": {"default": NaN}}}}]'),
        ("tools.yaml", "- {name: a, parameters: {properties: {b: {default: !!binary YQ==}}}}"),
        ("tools.jsonl", json.dumps({"tools": '[{"name": "a", "parameters": {"default": NaN}}]'})),
        ("tools.jsonl", json.dumps({"tools": '[{"name": "a", "description": "\\ud800"}]'})),
    ],
)
def test_values_that_rows_cannot_hold_are_refused(name: str, text: str, tmp_path: Path) -> None:
    assert problems_of(tmp_path, name, text)


def test_dates_in_yaml_are_strings(tmp_path: Path) -> None:
    text = "- {name: a, parameters: {properties: {b: {type: string, default: 2026-11-28}}}}"
    tools, _ = written(tmp_path, "tools.yaml", text)
    assert tools["a"]["parameters"]["properties"]["b"]["default"] == "2026-11-28"


def test_nested_input_ends_with_a_message(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(80):
        schema = {"type": "object", "properties": {"a": schema}}
    (problem,) = problems_of(tmp_path, "tools.json", [tool(parameters=schema)])
    assert "nested" in problem.message
