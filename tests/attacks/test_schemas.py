"""JSON schemas that are attacks, on each way in: the API, rows, arguments of a call, grammars. Each under a budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.actors.engine.grammar.structural_tags import build_turn_structure
from agent_rft.chat.families.gemma4 import GEMMA4
from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.families.lfm2 import LFM2
from agent_rft.cluster.checks.row_checks import check_template_values, check_tools, list_rows, read_files
from agent_rft.cluster.checks.schema_examples import make_example, make_example_call
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.routes.job_routes import make_router
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.job import JobSpec
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from agent_rft.spec.schemas.json_schema import SchemaValidator, find_schema_problem
from tests.support.api import client_of
from tests.support.budget import budget
from tests.support.builders import EXACT
from tests.support.fake_models import FakeModels, turn
from tests.support.jobs import BODY, StoredJobs, database_with_tables, job_service

LEVELS = 100_000
BOX = SecretBox("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")


def expansion(levels: int, keyword: str) -> dict[str, Any]:
    """Definitions that apply the next one twice: 2^levels subschemas."""
    twice = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": twice | {f"d{levels}": {"type": "integer"}}}


def by_properties(levels: int) -> dict[str, Any]:
    parts = {
        f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}, "required": ["a", "b"]}
        for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": parts | {f"d{levels}": {"type": "integer"}}}


def nested_lists(levels: int, count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "minItems": count, "items": schema}
    return schema


def prop(schema: Any) -> dict[str, Any]:
    """The schema of an object with a required key `a`."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


REFUSED: dict[str, Any] = {
    "a least length of 10^9": prop({"type": "string", "minLength": 10**9}),
    "a least length of 10^9 as a float": prop({"type": "string", "minLength": 1e9}),
    "a list of 10^9": prop({"type": "array", "minItems": 10**9, "items": {"type": "string"}}),
    "an object of 10^9": prop({"type": "object", "minProperties": 10**9}),
    "contains 10^9": prop({"type": "array", "contains": {}, "minContains": 10**9}),
    "2^40 by allOf": expansion(40, "allOf"),
    "2^40 by anyOf": expansion(40, "anyOf"),
    "2^40 by oneOf": expansion(40, "oneOf"),
    "2^40 by properties": by_properties(40),
    "a chain of references through anchors": {
        "$ref": "#d0",
        "$defs": {f"x{i}": {"$anchor": f"d{i}", "allOf": [{"$ref": f"#d{i + 1}"}] * 2} for i in range(40)}
        | {"x40": {"$anchor": "d40"}},
    },
    "2^40 by dynamic references": {
        "$dynamicRef": "#d0",
        "$defs": {f"x{i}": {"$dynamicAnchor": f"d{i}", "allOf": [{"$dynamicRef": f"#d{i + 1}"}] * 2} for i in range(40)}
        | {"x40": {"$dynamicAnchor": "d40"}},
    },
    "2^40 below an unknown keyword": {
        "$ref": "#/x/0", "x": [{"allOf": [{"$ref": f"#/x/{i + 1}"}] * 2} for i in range(40)] + [{}],
    },
    "a cycle": {"$ref": "#"},
    "a cycle of two": {
        "$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
    },
    "200 levels": json.loads('{"allOf":[' * 200 + "{}" + "]}" * 200),
    "a huge enum": prop({"enum": list(range(20_000))}),
    "an enum of 900 KB": prop({"enum": ["x" * 900_000]}),
    "a pattern of 900 KB": prop({"pattern": "a" * 900_000}),
    "a pattern that compiles to gigabytes": prop({"pattern": "((a{1,100}){1,100}){1,100}"}),
    "1,000 patterns": {"properties": {f"p{i}": {"pattern": r"\w{1,100}"} for i in range(1_000)}},
    "10,000 names that are patterns": {"patternProperties": {f"^a{i}": {} for i in range(10_000)}},
    "a pattern that is a number": prop({"pattern": 5}),
    "a pattern that is a list": prop({"pattern": ["a"]}),
    "a pattern that is invalid": prop({"pattern": "(((("}),
    "a remote reference": prop({"$ref": "http://169.254.169.254/latest/meta-data"}),
    "a reference to a file": prop({"$ref": "file:///etc/passwd"}),
    "a reference to another id": {"$id": "http://127.0.0.1/a", **prop({"$ref": "b"})},
    "a dynamic reference to a URL": prop({"$dynamicRef": "http://127.0.0.1/#x"}),
    "a recursive reference to a URL": prop({"$recursiveRef": "http://127.0.0.1/"}),
    "a reference relative to an inner id": {"$defs": {"x": {"$id": "file:///etc/", **prop({"$ref": "passwd"})}}},
    "a long dangling reference": prop({"$ref": "#/" + "a/" * 100_000}),
    "a list index of 5,000 digits": {"$ref": "#/allOf/" + "9" * 5_000, "allOf": [{}]},
    "a required key that is a number": {"type": "object", "required": 10**9},
    "properties that are a list": {"properties": [{}]},
    "an unknown type": prop({"type": "x" * 100_000}),
}  # fmt: skip
"""Schemas that no new job and no request may have."""

HARMLESS: dict[str, Any] = {
    "nested quantifiers": prop({"type": "string", "pattern": "^(a+)+$"}),
    "nested alternatives": prop({"type": "string", "pattern": "^(a|aa|a?)+$"}),
    "polynomial": prop({"type": "string", "pattern": "a*a*a*a*a*a*c"}),
    "a pattern with 2^n states": prop({"type": "string", "pattern": "[ab]*a[ab]{300}c"}),
    "a key that is a pattern": {"patternProperties": {"^(a+)+$": {"type": "integer"}}},
    "a multiple of nothing": prop({"type": "number", "multipleOf": 1e-300}),
    "a huge range": prop({"type": "number", "minimum": -1e308, "maximum": 1e308}),
    "formats": prop({"type": "string", "format": "uri"}),
    "a dialect of a stranger": {"$schema": "http://169.254.169.254/schema", **prop({"type": "string"})},
    "an inner dialect": prop({"$schema": "file:///etc/passwd", "$vocabulary": {"http://127.0.0.1/": True}}),
    "ids of strangers": {"$id": "http://127.0.0.1/a", **prop({"$id": "file:///etc/passwd", "type": "string"})},
    "a tree": prop({"$ref": "#"}),
    "a tree that tries twice": {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
    "lists of lists": nested_lists(6, 10_000),
}
"""Schemas that are allowed, with values that once cost much."""

ONLY_WITHOUT_GRAMMAR: dict[str, Any] = {
    "lookaround that backtracks": prop({"type": "string", "pattern": "^(?=(a+)+$)"}),
    "backreferences that backtrack": prop({"type": "string", "pattern": r"^(a+)+\1$"}),
    "lookaround in a loop": prop({"type": "string", "pattern": "(?:(?=[ab]*c)|[ab])*d"}),
    "classes of Unicode": prop({"type": "string", "pattern": r"^\p{L}+$"}),
    "a list of at most 10^9": prop({"type": "array", "maxItems": 10**9}),
    "a text of at most 10^9": prop({"type": "string", "maxLength": 10**9}),
}

DEEP = '{"a":' * 900 + "1" + "}" * 900
VALUES: list[Any] = [
    {"a": "a" * 40 + "b"}, {"a": "a" * 100_000 + "b"}, {"a": "ab" * 50_000}, {"a" * 100_000 + "b": 1},
    {"a": json.loads(DEEP)}, json.loads(DEEP), {"a": list(range(50_000))}, {"a": [[[]] * 1_000] * 100},
    {"a": float("inf")}, {"a": float("nan")}, {"a": 10**4000}, {"a": "\ud800"}, {"\ud800": 1}, [], None, {},
    {f"k{i}": i for i in range(50_000)},
]  # fmt: skip

RAW = {
    "100,000 levels": '{"allOf":[' * LEVELS + "{}" + "]}" * LEVELS,
    "a number of 10^5 digits": '{"type":"integer","maximum":' + "9" * 10**5 + "}",
    "an infinite number": '{"type":"number","maximum":1e400}',
    "not a number": '{"type":"number","maximum":NaN}',
    "half of a surrogate pair": '{"const":"\\ud800"}',
}
"""Schemas as text, which Python's JSON does not read or which is not valid JSON."""

NEVER_COMPILED = {name: REFUSED[name] for name in ("a pattern that compiles to gigabytes", "a pattern that is invalid")}
"""Schemas that a model may see beside free text: the API has no use for their patterns, and compiles none."""
ALL = REFUSED | HARMLESS | ONLY_WITHOUT_GRAMMAR
params = pytest.mark.parametrize


class Api:
    """Fine-tuning jobs, chat completions and responses of one server."""

    def __init__(self, folder: Path) -> None:
        self.jobs = StoredJobs(database_with_tables(folder))
        self.models = FakeModels(turn("1"))
        self.client = client_of(
            [
                make_router(job_service(self.jobs.store, OperatorConfig(), lambda: None)),
                chat.make_router(self.models, TrialFactory(DEFAULT_CONFIG)),
                responses.make_router(self.models, TrialFactory(DEFAULT_CONFIG), BOX),
            ]
        )

    async def post(self, path: str, content: str) -> httpx.Response:
        return await self.client.post(f"/v1/{path}", content=content, headers={"Content-Type": "application/json"})

    async def create_job(self, schema: str) -> httpx.Response:
        body = json.dumps(BODY)
        wanted = f'"response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}'
        return await self.post("fine_tuning/jobs", body.replace('"grader"', f'{wanted}, "grader"', 1))

    async def chat(self, schema: str, *, as_tool: bool) -> httpx.Response:
        tool = f'"tools": [{{"type": "function", "function": {{"name": "x", "parameters": {schema}}}}}]'
        form = f'"response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}'
        messages = '"messages": [{"role": "user", "content": "a"}]'
        return await self.post("chat/completions", f'{{"model": "gpt-5", {messages}, {tool if as_tool else form}}}')


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    api = Api(tmp_path_factory.mktemp("api"))
    yield api
    api.jobs.database.close()


@pytest.fixture
def api(shared_api: Api) -> Api:
    """The API, whose model has been asked nothing yet; to make one takes longer than most tests."""
    shared_api.models.bodies.clear()
    return shared_api


@params("name", ALL)
async def test_a_job_of_the_api(api: Api, name: str) -> None:
    schema = json.dumps(ALL[name])
    assert len(schema) < 1 << 20
    with budget():
        response = await api.create_job(schema)
    assert response.status_code == (200 if name in HARMLESS else 400), response.text
    if name not in HARMLESS:
        error = response.json()["error"]
        assert error["param"] == "method.reinforcement.response_format" or name == "200 levels"  # a body too deep
        assert len(error["message"]) < 1_000 and "root:" not in error["message"]


@params("as_tool", [True, False])
@params("name", ALL)
async def test_a_chat_completion(api: Api, name: str, as_tool: bool) -> None:
    with budget():
        response = await api.chat(json.dumps(ALL[name]), as_tool=as_tool)
    allowed = name in HARMLESS or (as_tool and name in ONLY_WITHOUT_GRAMMAR | NEVER_COMPILED)
    assert (response.status_code == 200) is allowed, response.text
    assert len(api.models.bodies) == allowed
    assert len(response.text) < 2_000


@params("name", ALL)
async def test_a_response_with_a_required_call(api: Api, name: str) -> None:
    tool = {"type": "function", "name": "x", "parameters": ALL[name]}
    body = {"model": "gpt-5", "input": "a", "tools": [tool], "tool_choice": "required"}
    with budget():
        response = await api.post("responses", json.dumps(body))
    assert response.status_code == (200 if name in HARMLESS else 400), response.text
    assert name in HARMLESS or len(response.text) < 2_000  # a good response repeats the tools
    del body["tool_choice"]
    with budget():
        response = await api.post("responses", json.dumps(body))
    assert response.status_code == (400 if name in REFUSED.keys() - NEVER_COMPILED.keys() else 200), response.text


@params("name", RAW)
async def test_text_that_is_hardly_json(api: Api, name: str) -> None:
    for send in (api.create_job(RAW[name]), api.chat(RAW[name], as_tool=True), api.chat(RAW[name], as_tool=False)):
        with budget():
            response = await send
        assert response.status_code == 400, (response.status_code, response.text)
        assert len(response.text) < 2_000
    assert api.models.bodies == []


@params("choice", ["auto", "required"])
async def test_128_tools_each_with_60_large_patterns(api: Api, choice: str) -> None:
    tools = [
        {"type": "function", "name": f"x{i}", "parameters": {
            "properties": {f"{j}": {"pattern": f"[ab]{{1,{9_000 - j - i}}}"} for j in range(60)}}}
        for i in range(128)
    ]  # fmt: skip
    with budget():
        response = await api.post(
            "responses", json.dumps({"model": "gpt-5", "input": "a", "tools": tools, "tool_choice": choice})
        )
    assert response.status_code == (200 if choice == "auto" else 400), response.text


@params("pattern", ["[ab]{1,%d}", r"\w{1,%d}", ".{1,%d}", "(?=c)[ab]{1,%d}", "[^a]{1,%d}(?i)k"])
@params("count", [1_000, 4_000, 9_000])
async def test_100_large_patterns_in_a_job(api: Api, pattern: str, count: int) -> None:
    schema = {"properties": {f"p{i}": {"pattern": pattern % (count - i)} for i in range(100)}}
    with budget():
        response = await api.create_job(json.dumps(schema))
    assert response.status_code in (200, 400)


async def test_tools_of_a_million_bytes_of_empty_schemas(api: Api) -> None:
    wide = {"allOf": [{}] * 60_000}
    with budget():
        for schema in (json.dumps(wide), json.dumps({"properties": {"a": {"enum": [[]] * 60_000}}})):
            assert (await api.chat(schema, as_tool=True)).status_code == 400


def check_rows(folder: Path, lines: list[str]) -> list[str]:
    """The codes of the problems of rows, found as a job's validation finds them."""
    (folder / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    tool = {"name": "x", "server_url": "https://tools.example/x"}
    method = {"type": "reinforcement", "reinforcement": {"grader": EXACT, "tools": [tool]}}
    job = JobSpec.model_validate({"model": "m", "training_file": str(folder / "train.jsonl"), "method": method})
    files, problems = read_files(job)
    rows = list_rows(job, files)
    problems += check_tools(job.reinforcement, rows)
    problems += check_template_values(job.reinforcement, rows)
    return [problem.code for problem in problems]


def row(schema: str, more: str = "") -> str:
    tools = f'[{{"type": "function", "function": {{"name": "x", {more} "parameters": {schema}}}}}]'
    return f'{{"messages": [{{"role": "user", "content": "a"}}], "reference_answer": "1", "tools": {tools}}}'


@params("name", ALL)
def test_rows(tmp_path: Path, name: str) -> None:
    with budget():
        codes = check_rows(tmp_path, [row(json.dumps(ALL[name]))] * 3)
    assert set(codes) == ({"invalid_schema"} if codes and "schema_too_large" not in codes else set(codes))
    assert len(codes) == (3 if name in REFUSED else 0)
    assert set(codes) <= {"invalid_schema", "schema_too_large"}


@params("name", RAW)
def test_rows_that_are_hardly_json(tmp_path: Path, name: str) -> None:
    with budget():
        assert check_rows(tmp_path, [row(RAW[name])] * 3) == ["broken_json"] * 3


def test_2000_rows_each_with_another_attack_do_not_add_up(tmp_path: Path) -> None:
    schemas = [prop({"pattern": "^(a+)+$", "minLength": 9_999, "title": str(i)}) for i in range(2_000)]
    with budget(cpu_s=4):
        assert check_rows(tmp_path, [row(json.dumps(schema)) for schema in schemas]) == []


def test_of_keys_that_are_there_twice_the_last_counts_everywhere(tmp_path: Path) -> None:
    twice = '{"minLength": 1, "minLength": 1000000000}'
    assert check_rows(tmp_path, [row(twice)]) == ["duplicate_row_key", "schema_too_large"]
    assert check_rows(tmp_path, [row("{}", f'"parameters": {twice},')]) == ["duplicate_row_key"] * 2


@params("name", ALL)
def test_arguments_of_a_call(name: str) -> None:
    """Also with schemas that are refused today: jobs with them that began before go on."""
    with budget(cpu_s=1):
        checker = SchemaValidator(ALL[name])
    for value in VALUES:
        with budget(cpu_s=3):
            mistake = checker.find_violation(value)
        assert mistake is None or len(mistake) <= 300


@params("name", ALL)
def test_examples(name: str) -> None:
    function = {"name": "x", "parameters": ALL[name]}
    with budget():
        make_example(ALL[name])
        assert len(make_example_call({"type": "function", "function": function}).arguments) < 1 << 20


@params("name", ALL)
def test_grammars(name: str) -> None:
    """A schema that may hold answers is compiled in bounded time, as vLLM does it."""
    import xgrammar

    schema = ALL[name]
    with budget():
        mistake = find_schema_problem(schema, grammar=True)
    assert (mistake is None) is (name in HARMLESS)
    if mistake is None:
        tools = [{"type": "function", "function": {"name": "x", "parameters": schema}}]
        tokens = xgrammar.TokenizerInfo([chr(i) for i in range(32, 127)])
        compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
        for family in (HERMES, GEMMA4, LFM2):
            with budget():
                compiler.compile_structural_tag(build_turn_structure(tools, schema, family.call_syntaxes[0]))
