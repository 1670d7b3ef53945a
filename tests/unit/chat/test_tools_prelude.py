"""Tools as text, before a chat template without tools: where everything is, and that roles alternate."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.chat.template import ChatTemplate, RenderFailed
from agent_rft.chat.tools_prelude import add_tools_prelude
from agent_rft.errors import UserError

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{% endfor %}" + PLAIN
)
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CALLS = [
    {"id": "a", "function": {"name": "find", "arguments": '{"a": "ü"}'}},
    {"id": "b", "function": {"name": "find", "arguments": {"b": 1}}},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    {"role": "tool", "content": "here"},
    {"role": "tool", "content": "there"},
]
CALLED = (
    "<assistant>I look.\n<tool_call>\n"
    '{"name": "find", "arguments": {"a": "ü"}}\n</tool_call>\n<tool_call>\n{"name": "find", "arguments": {"b": 1}}\n'
    "</tool_call><user><tool_response>\nhere\n</tool_response>\n\n<tool_response>\nthere\n</tool_response><assistant>"
)


def rendered(template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    with ChatTemplate(template) as own, ChatTemplate(add_tools_prelude(own)) as wrapped:
        return wrapped.render(messages, tools, generate=True)


def test_tools_stand_in_the_system_message_where_the_template_has_one() -> None:
    text = rendered(PLAIN, MESSAGES, [TOOL])
    head, rest = text.split("<user>Where?")
    assert head.startswith("<system>Be kind.\n\n") and '"name": "find"' in head
    assert rest == CALLED


def test_without_a_system_message_tools_stand_before_the_question() -> None:
    text = rendered(PLAIN, MESSAGES[1:2], [TOOL])
    assert text.startswith("<user>You may call functions") and text.endswith("\n\nWhere?<assistant>")


def test_a_template_that_wants_roles_to_alternate_gets_the_system_message_in_the_users() -> None:
    text = rendered(ALTERNATES, MESSAGES, [TOOL])
    assert text.startswith("<user>Be kind.\n\nYou may call functions") and text.endswith(f"\n\nWhere?{CALLED}")


@pytest.mark.parametrize("template", [PLAIN, f"\n {PLAIN}\n"])
def test_without_tools_the_text_is_that_of_the_template_itself(template: str) -> None:
    with ChatTemplate(template) as own:
        assert rendered(template, MESSAGES[:2], []) == own.render(MESSAGES[:2], [], generate=True)


def test_tools_are_shown_where_nobody_has_asked_yet() -> None:
    assert '"name": "find"' in rendered(PLAIN, [], [TOOL])


def test_a_template_that_shows_no_messages_is_refused() -> None:
    with pytest.raises(UserError, match="omits the user's messages"), ChatTemplate("{{ bos_token }}") as own:
        add_tools_prelude(own)


def test_a_template_that_fails_is_refused() -> None:
    with pytest.raises(RenderFailed, match="no more"), ChatTemplate("{{ raise_exception('no more') }}") as own:
        add_tools_prelude(own)
