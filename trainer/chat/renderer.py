"""Turns messages and tools into tokens, append-only: sampled tokens are never rendered or tokenized again.

The chat template renders a row's messages once. After each sampled turn, only tool results and *bridge* tokens are
appended: what the template puts between the assistant's end token and the next generation prompt. Tool results are
tokenized without special tokens, so no tool can end a turn or open another role.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

from trainer.types import Message, ToolSchema

THOUGHT_MARKS = ("<think>", "</think>")
"""Open and close a thought in models whose vocabulary has these tokens."""
_SLOT = "\ue000{}\ue001"  # private-use characters, which no template or text contains
_PROBE = "\ue002probe\ue003"
_ARGUMENTS = '{"probe": 1}'


class Tokenizer(Protocol):
    """The part of a Hugging Face fast tokenizer that `Renderer` uses."""

    eos_token: str
    eos_token_id: int
    chat_template: str
    backend_tokenizer: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class Renderer:
    """Renders one model's chat template.

    `template_arguments` are passed to the template every time, such as a switch for thinking.
    """

    def __init__(self, tokenizer: Tokenizer, **template_arguments: Any) -> None:
        self.tokenizer = tokenizer
        self.template_arguments = template_arguments
        self._marked_up = tokenizer.backend_tokenizer
        self._plain = copy.deepcopy(tokenizer.backend_tokenizer)
        self._plain.encode_special_tokens = True
        added = self._marked_up.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._bridges: dict[tuple[str, ...], list[list[int]]] = {}
        self._quotes_arguments: bool | None = None
        self.thought_marks = tuple(self._marked_up.token_to_id(mark) for mark in THOUGHT_MARKS)
        self.end_of_thought = self.thought_marks[1]

    @cached_property
    def thought(self) -> Literal["none", "optional", "opened"]:
        """Whether a turn may start with a thought, or goes on with the one that the generation prompt opens.

        A generation prompt that also closes it, and a vocabulary that lacks a mark, leave no thought.
        """
        question: list[Message] = [{"role": "user", "content": "question"}]
        asked = self._render(question, (), generate=False)
        prompt = self._encode(self._render(question, (), generate=True).removeprefix(asked))
        marks = [token for token in prompt if token in self.thought_marks]
        if None in self.thought_marks or marks[-1:] == [self.end_of_thought]:
            return "none"
        return "opened" if marks else "optional"

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Token ids of the messages, the tools and the generation prompt."""
        return self._encode(self._render(messages, tools, generate=True))

    def resume(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], results: Sequence[Sequence[int]]
    ) -> list[int]:
        """Like `prompt`, for a conversation that already has assistant turns, with the tokens a rollout would have.

        `results[i]` are the token ids of the i-th tool message's content. Tool calls keep the text that was sampled.

        Raises:
            ValueError: The chat template omits or reorders tool messages.
        """
        marked: list[Message] = []
        for message in messages:
            if message["role"] == "tool":
                message = {**message, "content": _SLOT.format(sum(m["role"] == "tool" for m in marked))}
            elif message.get("tool_calls"):
                message = {**message, "tool_calls": [self._call(call) for call in message["tool_calls"]]}
            marked.append(message)
        text = self._render(marked, tools, generate=True)
        tokens: list[int] = []
        for i, result in enumerate(results):
            piece, found, text = text.partition(_SLOT.format(i))
            if not found:
                raise ValueError("the chat template omits tool messages or changes their order")
            tokens += self._encode(piece)
            tokens += result
        return tokens + self._encode(text)

    def bridge(self, names: Sequence[str], results: Sequence[Sequence[int]]) -> list[int]:
        """Token ids from a sampled end token to the next generation prompt.

        `results[i]` are the token ids of the result of a call to the tool `names[i]`.

        Raises:
            ValueError: The chat template omits or reorders tool messages.
        """
        key = tuple(names)
        if key not in self._bridges:
            self._bridges[key] = self._split_bridge(key)
        pieces = self._bridges[key]
        tokens = list(pieces[0])
        for result, piece in zip(results, pieces[1:], strict=True):
            tokens += result
            tokens += piece
        return tokens

    def plain(self, text: str) -> list[int]:
        """Token ids of untrusted text, never special tokens: a literal `<|im_end|>` does not become the end token."""
        token_ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        if self._special.keys().isdisjoint(token_ids):
            return token_ids
        # In small vocabularies special tokens are also ordinary pieces: break them up in the text.
        for content in self._special.values():
            text = text.replace(content, f"{content[0]} {content[1:]}")
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens without the end token. Other special tokens are kept, since parsers look for them."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False).removesuffix(self.tokenizer.eos_token)

    def conversation(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[list[int], list[bool]]:
        """A conversation for supervised training: token ids [T] and a mask [T] that is True for the assistant's tokens.

        The mask covers what the model would sample: everything after the generation prompt, up to and including the
        end token. What follows the last assistant turn is left out.

        Raises:
            ValueError: The chat template rewrites earlier turns.
        """
        tokens: list[int] = []
        mask: list[bool] = []
        done = ""
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:i], tools, generate=True)
            after = self._render(messages[: i + 1], tools, generate=False)
            if not (before.startswith(done) and after.startswith(before)):
                raise ValueError("the chat template rewrites earlier turns of this conversation")
            stop = after.rindex(self.tokenizer.eos_token) + len(self.tokenizer.eos_token)
            for text, trained in ((before[len(done) :], False), (after[len(before) : stop], True)):
                ids = self._encode(text)
                tokens += ids
                mask += [trained] * len(ids)
            done = after[:stop]
        return tokens, mask

    def rewrites_history(self) -> str | None:
        """Why the chat template cannot be used append-only, or None if it can.

        A template that later drops or changes an assistant turn would show the model another history than the one that
        its tokens were sampled and trained in.
        """
        question: list[Message] = [{"role": "user", "content": "question"}]
        thought = f"<think>\n{_PROBE}\n</think>\n\n" if "think" in self.tokenizer.chat_template else _PROBE
        turn = _assistant(("tool",), thought)
        result: Message = {"role": "tool", "content": "result", "tool_call_id": "call0", "name": "tool"}
        prompt = self._render(question, (), generate=True)
        once = self._render([*question, turn], (), generate=False)
        twice = self._render([*question, turn, result, turn, result], (), generate=True)
        if self.tokenizer.eos_token not in once:
            return f"it does not end assistant turns with the tokenizer's end token {self.tokenizer.eos_token!r}"
        kept = once[: once.rindex(self.tokenizer.eos_token)]
        if not once.startswith(prompt) and not prompt.rstrip().endswith("<think>"):
            return "it renders a finished assistant turn without the generation prompt that started it"
        if not twice.startswith(kept):
            return "it changes an assistant turn once tool results follow"
        if twice.count(_PROBE) < 2:
            return "it drops the text or the thoughts of earlier turns"
        return None

    def appends_after(self, end_token_id: int) -> bool:
        """Whether `bridge` gives what follows a turn that ended with this token; else only `resume` does."""
        return self._appends

    @cached_property
    def _appends(self) -> bool:
        return self.rewrites_history() is None

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], generate: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            add_generation_prompt=generate,
            tokenize=False,
            **self.template_arguments,
        )
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self._marked_up.encode(text, add_special_tokens=False).ids)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        """A tool call in the form that the template renders as it was sampled.

        Arguments stay text unless the template would quote them; then they are parsed.
        """
        function = call["function"]
        if self._quotes_arguments is None:
            probe = {"function": {"name": "tool", "arguments": _ARGUMENTS}}
            turn: Message = {"role": "assistant", "content": "", "tool_calls": [probe]}
            head: Message = {"role": "user", "content": "question"}
            self._quotes_arguments = _ARGUMENTS not in self._render([head, turn], (), generate=False)
        if self._quotes_arguments and isinstance(function["arguments"], str):
            with contextlib.suppress(ValueError):  # invalid JSON is the model's mistake: show it unchanged
                function = {**function, "arguments": json.loads(function["arguments"])}
        return {**call, "function": function}

    def _split_bridge(self, names: tuple[str, ...]) -> list[list[int]]:
        """Token ids between the results: render placeholders for them and split there, into len(names) + 1 pieces."""
        head: list[Message] = [{"role": "user", "content": "question"}, _assistant(names, "")]
        results: list[Message] = [
            {"role": "tool", "tool_call_id": f"call{i}", "name": name, "content": _SLOT.format(i)}
            for i, name in enumerate(names)
        ]
        before = self._render(head, (), generate=False)
        text = self._render([*head, *results], (), generate=True)
        text = text[before.rindex(self.tokenizer.eos_token) + len(self.tokenizer.eos_token) :]
        pieces = []
        for i in range(len(names)):
            piece, found, text = text.partition(_SLOT.format(i))
            if not found:
                raise ValueError("the chat template omits tool messages or changes their order")
            pieces.append(self._encode(piece))
        return [*pieces, self._encode(text)]


def _assistant(names: Sequence[str], content: str) -> Message:
    calls = [
        {"id": f"call{i}", "type": "function", "function": {"name": name, "arguments": {}}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}
