"""Turns messages and tools into tokens; where a template allows it, sampled tokens are never rendered again.

The chat template renders a row's messages once. After each sampled turn, only tool results and *bridge* tokens are
appended: what the template puts between the end of a turn and the next generation prompt. Where a template writes turns
of the history in another way than they were sampled, `resume` renders the whole history, as serving does. Tool results
are tokenized without special tokens, so no tool can end a turn or open another role.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

from agent_rft.chat.dialect import UNKNOWN, Dialect
from agent_rft.chat.families import family_of, family_without_calls
from agent_rft.chat.form import SLOT, TemplateForm
from agent_rft.chat.history import arguments_text, for_template
from agent_rft.chat.template import template_of
from agent_rft.types import Message, ToolSchema

_SLOTS = re.compile("\ue000(\\d+)\ue001")


class Tokenizer(Protocol):
    """The part of a Hugging Face fast tokenizer that `Renderer` uses."""

    eos_token: str
    eos_token_id: int
    chat_template: str | dict[str, str] | None
    special_tokens_map: Mapping[str, str]
    backend_tokenizer: Any

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class Renderer:
    """Renders one model's conversations, in its dialect.

    Every method that renders raises RenderFailed if the template refuses the messages, or costs too much.
    """

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect = UNKNOWN) -> None:
        self.tokenizer = tokenizer
        self._template = template_of(tokenizer, dialect.chat_template)
        self.dialect = dialect
        self._marked_up = tokenizer.backend_tokenizer
        added = self._marked_up.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._bridges: dict[tuple[str, ...], tuple[int, list[list[int]]]] = {}
        parser = dialect.tool_parser
        self.family = family_without_calls(dialect.family) if parser is None else family_of(parser)
        ends = (*dialect.end_tokens, tokenizer.eos_token)
        self.form = TemplateForm(self._render, self.family, ends, tuple(self._special.values()))
        self.mark_texts = dialect.thought_marks or self.family.thought_marks
        marked = self.family.reasoning_parser is None
        self.thought_marks = tuple(self._marked_up.token_to_id(mark) if marked else None for mark in self.mark_texts)
        self.end_of_thought: int | None = self.thought_marks[1]

    @property
    def template(self) -> str:
        """The text of the chat template."""
        return self._template.text

    @cached_property
    def _plain(self) -> Any:
        """The tokenizer for untrusted text. Copying a large vocabulary takes long, and finding a dialect needs none."""
        plain = copy.deepcopy(self._marked_up)
        plain.encode_special_tokens = True
        return plain

    def warm_up(self) -> None:
        """Copy the tokenizer now: otherwise the first tool result waits for the copy."""
        _ = self._plain

    @cached_property
    def end_tokens(self) -> dict[int, str]:
        """The tokens that end a turn: id -> text."""
        found = {self._marked_up.token_to_id(text): text for text in self.form.ends}
        return {token: text for token, text in found.items() if token is not None}

    @cached_property
    def thought(self) -> Literal["none", "optional", "opened"]:
        """Whether a turn may start with a thought, or goes on with the one that the generation prompt opens.

        A generation prompt that also closes it, and a vocabulary that lacks a mark, leave no thought.
        """
        question: list[Message] = [{"role": "user", "content": "question"}]
        asked = self._render(question, (), generate=False)
        prompt = self.encode(self._render(question, (), generate=True).removeprefix(asked))
        marks = [token for token in prompt if token in self.thought_marks]
        if None in self.thought_marks or marks[-1:] == [self.end_of_thought]:
            return "none"
        return "opened" if marks else "optional"

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Token ids of the messages, the tools and the generation prompt."""
        return self.encode(self.rendered(messages, tools, generate=True))

    def rendered(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool) -> str:
        """The text of messages in OpenAI's form; with `generate`, the prompt for the next turn."""
        thinks = self.end_of_thought is not None or self.family.reasoning_parser is not None
        return self._render(for_template(messages, self.form, self.family, thinks=thinks), tools, generate=generate)

    def resume(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], results: Sequence[Sequence[int]]
    ) -> list[int]:
        """Like `prompt`, for a conversation that already has assistant turns, with the tokens a rollout would have.

        `results[i]` are the token ids of the i-th tool message's content. Tool calls keep the text that was sampled,
        where the template takes it.

        Raises:
            ValueError: The chat template omits or repeats tool messages.
        """
        marked: list[Message] = []
        for message in messages:
            if message["role"] == "tool":
                message = {**message, "content": SLOT.format(sum(m["role"] == "tool" for m in marked))}
            elif message["role"] == "assistant":
                message = self._without_special(message)
            marked.append(message)
        text = self.rendered(marked, tools, generate=True)
        return self._filled(text, results)

    def appends_after(self, end: int, num_calls: int, *, says: bool, thinks: bool) -> bool:
        """Whether the next prompt is what the engine has seen, a bridge and the results.

        `end` is the token that ended the turn, `says` and `thinks`: whether it has text and a thought beside its calls.
        Else the next prompt is that of `resume`.
        """
        try:
            return (
                self.form.appends(num_calls, says=says, thinks=thinks) and self._bridge(("tool",) * num_calls)[0] == end
            )
        except ValueError:
            return False

    def bridge(self, names: Sequence[str], results: Sequence[Sequence[int]]) -> list[int]:
        """Token ids from a sampled end token to the next generation prompt.

        `results[i]` are the token ids of the result of a call to the tool `names[i]`.

        Raises:
            ValueError: The chat template omits or repeats tool messages.
        """
        pieces = self._bridge(tuple(names))[1]
        tokens = list(pieces[0])
        for result, piece in zip(results, pieces[1:], strict=True):
            tokens += result
            tokens += piece
        return tokens

    def result(self, text: str) -> list[int]:
        """Token ids of a tool's result, as the template writes results."""
        return self.plain(json.dumps(text, ensure_ascii=False)[1:-1] if self.form.escapes_results else text)

    def cut_result(self, text: str, limit: int) -> tuple[list[int], bool]:
        """Token ids of a tool's result, cut at `limit` with a mark that the model sees, and whether it was cut."""
        ids = self.result(text)
        if len(ids) <= limit:
            return ids, False
        return ids[:limit] + self.plain(f"\n[... {len(ids) - limit} tokens cut ...]"), True

    def plain(self, text: str) -> list[int]:
        """Token ids of untrusted text, never special tokens: a literal `<|im_end|>` does not become the end token."""
        token_ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        if self._special.keys().isdisjoint(token_ids):
            return token_ids
        # In small vocabularies special tokens are also ordinary pieces.
        return list(self._plain.encode(self._broken_up(text), add_special_tokens=False).ids)

    def _broken_up(self, text: str, keep: Sequence[str] = ()) -> str:
        """The text with a space in each special token's text."""
        for content in self._special.values():
            if content not in keep:
                text = text.replace(content, f"{content[0]} {content[1:]}")
        return text

    def _without_special(self, turn: Message) -> Message:
        """A sampled turn without the text of special tokens, which it may have copied from a tool's result.

        Marks of thoughts stay.
        """
        turn = dict(turn)
        if isinstance(content := turn.get("content"), str):
            turn["content"] = self._broken_up(content, self.mark_texts)
        if calls := turn.get("tool_calls"):
            turn["tool_calls"] = [{**call, "function": self._as_text(call["function"])} for call in calls]
        return turn

    def _as_text(self, function: dict[str, Any]) -> dict[str, Any]:
        return {**function, "arguments": self._broken_up(arguments_text(function.get("arguments")))}

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens without the end token. Other special tokens are kept, since parsers look for them."""
        ended = len(token_ids) > 0 and token_ids[-1] in self.end_tokens
        return self.tokenizer.decode(token_ids[:-1] if ended else token_ids, skip_special_tokens=False)

    def thought_length(self, token_ids: Sequence[int]) -> int:
        """The number of tokens of a turn's thought between marks, including the closing one."""
        end = self.end_of_thought
        return list(token_ids).index(end) + 1 if end is not None and end in token_ids else 0

    def thought_text(self, token_ids: Sequence[int]) -> str:
        """The text of a thought, from its tokens with their marks."""
        text = self.tokenizer.decode(token_ids[:-1], skip_special_tokens=False)
        return text.lstrip().removeprefix(self.mark_texts[0]).removeprefix(self.family.thought_head)

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text, with its special tokens."""
        return list(self._marked_up.encode(text, add_special_tokens=False).ids)

    def has_token(self, text: str | None) -> bool:
        """Whether a text is one token of the vocabulary."""
        return text is not None and self._marked_up.token_to_id(text) is not None

    def end_of(self, message: Message) -> str:
        """The text of the token that the template puts after a turn of the assistant."""
        calls = message.get("tool_calls")
        if calls:
            return self.form.between([call["function"]["name"] for call in calls])[0]
        return self.form.end_of_answers or self.tokenizer.eos_token

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool) -> str:
        return self._template.render(messages, tools, generate=generate, **self.dialect.template_arguments)

    def _filled(self, text: str, results: Sequence[Sequence[int]]) -> list[int]:
        """Token ids of a text with a slot for each result."""
        head, *rest = _SLOTS.split(text)
        if sorted(map(int, rest[::2])) != list(range(len(results))):
            raise ValueError("the chat template omits or repeats tool messages")
        tokens = self.encode(head)
        for number, piece in zip(rest[::2], rest[1::2], strict=True):
            tokens += results[int(number)]
            tokens += self.encode(piece)
        return tokens

    def _bridge(self, names: tuple[str, ...]) -> tuple[int, list[list[int]]]:
        """The end token of a turn that called these tools, and the token ids between the results."""
        if names not in self._bridges:
            end, text = self.form.between(names)
            head, *rest = _SLOTS.split(text)
            if [int(number) for number in rest[::2]] != list(range(len(names))):
                raise ValueError("the chat template omits tool messages or changes their order")
            self._bridges[names] = (
                self._marked_up.token_to_id(end),
                [self.encode(piece) for piece in (head, *rest[1::2])],
            )
        return self._bridges[names]
