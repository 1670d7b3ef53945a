"""Conversion of conversations to samples for supervised training: token ids, and a mask of trained tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_rft.chat.renderer import Renderer
from agent_rft.types import Message, ToolSchema


class UnsplittableConversation(ValueError):
    """Error: the chat template renders an assistant's turn in a way that makes training on the turn impossible."""


@dataclass(frozen=True, slots=True)
class SupervisedSample:
    """One training sequence: token ids [T], and a mask [T] that is True for tokens to train on."""

    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], trained: bool) -> None:
        self.token_ids.extend(token_ids)
        self.mask.extend([trained] * len(token_ids))


ConversationSampler = Callable[[Sequence[Message], Sequence[ToolSchema]], list[SupervisedSample]]
"""Function that converts a conversation to training samples: `split_conversation` without its argument `renderer`."""


def split_conversation(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema]
) -> list[SupervisedSample]:
    """Convert a conversation to training samples.

    The conversation is one sample if each turn only adds text to the rendered text. If the template changes the text of
    earlier turns, a new sample starts. For example, some templates remove the reasoning of earlier turns.

    The mask covers the text that the model would sample: everything after the generation prompt, up to and including
    the stop token. Assistant messages with `weight` 0 are not covered. Messages after the last trained turn are
    omitted.

    Raises:
        UnsplittableConversation: The template does not render an assistant's turn after the generation prompt.
    """
    samples: list[SupervisedSample] = []
    done = ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        before = renderer.render_text(messages[:i], tools, add_generation_prompt=True)
        prompt, turn = _split_prompt_and_turn(
            renderer, before, renderer.render_text(messages[: i + 1], tools, add_generation_prompt=False), message
        )
        if not samples or not prompt.startswith(done):
            samples.append(SupervisedSample())
            done = ""
        samples[-1].add(renderer.encode(prompt[len(done) :]), trained=False)
        samples[-1].add(renderer.encode(turn), trained=True)
        done = prompt + turn
    return samples


def _split_prompt_and_turn(renderer: Renderer, before: str, after: str, message: Message) -> tuple[str, str]:
    """Return the prompt, which ends with the generation prompt, and the turn that follows it, up to its stop token.

    If the generation prompt opens reasoning but the turn has no reasoning, the closing delimiter is added to the turn.
    """
    opened, marks = "", renderer.reasoning_delimiters
    if not after.startswith(before):
        opened = before[before.rfind(marks[0]) :] if marks[0] in before else ""
        if not opened or marks[1] in opened or not after.startswith(before.removesuffix(opened)):
            raise UnsplittableConversation(
                "the chat template renders an assistant's turn that does not start with the generation prompt"
            )
    turn_text = after[len(before) - len(opened) :]
    ends = tuple(renderer.stop_tokens.values())
    stops = [turn_text.rfind(end) + len(end) for end in ends if end in turn_text]
    turn_text = (
        _strip_second_stop(turn_text[: max(stops)], ends)
        if stops
        else turn_text.rstrip() + renderer.stop_token_after(message)
    )
    if opened:
        turn_text = (
            turn_text.removeprefix(marks[0]) if turn_text.startswith(marks[0]) else f"\n{marks[1]}\n\n{turn_text}"
        )
    return before, turn_text


def _strip_second_stop(turn_text: str, ends: tuple[str, ...]) -> str:
    """Return the turn with only one stop token; some templates write a second one at the end of a conversation."""
    shorter = {turn_text.removesuffix(end).rstrip() for end in ends if turn_text.endswith(end)}
    return next((text for text in shorter if text.endswith(ends)), turn_text)
