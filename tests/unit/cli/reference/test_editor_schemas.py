"""JSON schemas for editors: they accept what the readers accept, and mark wrong keys, types and values."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema.exceptions import best_match
from pydantic import ValidationError

from agent_rft.cli.reference.editor_schemas import MODELS, editor_schema
from agent_rft.spec.config_reader import LineNumbers, ParsedFile, substitute_variables
from agent_rft.spec.job import JobSpec
from agent_rft.spec.node_groups import NodesFile
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.builders import EXACT, raw_job
from tests.support.paths import ROOT

FILES = {"job": ("**/job*.yaml", 5), "operator": ("**/agent-rft.yaml", 5)}
"""Where the repository has files of a kind, and the least number of them."""
ENDPOINT = {"type": "endpoint", "url": "https://x.example/grade"}
TOOL = {"name": "a", "server_url": "https://x.example/a"}


def mistake(file: str, content: Any) -> str | None:
    """What is wrong most likely; None if nothing is."""
    found = best_match(jsonschema.Draft202012Validator(editor_schema(file)).iter_errors(content))
    return None if found is None else found.message


def as_read(text: str, environment: dict[str, str]) -> JobSpec:
    source = ParsedFile("job", yaml.safe_load(text), LineNumbers(None))
    raw, _, problems = substitute_variables(source, environment)
    assert not problems
    return JobSpec.model_validate(raw)


@pytest.mark.parametrize("file", MODELS)
def test_a_schema_is_valid_and_carries_what_an_editor_shows(file: str) -> None:
    schema = editor_schema(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] and "$id" not in schema
    assert schema["additionalProperties"] is False
    assert all(value["description"] for value in schema["properties"].values() if "$ref" not in value)


def files_of_the_repository(file: str) -> list[Path]:
    pattern, least = FILES[file]
    paths = [path for folder in ("examples", "k8s") for path in (ROOT / folder).glob(pattern)]
    assert len(paths) >= least
    return paths


@pytest.mark.parametrize("file", FILES)
def test_all_files_of_the_repository_are_valid(file: str) -> None:
    paths = files_of_the_repository(file)
    assert [found for path in paths if (found := mistake(file, yaml.safe_load(path.read_text())))] == []


@pytest.mark.parametrize("file", FILES)
def test_all_files_of_the_repository_name_their_schema_for_editors(file: str) -> None:
    for path in files_of_the_repository(file):
        mark, _, schema = path.read_text().partition("\n")[0].partition("=")
        assert mark == "# yaml-language-server: $schema", path
        assert (path.parent / schema).resolve() == ROOT / "docs" / "reference" / "schemas" / f"{file}.json", path


GRADERS: dict[str, dict[str, Any]] = {
    "string_check": EXACT,
    "text_similarity": {"input": "a", "reference": "b", "evaluation_metric": "rouge_l"},
    "python": {"source": "def grade(sample, item): return 1"},
    "score_model": {"model": "judge", "input": [{"role": "user", "content": "x"}], "range": [0, 5]},
    "label_model": {"model": "judge", "input": [{"role": "user"}], "labels": ["a"], "passing_labels": ["a"]},
    "endpoint": ENDPOINT | {"rate_limit": 5},
    "code_check": {"check": "trivial_output"},
    "length": {"max_chars": 10},
    "multi": {"graders": {"a": EXACT, "b": ENDPOINT}, "calculate_output": "a * b", "invalid_grade": None},
}


@pytest.mark.parametrize("kind", GRADERS)
def test_each_kind_of_grader_is_valid_wherever_a_grader_may_be(kind: str) -> None:
    grader = {**GRADERS[kind], "type": kind}
    job = raw_job(grader=grader, held_out_grader=grader)
    if kind != "multi":
        job["method"]["reinforcement"]["guards"] = [{"name": "g", "grader": grader}]
    JobSpec.model_validate(job)
    assert mistake("job", job) is None


@pytest.mark.parametrize(
    "reinforcement",
    [
        {},
        {"tools": [TOOL | {"hedge_after_s": 1, "idempotent": True, "my_own_key": {"a": 1}}]},
        {"session": {"start_url": "https://x.example"}, "held_out_grader": None, "response_format": None},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        {"hyperparameters": {"batch_size": "auto", "n_epochs": 3, "learning_rate_multiplier": 0.5}},
        {"algorithm": yaml.safe_load("learning_rate: 1e-6")},
    ],
)
def test_valid_jobs_are_valid(reinforcement: dict[str, Any]) -> None:
    job = raw_job(**reinforcement)
    JobSpec.model_validate(job)
    assert mistake("job", job) is None


def test_a_variable_may_be_put_into_any_scalar() -> None:
    text = """
      model: ${MODEL}
      training_file: data/${NAME}.jsonl
      seed: ${SEED}
      suffix: ${NAME}
      method:
        type: ${METHOD}
        reinforcement:
          grader: {type: "${KIND}", url: "${URL}/grade", rate_limit: "${RATE}", timeout_s: "${RATE}"}
          tools: [{name: a, server_url: "${URL}", idempotent: "${YES}", headers: {Authorization: "Bearer ${NAME}"}}]
          hyperparameters: {batch_size: "${SEED}", n_epochs: "${AUTO}"}
          algorithm: {lr_schedule: "${SCHEDULE}", learning_rate: "${SMALL}"}
      cluster: {engine_gpus: "${AUTO}", colocated: "${YES}", dtype: "${AUTO}"}
    """
    environment = {"MODEL": "m", "NAME": "n", "SEED": "7", "METHOD": "reinforcement", "KIND": "endpoint", "RATE": "2.5"}
    environment |= {"URL": "https://x.example", "YES": "true", "AUTO": "auto", "SCHEDULE": "linear", "SMALL": "1e-6"}
    assert as_read(text, environment).seed == 7
    assert mistake("job", yaml.safe_load(text)) is None


@pytest.mark.parametrize(
    ("reinforcement", "said"),
    [
        ({"max_episode_step": 3}, "max_episode_step"),
        ({"max_episode_steps": "many"}, "'many'"),
        ({"max_episode_steps": 0}, "0 is less than the minimum of 1"),
        ({"limits": {"max_failure_rate": 1.5}}, "1.5 is greater than the maximum of 1"),
        ({"limits": []}, "[] is not of type 'object'"),
        ({"algorithm": {"advantage": "grpoo"}}, "'grpoo'"),
        ({"grader": {"type": "endpoint"}}, "'url' is a required property"),
        ({"grader": {"type": "endpoint", "url": "x", "rate_limits": 1}}, "rate_limits"),
        ({"grader": {"type": "endpoints"}}, "'endpoints'"),
        ({"grader": {"url": "https://x.example"}}, "'type' is a required property"),
        ({"guards": [{"name": "g", "grader": GRADERS["multi"] | {"type": "multi"}}]}, "'multi'"),
        ({"tools": [{"name": "a"}]}, "'server_url' is a required property"),
        ({"tools": [TOOL | {"headers": {"X": 1}}]}, "1 is not of type 'string'"),
        ({"held_out_grader": {"type": "length"}}, "'max_chars' is a required property"),
    ],
)
def test_mistakes_in_jobs_are_marked(reinforcement: dict[str, Any], said: str) -> None:
    job = raw_job(**reinforcement)
    with pytest.raises(ValueError):
        JobSpec.model_validate(job)
    assert said in (mistake("job", job) or "")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "allowed_networks: [10.0.0.0/8, '${NETWORK}']",
        'models: {judge: {base_url: "http://10.0.0.7:8000/v1", api_key: "${KEY}", max_concurrency: "${N}"}}',
        "engines: {gpus: null, idle_s: 1.0e+3}\njobs: {max_cores: 4}\nlimits: {max_uploads: 1}\naliases: {gpt-5: x}",
    ],
)
def test_valid_operators_configurations_are_valid(text: str) -> None:
    variables = {"NETWORK": "10.9.0.0/16", "KEY": "k", "N": "3"}
    content = yaml.safe_load(text)
    OperatorConfig.model_validate(substitute_variables(ParsedFile("config", content, LineNumbers(None)), variables)[0])
    assert mistake("operator", content) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("operator", "allowed_network: []"),
        ("operator", "allowed_networks: 10.0.0.0/8"),
        ("operator", "models: {judge: {}}"),
        ("operator", "engines: {cores: 0}"),
        ("operator", "unsandboxed_python: 3"),
        ("nodes", "{}"),
        ("nodes", "nodes: []"),
        ("nodes", "nodes: [{name: a}]"),
        ("nodes", "nodes: [{name: a, cores: -1}]"),
        ("nodes", "nodes: [{name: a, cores: 1, count: 9223372036854775807}]"),
        ("nodes", "nodes: [{name: a, cores: 1, memory: 3}]"),
    ],
)
def test_mistakes_in_the_other_files_are_marked(file: str, text: str) -> None:
    content = yaml.safe_load(text)
    with pytest.raises(ValueError):
        MODELS[file].model_validate(content)
    assert mistake(file, content)


def test_the_nodes_of_the_manual_are_valid() -> None:
    content = yaml.safe_load(
        "nodes:\n  - {name: head, cores: 4, memory_gib: 16}\n"
        "  - {name: gpu, count: 2, cores: 32, gpus: 8, memory_gib: 512, gpu_memory_gib: 80}\n"
    )
    NodesFile.model_validate(content)
    assert mistake("nodes", content) is None


# -- the schema and the reader agree on any value anywhere -------------------------------------------------------------

EVERY_GRADER = {"type": "multi", "calculate_output": "a", "graders": {}} | {
    "graders": {kind: {**GRADERS[kind], "type": kind} for kind in GRADERS if kind != "multi"}
}
WHOLE: list[tuple[str, Any]] = [
    ("job", raw_job(grader=EVERY_GRADER, tools=[TOOL], session={"end_url": "https://x.example"})),
    ("job", {"model": "m", "training_file": "t", "method": {"type": "supervised", "supervised": {}}}),
    ("operator", {"models": {"judge": {"base_url": "https://x.example"}}, "aliases": {"gpt-5": "x"}}),
    ("nodes", {"nodes": [{"name": "a", "cores": 1}]}),
]
FULL = [(file, MODELS[file].model_validate(content).model_dump(mode="json")) for file, content in WHOLE]
"""Files in which every setting is given."""
CHECKERS = {file: jsonschema.Draft202012Validator(editor_schema(file)) for file in MODELS}
ONLY_THE_READER = {"value_error"}
"""Errors of what depends on several settings."""


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a file, and of a further key of each mapping."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*at, key))
    if isinstance(value, dict):
        yield (*at, "further")


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> tuple[Any, Any]:
    """A copy with another value at the path, and the former value."""
    changed = deepcopy(content)
    parent = reduce(getitem, path[:-1], changed)
    before = parent.get(path[-1]) if isinstance(parent, dict) else parent[path[-1]]
    parent[path[-1]] = value
    return changed, before


def read(file: str, content: Any) -> set[str]:
    """The types of the reader's errors."""
    try:
        MODELS[file].model_validate(content)
    except ValidationError as error:
        return {found["type"] for found in error.errors()}
    return set()


SCALARS = (
    st.none() | st.integers(-2, 700) | st.floats(-2, 700) | st.sampled_from(["", "auto", "a", "http://a", "x" * 65])
)
VALUES = st.booleans() | SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.sampled_from("ab"), SCALARS)
PLACES = [(file, full, path) for file, full in FULL for path in places(full)]


@given(st.sampled_from(PLACES), VALUES)
@settings(max_examples=200, deadline=None)
def test_the_schema_and_the_reader_agree_on_any_value(place: tuple[str, Any, tuple[Any, ...]], value: Any) -> None:
    file, full, path = place
    content, before = replaced(full, path, value)
    assume(isinstance(value, bool) == isinstance(before, bool) or not isinstance(value, bool | int | float))
    assume("response_format" not in path and "allowed_networks" not in path)
    wrong = read(file, content) - ONLY_THE_READER
    assert bool(wrong) == (not CHECKERS[file].is_valid(content)), (path, value, wrong, mistake(file, content))
