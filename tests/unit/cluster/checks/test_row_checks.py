"""Rows that the chat template does not render: each one is named, and a template without end is not asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from agent_rft.actors.endpoints.request_body import MAX_ROW_BYTES, encode_json
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import ChatTemplate, TemplateLimits
from agent_rft.cluster.checks.row_checks import CheckedRow, check_row_lengths, check_row_sizes, check_template_values
from agent_rft.types import Message, Task, ToolSchema
from tests.support.builders import EXACT, job

QUESTION: Message = {"role": "user", "content": "hello"}
ROWS = [CheckedRow("training_file", "train.jsonl", Task(f"{line}-0", (QUESTION,), (), {})) for line in (1, 2)]


class FakeRenderer:
    """Renders a template; each character is a token."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, add_generation_prompt: bool
    ) -> str:
        return self._template.render(messages, tools, generate=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        return list(range(len(text)))


@pytest.mark.parametrize(
    ("text", "code", "lines", "words"),
    [
        ("{{ raise_exception('not here') }}", "unrenderable_row", [1, 2], "line 1 of the chat template: not here"),
        ("{{ messages[0].content * 10 ** 10 }}", "template_too_costly", [1], "needed more than 128 MiB"),
        ("{{ messages[0].content }}", None, [], ""),
    ],
)
async def test_problems_of_rendering_name_row_and_fix(
    text: str, code: str | None, lines: list[int], words: str
) -> None:
    with ChatTemplate(text, limits=TemplateLimits(memory_bytes=128 << 20)) as template:
        problems = await check_row_lengths(ROWS, cast(Renderer, FakeRenderer(template)), 100, conversations=False)
    assert [(problem.code, problem.line) for problem in problems] == [(code, line) for line in lines]
    for problem in problems:
        assert words in problem.message and problem.fix and problem.field == "training_file.messages"


def row_of(num_bytes: int, text: str = "x", tools: tuple[ToolSchema, ...] = ()) -> CheckedRow:
    """A row that takes this many bytes in a request."""
    count, rest = divmod(num_bytes - len(encode_json({"page": ""})), len(text.encode()))
    return CheckedRow(
        "training_file", "train.jsonl", Task("3-0", (QUESTION,), tools, {"page": text * count + "x" * rest})
    )


TRAVELS: list[dict[str, Any]] = [
    {"grader": {"type": "endpoint", "url": "http://localhost/x"}},
    {"held_out_grader": {"type": "endpoint", "url": "http://localhost/x"}},
    {"guards": [{"name": "safe", "grader": {"type": "endpoint", "url": "http://localhost/x"}}]},
    {"grader": {"type": "multi", "graders": {"a": {"type": "endpoint", "url": "http://x"}}, "calculate_output": "a"}},
    {"session": {"start_url": "http://localhost/x"}},
]


@pytest.mark.parametrize("reinforcement", TRAVELS)
def test_a_row_that_leaves_no_room_for_arguments_is_named_with_its_size(reinforcement: dict[str, Any]) -> None:
    spec = job({"grader": EXACT} | reinforcement).reinforcement
    assert check_row_sizes(spec, [row_of(MAX_ROW_BYTES), row_of(MAX_ROW_BYTES, "报")]) == []
    (problem,) = check_row_sizes(spec, [row_of(MAX_ROW_BYTES + 1, "报")])
    assert (problem.code, problem.field, problem.line) == ("row_too_large", "training_file", 3)
    assert "has 500,001 bytes, but at most 500,000" in problem.message and "to a file" in problem.fix


def test_a_row_is_bounded_only_where_it_is_sent() -> None:
    spec, tool = job({"grader": EXACT, "session": {"end_url": "http://x"}}).reinforcement, {"function": {"name": "cat"}}
    assert check_row_sizes(spec, [row_of(MAX_ROW_BYTES + 1)]) == []
    assert len(check_row_sizes(spec, [row_of(MAX_ROW_BYTES + 1, tools=(tool,))])) == 1


def test_a_row_that_makes_a_graders_text_too_long_is_named() -> None:
    spec = job({"grader": EXACT | {"reference": "{{ item.page }}{{ item.page }}"}}).reinforcement
    (problem,) = check_template_values(spec, [row_of(600_000)])
    assert (problem.code, problem.line) == ("row_too_large", 3) and "1,000,000 characters" in problem.message


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("item.answer", "write {{ item.item.answer }}, because the row itself has a key `item`"),
        ("item[0]", "add the value to the row"),
        ("item.other", "add the value to the row"),
    ],
)
def test_a_value_below_a_key_item_is_named(path: str, fix: str) -> None:
    spec = job({"grader": EXACT | {"reference": f"{{{{ {path} }}}}"}}).reinforcement
    row = CheckedRow("training_file", "train.jsonl", Task("3-0", (QUESTION,), (), {"item": {"answer": "1"}}))
    (problem,) = check_template_values(spec, [row])
    assert (problem.code, problem.line) == ("missing_value", 3) and problem.fix.startswith(fix)
