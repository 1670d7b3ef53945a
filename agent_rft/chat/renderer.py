"""Conversion of messages and tools to tokens. If the template allows it, sampled tokens are never rendered again.

The chat template renders the messages of a row once. After each sampled turn, only tool results and *bridge* tokens are
appended. Bridge tokens are the template's text from the end of a turn to the end of the next generation prompt. If the
template changes earlier turns, `render_history` renders the full history instead.

Tool results are tokenized without special tokens, so no tool can end a turn or start a message of another role.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

from agent_rft.chat.dialect import DEFAULT_DIALECT, Dialect
from agent_rft.chat.families import find_family, find_family_without_calls
from agent_rft.chat.template import load_chat_template
from agent_rft.chat.template_format import SLOT, TemplateFormat
from agent_rft.chat.template_messages import format_arguments, to_template_messages
from agent_rft.types import Message, ToolSchema

Result = TypeVar("Result")

_SLOTS = re.compile("\ue000(\\d+)\ue001")


class Tokenizer(Protocol):
    """Methods and attributes of a Hugging Face fast tokenizer that `Renderer` uses."""

    eos_token: str
    eos_token_id: int
    chat_template: str | dict[str, str] | None
    special_tokens_map: Mapping[str, str]
    backend_tokenizer: Any

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class Renderer:
    """Renders the conversations of one model in the model's dialect.

    Every method that renders raises RenderFailed if the template rejects the messages or exceeds its limits.
    """

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect = DEFAULT_DIALECT) -> None:
        self.tokenizer = tokenizer
        self._template = load_chat_template(tokenizer, dialect.chat_template)
        self.dialect = dialect
        self._markup_tokenizer = tokenizer.backend_tokenizer
        added = self._markup_tokenizer.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._bridges: dict[tuple[str, ...], tuple[int, list[list[int]]]] = {}
        parser = dialect.tool_parser
        self.family = find_family_without_calls(dialect.family) if parser is None else find_family(parser)
        ends = (*dialect.stop_tokens, tokenizer.eos_token)
        self.template_format = TemplateFormat(self._render, self.family, ends, tuple(self._special.values()))
        self.reasoning_delimiters = dialect.reasoning_delimiters or self.family.reasoning_delimiters
        marked = self.family.reasoning_parser is None
        self.reasoning_token_ids = tuple(
            self._markup_tokenizer.token_to_id(mark) if marked else None for mark in self.reasoning_delimiters
        )
        self.reasoning_end_id: int | None = self.reasoning_token_ids[1]

    @property
    def template(self) -> str:
        """Text of the chat template."""
        return self._template.text

    @cached_property
    def _untrusted_tokenizer(self) -> Any:
        """Copy of the tokenizer for untrusted text, created on first use because copying is slow."""
        plain = copy.deepcopy(self._markup_tokenizer)
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="renderer")

    async def run_in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return `work(*arguments)`, which renders, without blocking the event loop.

        The renderer has one thread, so renders run one at a time, in the order of the calls. A cancelled call that has
        not started is dropped; if it has started, its result is dropped.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def warm_up(self) -> None:
        """Copy the tokenizer and probe the template now, so that the first tool result does not wait for this."""
        _ = self._untrusted_tokenizer, self.template_format.escapes_results

    @cached_property
    def stop_tokens(self) -> dict[int, str]:
        """Tokens that end a turn: id -> text."""
        found = {self._markup_tokenizer.token_to_id(text): text for text in self.template_format.stop_strings}
        return {token: text for token, text in found.items() if token is not None}

    @cached_property
    def reasoning_mode(self) -> Literal["none", "optional", "opened"]:
        """Use of reasoning in a turn: `none`, `optional` or `opened`.

        `opened`: the generation prompt opens reasoning. `none`: the generation prompt closes reasoning, or the
        vocabulary lacks a delimiter.
        """
        question: list[Message] = [{"role": "user", "content": "question"}]
        asked = self._render(question, (), generate=False)
        prompt = self.encode(self._render(question, (), generate=True).removeprefix(asked))
        marks = [token for token in prompt if token in self.reasoning_token_ids]
        if None in self.reasoning_token_ids or marks[-1:] == [self.reasoning_end_id]:
            return "none"
        return "opened" if marks else "optional"

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Return the token ids of the messages, the tools and the generation prompt."""
        return self.encode(self.render_text(messages, tools, add_generation_prompt=True))

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, add_generation_prompt: bool
    ) -> str:
        """Return the rendered text of messages in OpenAI's format.

        With `add_generation_prompt`, the text ends with the generation prompt of the next turn.
        """
        return self._render(self._to_template_messages(messages), tools, generate=add_generation_prompt)

    def rewrites_developer(self, messages: Sequence[Message]) -> bool:
        """Return whether a developer message is rendered as a system message.

        This is the case if the template does not support the role `developer`.
        """
        given = [message["role"] for message in messages].count("developer")
        if not given:
            return False
        return [message["role"] for message in self._to_template_messages(messages)].count("developer") < given

    def _to_template_messages(self, messages: Sequence[Message]) -> list[Message]:
        thinks = self.reasoning_end_id is not None or self.family.reasoning_parser is not None
        return to_template_messages(messages, self.template_format, self.family, has_reasoning=thinks)

    def render_history(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], results: Sequence[Sequence[int]]
    ) -> list[int]:
        """Return the token ids of `messages`, followed by the generation prompt.

        `results[i]` are the token ids of the i-th tool message's content.

        Raises:
            ValueError: The chat template omits or repeats tool messages.
        """
        marked: list[Message] = []
        for message in messages:
            if message["role"] == "tool":
                message = {**message, "content": SLOT.format(sum(m["role"] == "tool" for m in marked))}
            elif message["role"] == "assistant":
                message = self._break_up_special_tokens(message)
            marked.append(message)
        text = self.render_text(marked, tools, add_generation_prompt=True)
        return self._fill_slots(text, results)

    def can_append(self, end: int, num_calls: int, *, has_text: bool, has_reasoning: bool) -> bool:
        """Return whether `bridge_tokens` can be appended to the current tokens; if not, use `render_history`.

        `end` is the token that ended the turn, and `num_calls` is the number of calls in the turn. `has_text` and
        `has_reasoning` indicate whether the turn also has text and reasoning.
        """
        try:
            return (
                self.template_format.can_append(num_calls, has_text=has_text, has_reasoning=has_reasoning)
                and self._bridge(("tool",) * num_calls)[0] == end
            )
        except ValueError:
            return False

    def bridge_tokens(self, names: Sequence[str], results: Sequence[Sequence[int]]) -> list[int]:
        """Return the token ids that follow a sampled stop token, up to the end of the next generation prompt.

        The tool results are part of the returned tokens. `results[i]` are the token ids of the result of a call to the
        tool `names[i]`.

        Raises:
            ValueError: The chat template omits or repeats tool messages.
        """
        pieces = self._bridge(tuple(names))[1]
        tokens = list(pieces[0])
        for result, piece in zip(results, pieces[1:], strict=True):
            tokens += result
            tokens += piece
        return tokens

    def encode_result(self, text: str) -> list[int]:
        """Return the token ids of a tool result. The text is escaped if the template writes results as JSON strings."""
        return self.encode_untrusted(
            json.dumps(text, ensure_ascii=False)[1:-1] if self.template_format.escapes_results else text
        )

    def encode_truncated_result(self, text: str, limit: int) -> tuple[list[int], bool]:
        """Return the token ids of a tool result, and whether the result was truncated.

        A result with more than `limit` tokens is truncated to `limit` tokens, followed by a note.
        """
        ids = self.encode_result(text)
        if len(ids) <= limit:
            return ids, False
        return ids[:limit] + self.encode_untrusted(f"\n[... {len(ids) - limit} tokens cut ...]"), True

    def encode_untrusted(self, text: str) -> list[int]:
        """Return the token ids of untrusted text, without special tokens.

        A literal `<|im_end|>` in the text therefore does not end a turn.
        """
        token_ids = list(self._untrusted_tokenizer.encode(text, add_special_tokens=False).ids)
        if self._special.keys().isdisjoint(token_ids):
            return token_ids
        # In small vocabularies, ordinary text may also contain special tokens.
        return list(self._untrusted_tokenizer.encode(self._break_up(text), add_special_tokens=False).ids)

    def _break_up(self, text: str, keep: Sequence[str] = ()) -> str:
        """Return `text` with a space inserted into each special token's name, except the tokens in `keep`."""
        for content in self._special.values():
            if content not in keep:
                text = text.replace(content, f"{content[0]} {content[1:]}")
        return text

    def _break_up_special_tokens(self, turn: Message) -> Message:
        """Return a sampled turn with a space inserted into each special token's name.

        The model may have copied the names from a tool result. Reasoning delimiters in the content are not changed.
        """
        turn = dict(turn)
        if isinstance(content := turn.get("content"), str):
            turn["content"] = self._break_up(content, self.reasoning_delimiters)
        if calls := turn.get("tool_calls"):
            turn["tool_calls"] = [{**call, "function": self._break_up_arguments(call["function"])} for call in calls]
        return turn

    def _break_up_arguments(self, function: dict[str, Any]) -> dict[str, Any]:
        return {**function, "arguments": self._break_up(format_arguments(function.get("arguments")))}

    def decode_turn(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens without the stop token. Other special tokens are kept for the parsers."""
        ended = len(token_ids) > 0 and token_ids[-1] in self.stop_tokens
        return self.tokenizer.decode(token_ids[:-1] if ended else token_ids, skip_special_tokens=False)

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        """Return the number of reasoning tokens in a turn, including the closing delimiter.

        The number is 0 if the turn has no closing delimiter.
        """
        end = self.reasoning_end_id
        return list(token_ids).index(end) + 1 if end is not None and end in token_ids else 0

    def decode_reasoning(self, token_ids: Sequence[int]) -> str:
        """Return the text of the reasoning tokens of a turn, without the delimiters."""
        text = self.tokenizer.decode(token_ids[:-1], skip_special_tokens=False)
        return text.lstrip().removeprefix(self.reasoning_delimiters[0]).removeprefix(self.family.reasoning_prefix)

    def encode(self, text: str) -> list[int]:
        """Tokenize text that the template rendered, including its special tokens."""
        return list(self._markup_tokenizer.encode(text, add_special_tokens=False).ids)

    def has_token(self, text: str | None) -> bool:
        """Return whether the vocabulary has a token with exactly this text."""
        return text is not None and self._markup_tokenizer.token_to_id(text) is not None

    def stop_token_after(self, message: Message) -> str:
        """Return the text of the stop token that the template writes after the assistant message `message`."""
        calls = message.get("tool_calls")
        if calls:
            return self.template_format.stop_and_bridge([call["function"]["name"] for call in calls])[0]
        return self.template_format.answer_stop_token or self.tokenizer.eos_token

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool) -> str:
        return self._template.render(messages, tools, generate=generate, **self.dialect.template_arguments)

    def _fill_slots(self, text: str, results: Sequence[Sequence[int]]) -> list[int]:
        """Return the token ids of `text`, with each SLOT replaced by the token ids of a tool result."""
        head, *rest = _SLOTS.split(text)
        if sorted(map(int, rest[::2])) != list(range(len(results))):
            raise ValueError("the chat template omits or repeats tool messages")
        tokens = self.encode(head)
        for number, piece in zip(rest[::2], rest[1::2], strict=True):
            tokens += results[int(number)]
            tokens += self.encode(piece)
        return tokens

    def _bridge(self, names: tuple[str, ...]) -> tuple[int, list[list[int]]]:
        """Return the stop token and the bridge tokens of a turn that calls the tools `names`.

        The stop token ends the turn. The bridge tokens are the template's tokens before the first tool result and after
        each tool result.
        """
        if names not in self._bridges:
            end, text = self.template_format.stop_and_bridge(names)
            head, *rest = _SLOTS.split(text)
            if [int(number) for number in rest[::2]] != list(range(len(names))):
                raise ValueError("the chat template omits tool messages or changes their order")
            self._bridges[names] = (
                self._markup_tokenizer.token_to_id(end),
                [self.encode(piece) for piece in (head, *rest[1::2])],
            )
        return self._bridges[names]
