"""Warnings about valid jobs from which little can be learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agent_rft.chat.dialect import Dialect
from agent_rft.chat.renderer import Renderer
from agent_rft.cluster.checks.job_advice import find_advice
from agent_rft.types import Task
from tests.support.builders import EXACT, job, plan, task
from tests.support.families import TINY
from tests.support.paths import BASE

RENDERER = Renderer(AutoTokenizer.from_pretrained(BASE), Dialect("hermes", "hermes"))
PLAN = plan(n_epochs=2)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def told(
    tasks: list[Task], reinforcement: dict[str, Any] | None = None, renderer: Renderer = RENDERER, **changes: Any
) -> list[str]:
    files = {"training_file": tasks, "validation_file": [], "test_file": []}
    return list(find_advice(job(reinforcement), PLAN.model_copy(update=changes), renderer, files))


def rows(*texts: str, **more: Any) -> list[Task]:
    return [task(f"{line}-0", text, **more) for line, text in enumerate(texts, start=1)]


def test_a_job_of_different_rows_needs_no_advice() -> None:
    assert told(rows("a", "b", "c")) == []


def test_rows_that_repeat_earlier_ones_are_named_by_line() -> None:
    (warning,) = told(rows("a", "b", "a", "a", "c", "b"))
    assert warning.startswith("training_file: 3 of 6 rows repeat an earlier row (rows 3-4, 6)")


def test_developer_messages_that_become_system_messages_are_one_note() -> None:
    def talks(role: str, line: int) -> Task:
        messages = ({"role": role, "content": "Be brief."}, {"role": "user", "content": f"question {line}"})
        return Task(f"{line}-0", messages, (), {"line": line})

    tasks = [talks("developer", 1), talks("system", 2), talks("developer", 3)]
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    assert told(tasks) == [], "the template renders every role"
    tokenizer.chat_template = tokenizer.chat_template.replace("in messages", "in messages if m.role != 'developer'")
    (note,) = told(tasks, renderer=Renderer(tokenizer, Dialect("hermes", "hermes")))
    assert note == (
        "messages: the developer messages of 2 rows are rendered as system messages, because the chat template does "
        "not support the role developer; no change is needed"
    )


def test_many_epochs_over_a_few_rows_are_told() -> None:
    (warning,) = told(rows("a", "b", "c"), num_rows=3, n_epochs=107)
    assert warning.startswith("training_file: has only 3 rows for 107 epochs, so the model will memorize the answers")


def test_a_warm_up_that_never_ends_is_told() -> None:
    algorithm = {"algorithm": {"warm_up_steps": PLAN.steps}}
    (warning,) = told(rows("a", "b"), algorithm)
    assert warning.startswith(f"algorithm.warm_up_steps: with {PLAN.steps} steps, the learning rate is still rising")
    assert told(rows("a", "b"), algorithm, steps=PLAN.steps + 1) == []


@pytest.mark.parametrize(
    ("grader", "field"),
    [
        (EXACT | {"input": "{{ item.answer }}"}, "grader"),
        ({"type": "python", "source": "def grade(sample, item):\n    return 1.0"}, "grader"),
        (
            {"type": "multi", "graders": {"same": EXACT | {"input": "yes"}}, "calculate_output": "same"},
            "grader.graders.same",
        ),
        ({"type": "score_model", "model": "j", "input": [{"role": "user", "content": "{{ item.q }}?"}]}, "grader"),
    ],
)
def test_a_grader_that_does_not_read_the_answer_is_told(grader: dict[str, Any], field: str) -> None:
    (warning,) = told(rows("a", "b"), {"grader": grader})
    assert warning.startswith(f"method.reinforcement.{field}: gives all answers to a row the same grade")


@pytest.mark.parametrize(
    "grader",
    [
        EXACT,
        {"type": "python", "source": "def grade(s, item):\n    return float(s['output_text'] == item['a'])"},
        {"type": "python", "source": "def grade(*given):\n    return float(len(given[0]))"},
        {"type": "python", "source": "def other(sample, item):\n    return 1.0\n\n\ngrade = other"},
        {"type": "endpoint", "url": "http://localhost"},
        {"type": "length", "max_chars": 9},
        {"type": "multi", "graders": {"exact": EXACT}, "calculate_output": "1 - exact"},
    ],
)
def test_a_grader_that_may_tell_answers_apart_is_not(grader: dict[str, Any]) -> None:
    assert told(rows("a", "b"), {"grader": grader}) == []


@pytest.mark.parametrize(
    ("expression", "lowest", "warns"),
    [
        ("2 * p * r / (p + r)", 0, True),
        ("2 * p * r / (p + r + 1e-9)", 0, False),
        ("2 * p * r / (p + r)", 1, False),
        ("log(p) + r", 0, True),
        ("p - r", 0, False),
    ],
)
def test_an_expression_without_a_value_for_the_worst_answers_is_told(
    expression: str, lowest: float, warns: bool
) -> None:
    source = "def grade(sample, item):\n    return float(len(sample['output_text']))"
    part = {"type": "python", "source": source, "range": [lowest, 9]}
    multi = {"type": "multi", "graders": {"p": part, "r": part}, "calculate_output": expression}
    warnings = told(rows("a", "b"), {"grader": multi})
    start = "method.reinforcement.grader.calculate_output: has no value if all parts give their lowest grade"
    assert [warning.startswith(start) for warning in warnings] == [True] * warns


def test_names_of_tools_that_cannot_be_called_are_told() -> None:
    served = [{"name": name, "server_url": "http://localhost"} for name in ("find it", "cat")]
    (warning,) = told(rows("a", tools=[tool("find it"), tool("cat")]), {"tools": served})
    assert "'find it'" in warning and "OpenAI's API" in warning and "rename" in warning


def test_names_that_the_models_own_form_of_calls_cannot_hold_are_told(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY["qwen3_coder"].write(tmp_path))
    renderer = Renderer(tokenizer, Dialect("qwen3_coder", "qwen3_coder"))
    served = [{"name": name, "server_url": "http://localhost"} for name in ("a>b", "cat")]
    ours, models = told(rows("a", tools=[tool("a>b"), tool("cat")]), {"tools": served}, renderer)
    assert "OpenAI's API" in ours
    assert "cannot read the name 'a>b'" in models


def test_calls_that_may_outlast_their_rollout_are_told() -> None:
    served = [
        {"name": "build", "server_url": "http://localhost", "timeout_s": 18_000},
        {"name": "cat", "server_url": "http://localhost", "timeout_s": 600},
    ]
    endpoint = {"type": "endpoint", "url": "http://localhost", "timeout_s": 3_601}
    multi = {"type": "multi", "graders": {"mine": endpoint}, "calculate_output": "mine"}
    session = {"start_url": "http://localhost", "timeout_s": 3_600}
    reinforcement = {"tools": served, "grader": multi, "session": session}
    offered = rows("a", tools=[tool("build"), tool("cat")])
    of_tool, of_grader = told(offered, reinforcement)
    assert of_tool == (
        "method.reinforcement.tools[0].timeout_s: 18000 s is longer than limits.rollout_timeout_s (600 s), so a "
        "rollout is discarded before its slow call times out; set limits.rollout_timeout_s to more than 18000, or "
        "lower timeout_s [short_rollout_timeout]"
    )
    assert of_grader.startswith("method.reinforcement.grader.graders.mine.timeout_s: 3601 s is longer than the 3600 s")
    assert "more than 601" in of_grader
    assert told(offered, reinforcement | {"limits": {"rollout_timeout_s": 18_001}}) == []
