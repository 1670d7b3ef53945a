"""Rows that the chat template does not render: each one is named, and a template without end is not asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from cluster.preflight.rows import JobRow, length_problems
from trainer.chat.renderer import Renderer
from trainer.chat.template import ChatTemplate, TemplateLimits
from trainer.types import Message, Task, ToolSchema

QUESTION: Message = {"role": "user", "content": "hello"}
ROWS = [JobRow("training_file", "train.jsonl", Task(f"{line}-0", (QUESTION,), (), {})) for line in (1, 2)]


class FakeRenderer:
    """Renders a template; each character is a token."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def rendered(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool) -> str:
        return self._template.render(messages, tools, generate=generate)

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
async def test_problems_of_rendering_name_row_and_remedy(
    text: str, code: str | None, lines: list[int], words: str
) -> None:
    with ChatTemplate(text, limits=TemplateLimits(memory_bytes=128 << 20)) as template:
        problems = await length_problems(ROWS, cast(Renderer, FakeRenderer(template)), 100, conversations=False)
    assert [(problem.code, problem.line) for problem in problems] == [(code, line) for line in lines]
    for problem in problems:
        assert words in problem.message and problem.remedy and problem.field == "training_file.messages"
