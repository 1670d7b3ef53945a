"""Detection of a chat template's format by rendering test messages (probes)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol

from agent_rft.chat.model_family import CallSyntax, ModelFamily
from agent_rft.chat.template import RenderFailed
from agent_rft.types import Message, ToolSchema

SLOT = "\ue000{}\ue001"  # private-use characters, which no template or text contains
_TEXT, _REASONING = "\ue002said\ue003", "\ue002thought\ue003"
_VALUE = "\ue002value{}\ue003"
_QUESTION: Message = {"role": "user", "content": "question"}
_ANSWER: Message = {"role": "assistant", "content": "\ue002answered\ue003"}
INSTRUCTION_ROLES = ("system", "developer")
MAX_ROLE_PROBES = 64
"""Maximum number of cached results of `find_instruction_roles`. The cache is bounded, because clients can send
any roles."""
REASONING_FIELDS = ("content", "reasoning_content", "reasoning", "thinking")
"""Fields that may contain a turn's reasoning. In `content`, the reasoning is between delimiters."""


class RenderFunction(Protocol):
    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool) -> str: ...


class TemplateFormat:
    """Format in which one template renders turns, calls, results and reasoning, for one model family.

    Args:
        render: Renders messages to text.
        family: Family of the model.
        ends: Other stop tokens, as strings, in addition to the token that the template writes after an answer.
        special: All special tokens, as strings.
    """

    def __init__(
        self, render: RenderFunction, family: ModelFamily, ends: Sequence[str], special: Sequence[str]
    ) -> None:
        self._render = render
        self._family = family
        self._ends = ends
        self._special = special
        self.can_append = cache(self._appends)
        self.find_instruction_roles = lru_cache(MAX_ROLE_PROBES)(self._find_instruction_roles)

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Tokens that end a turn, as strings without duplicates."""
        probed = () if self._family.stop_tokens else tuple(filter(None, (self.answer_stop_token,)))
        return tuple(dict.fromkeys((*self._family.stop_tokens, *probed, *self._ends)))

    @cached_property
    def answer_stop_token(self) -> str | None:
        """Text of the special token that the template writes after an answer; None: there is no such token."""
        answer: Message = {"role": "assistant", "content": _TEXT}
        text = self._try_render([_QUESTION, answer, {"role": "user", "content": _VALUE}]) or ""
        return _find_first(self._special, text.partition(_TEXT)[2].partition(_VALUE)[0])

    @cached_property
    def renders_calls(self) -> bool:
        """Whether the template renders the calls in earlier turns."""
        return _VALUE.format(0) in self._one_call

    @cached_property
    def call_syntax(self) -> CallSyntax | None:
        """Call syntax of the template, by default the family's first syntax. None if the family has no call syntax."""
        forms = self._family.call_syntaxes
        written = (form for form in forms if form.before_calls + form.begin.format(name="probe_tool") in self._one_call)
        return next(written, forms[0] if forms else None)

    @cached_property
    def _one_call(self) -> str:
        """Rendered history that ends with a call; empty if the template cannot render it."""
        return (
            self._try_render([_QUESTION, _make_turn([("probe_tool", _VALUE.format(0))], self.takes_argument_objects)])
            or ""
        )

    @cached_property
    def takes_argument_objects(self) -> bool:
        """Whether the template expects the arguments of calls as objects instead of the sampled JSON text."""
        call = [("probe_tool", _VALUE.format(0))]
        as_text = self._try_render([_QUESTION, _make_turn(call, objects=False)])
        as_object = self._try_render([_QUESTION, _make_turn(call, objects=True)])
        return as_text is None or (as_object is not None and as_text != as_object)

    @cached_property
    def takes_several_calls(self) -> bool:
        """Whether the template accepts a turn with several calls."""
        values = [_VALUE.format(i) for i in range(2)]
        message = _make_turn([("probe_tool", value) for value in values], self.takes_argument_objects)
        text = self._try_render([_QUESTION, message])
        return text is not None and (all(value in text for value in values) or not self.renders_calls)

    @cached_property
    def escapes_results(self) -> bool:
        """Whether the template writes a tool result as a JSON string."""
        text = '"\n'
        head = [_QUESTION, _make_turn([("probe_tool", _VALUE.format(0))], self.takes_argument_objects)]
        rendered = self._try_render([*head, _make_result(0, SLOT.format(0) + text)], generate=True) or ""
        return rendered.partition(SLOT.format(0))[2].startswith(json.dumps(text)[1:-1])

    @cached_property
    def reasoning_field(self) -> str | None:
        """Field from which the template renders the reasoning of a turn with calls; None: it renders no reasoning."""
        for field in REASONING_FIELDS:
            turn = _make_turn([("probe_tool", _VALUE.format(0))], self.takes_argument_objects)
            head, delimiters = [_QUESTION], self._family.reasoning_delimiters
            turn |= {field: f"{delimiters[0]}\n{_REASONING}\n{delimiters[1]}\n\n" if field == "content" else _REASONING}
            if self._family.reasoning_parser is not None and field == "content":
                continue
            prompt = self._try_render(head, generate=True)
            text = self._try_render([*head, turn, _make_result(0, SLOT.format(0))], generate=True)
            if prompt is None or text is None:
                continue
            rendered = text[_common_prefix_length(prompt, text) :].partition(SLOT.format(0))[0]
            closed = (
                rendered.count(delimiters[1]) <= 1 and prompt.count(delimiters[0]) + rendered.count(delimiters[0]) <= 1
            )
            if rendered.count(_REASONING) == 1 and (closed or self._family.reasoning_parser is not None):
                return field
        return None

    def _find_instruction_roles(self, roles: tuple[str, ...], *, is_first: bool) -> tuple[str, ...] | None:
        """Return the roles that the template can render for consecutive system and developer messages.

        Args:
            roles: Roles of the messages.
            is_first: Whether the messages are the first messages of a conversation.

        Returns:
            `roles` if the template renders all the messages in order. Otherwise `("system",)` if the template can
            render a single system message in their place, else None.
        """
        before: list[Message] = [] if is_first else [_QUESTION | {"content": _REASONING}, _ANSWER]
        for tried in (roles, ("system",)):
            texts = [_VALUE.format(i) for i in range(len(tried))]
            probe = [{"role": role, "content": text} for role, text in zip(tried, texts, strict=True)]
            rendered = self._try_render([*before, *probe, {"role": "user", "content": _TEXT}], generate=True) or ""
            places = [rendered.find(text) for text in (*(m["content"] for m in before), *texts, _TEXT)]
            if min(places) >= 0 and places == sorted(places):
                return tried
        return None

    def _appends(self, num_calls: int, *, has_text: bool, has_reasoning: bool) -> bool:
        """Return whether the template renders a sampled turn unchanged, so that results can be appended.

        `has_text` and `has_reasoning` indicate whether the turn also has text and reasoning.
        """
        if not self._family.renders_turns_exactly or (num_calls > 1 and not self.takes_several_calls):
            return False
        if has_reasoning and self.reasoning_field is None:
            return False
        values = [_VALUE.format(i) for i in range(num_calls)]
        turn = _make_turn([("probe_tool", value) for value in values], self.takes_argument_objects)
        turn["content"] = ("\n\n" if has_reasoning else "") + (_TEXT if has_text else "")
        if has_reasoning and self.reasoning_field is not None:
            turn = set_reasoning(turn, f"\n{_REASONING}\n", self.reasoning_field, self._family.reasoning_delimiters)
        results = [_make_result(i, SLOT.format(i)) for i in range(num_calls)]
        prompt = self._try_render([_QUESTION], generate=True)
        once = self._try_render([_QUESTION, turn, *results], generate=True)
        twice = self._try_render([_QUESTION, turn, *results, turn, *results], generate=True)
        if prompt is None or once is None or twice is None:
            return False
        sampled = once.removeprefix(prompt).partition(SLOT.format(0))[0]
        kept = not self.renders_calls or all(value in sampled for value in values)
        if has_text:
            kept = kept and self.renders_calls and -1 < sampled.find(_TEXT) < sampled.find(values[0])
        return (
            once.startswith(prompt) and twice.startswith(once) and kept and (not has_reasoning or _REASONING in sampled)
        )

    def _try_render(self, messages: Sequence[Message], *, generate: bool = False) -> str | None:
        """Return the rendered text; None if the template fails.

        Many templates fail for messages that they do not support.
        """
        try:
            return self._render(messages, (), generate=generate)
        except RenderFailed as failure:
            if failure.kind in ("raised", "failed"):
                return None
            raise

    def stop_and_bridge(self, names: Sequence[str]) -> tuple[str, str]:
        """Return the stop token of a turn that calls the tools `names`, and the text that follows the stop token.

        The text ends with the next generation prompt, and has a SLOT in place of each tool result.

        Raises:
            ValueError: The template omits or reorders tool messages, or no stop token ends the turn.
        """
        values = [_VALUE.format(i) for i in range(len(names))]
        turn = _make_turn(list(zip(names, values, strict=True)), self.takes_argument_objects)
        if not self.renders_calls:
            turn = {"role": "assistant", "content": values[-1]}
        results = [_make_result(i, SLOT.format(i), name) for i, name in enumerate(names)]
        text = self._render([_QUESTION, turn, *results], (), generate=True)
        before, found, _ = text.partition(SLOT.format(0))
        if not found:
            raise ValueError("the chat template omits tool messages")
        position = before.rfind(values[-1])
        end = _find_first(self.stop_strings, before[position:]) if position >= 0 else None
        if end is None:
            raise ValueError("the chat template writes no stop token between a call and its result")
        return end, text[position + before[position:].index(end) + len(end) :]


def set_reasoning(message: Message, reasoning: str, field: str, delimiters: tuple[str, str]) -> Message:
    """Return the message with `reasoning` in `field`, the field from which the template reads reasoning.

    In the field `content`, the reasoning is enclosed in `delimiters`.
    """
    if field != "content":
        return {**message, field: reasoning}
    return {**message, "content": f"{delimiters[0]}{reasoning}{delimiters[1]}{message.get('content') or ''}"}


def _find_first(texts: Sequence[str], text: str) -> str | None:
    """Return the string of `texts` that occurs first in `text`; if several start at the same position, the longest."""
    found = [(text.index(one), -len(one), one) for one in texts if one and one in text]
    return min(found)[2] if found else None


def _common_prefix_length(first: str, second: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _make_turn(calls: Sequence[tuple[str, str]], objects: bool) -> dict[str, Any]:
    def call(index: int, name: str, value: str) -> dict[str, Any]:
        arguments = {"probe": value} if objects else json.dumps({"probe": value}, ensure_ascii=False)
        return {"id": f"call{index:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}

    return {"role": "assistant", "content": "", "tool_calls": [call(i, *given) for i, given in enumerate(calls)]}


def _make_result(index: int, content: str, name: str = "probe_tool") -> Message:
    return {"role": "tool", "tool_call_id": f"call{index:05d}", "name": name, "content": content}
