"""Whatever a job has in it, importing it gives a job file that says the same, or says what is wrong."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.cli.openai_import.import_folder import format_readme, format_yaml
from agent_rft.cli.openai_import.job_conversion import convert_job
from agent_rft.cli.openai_import.open_models import OPEN_MODELS, propose_model
from agent_rft.cli.openai_import.openai_objects import OpenAIJob
from agent_rft.cli.openai_import.row_conversion import ConvertedRows
from agent_rft.errors import InvalidJob
from agent_rft.spec.config_reader import Variables
from tests.support.openai_jobs import recorded, reinforcement

ROWS = {"training_file": ConvertedRows(num_rows=12, longest_bytes=400)}
TEXT = st.text(max_size=20) | st.sampled_from(
    ["${HOME}", "$${A}", "a\n\n b\n", "\n x", "#", "a: b\n", "\x85\u2028", "~"]
)
KEYS = TEXT | st.sampled_from(
    [
        "type",
        "name",
        "url",
        "server_url",
        "headers",
        "graders",
        "grader",
        "source",
        "input",
        "reference",
        "operation",
        "multi",
        "string_check",
        "endpoint",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
PARTS = [
    "grader",
    "tools",
    "guards",
    "session",
    "held_out_grader",
    "hyperparameters",
    "response_format",
    "max_episode_steps",
    "limits",
]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PARTS), JSON | st.lists(st.dictionaries(KEYS, JSON)))
def test_any_value_in_a_job_is_accepted_or_named(part: str, value: Any) -> None:
    job = OpenAIJob.model_validate(recorded(reinforcement(**{part: value})))
    try:
        definition = convert_job(job, ROWS, None)
    except InvalidJob as error:
        assert error.problems
    else:
        assert all(line.isprintable() for line in format_readme(job, definition, ROWS, "x").splitlines())


def test_calls_of_an_imported_job_keep_the_limit_of_openai() -> None:
    long = {"timeout_s": 18_000, "attempt_timeout_s": 10**400}
    grader = {"type": "endpoint", "url": "https://tools.example.com/grade"}
    method = reinforcement(
        {"type": "multi", "graders": {"mine": grader | long}, "calculate_output": "mine"},
        tools=[{"name": "search", "server_url": "https://tools.example.com"} | long],
        session={"start_url": "https://tools.example.com/start"} | long,
        guards=[{"name": "safe", "grader": grader | {"timeout_s": 60}}],
    )
    definition = convert_job(OpenAIJob.model_validate(recorded(method)), ROWS, None)

    written = definition.job["method"]["reinforcement"]
    for endpoint in (written["tools"][0], written["session"], written["grader"]["graders"]["mine"]):
        assert (endpoint["timeout_s"], endpoint["attempt_timeout_s"]) == (600, 600)
    assert written["guards"][0]["grader"]["timeout_s"] == 60
    assert [note.partition(": changed ")[0] for note in definition.notes if "OpenAI's limit" in note] == [
        "tools[0].timeout_s",
        "tools[0].attempt_timeout_s",
        "grader.graders.mine.timeout_s",
        "grader.graders.mine.attempt_timeout_s",
        "session.timeout_s",
        "session.attempt_timeout_s",
    ]


@settings(max_examples=100, deadline=None)
@given(TEXT)
def test_a_text_means_the_same_in_the_job_file(text: str) -> None:
    grader = {"type": "string_check", "input": "a", "reference": "b", "operation": "eq", "name": text}
    definition = convert_job(OpenAIJob.model_validate(recorded(reinforcement(grader))), ROWS, None)
    assert not set(definition.variables) - {"DOLLAR", "KEY_TOOLS_EXAMPLE_COM_AUTHORIZATION"}

    environment = dict.fromkeys(definition.variables, "x") | {"DOLLAR": "$", "HOME": "/root", "A": "a"}
    read = Variables(environment).fill_in(yaml.safe_load(format_yaml(definition.job, "a job")), ())
    assert read["method"]["reinforcement"]["grader"]["name"] == text


def test_the_proposed_model_has_the_size_the_room_and_tools() -> None:
    def proposed(model: str, context: int = 1_000) -> str:
        return propose_model(model, context, tools=True).name.removeprefix("Qwen/Qwen3-")

    assert [proposed(model) for model in ("gpt-4.1-nano-2025-04-14", "o4-mini-2025-04-16", "gpt-5")] == [
        "1.7B",
        "4B",
        "8B",
    ]
    assert proposed("gpt-5", 10**9) == "8B", "if none has the room, it is of the right size, and the check says so"
    assert [model.parameters_in_billions for model in OPEN_MODELS] == sorted(
        model.parameters_in_billions for model in OPEN_MODELS
    )
