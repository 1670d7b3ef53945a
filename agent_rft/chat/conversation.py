"""Whole conversations as supervised samples: token ids and which of them the assistant would sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_rft.chat.renderer import Renderer
from agent_rft.types import Message, ToolSchema


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids [T], and a mask [T] that is True for the tokens that are trained."""

    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], trained: bool) -> None:
        self.token_ids.extend(token_ids)
        self.mask.extend([trained] * len(token_ids))


Samples = Callable[[Sequence[Message], Sequence[ToolSchema]], list[Sample]]
"""The samples of a conversation: `samples_of` with a renderer."""


def samples_of(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Sample]:
    """A conversation for supervised training: one sample as long as the template only appends, else one a turn.

    The mask covers what the model would sample: everything after the generation prompt, up to and including the end
    token. What follows the last trained turn is left out, and so are turns whose message has `weight` 0.

    Raises:
        ValueError: A turn is not in what the template renders.
    """
    samples: list[Sample] = []
    done = ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        before = renderer.rendered(messages[:i], tools, generate=True)
        prompt, turn = _turn(renderer, before, renderer.rendered(messages[: i + 1], tools, generate=False), message)
        if not samples or not prompt.startswith(done):
            samples.append(Sample())
            done = ""
        samples[-1].add(renderer.encode(prompt[len(done) :]), trained=False)
        samples[-1].add(renderer.encode(turn), trained=True)
        done = prompt + turn
    return samples


def _turn(renderer: Renderer, before: str, after: str, message: Message) -> tuple[str, str]:
    """The generation prompt with all before it, and the turn that follows it, up to its end token.

    Where the template writes a turn without the thought that the generation prompt has opened, the turn closes it.
    """
    opened, marks = "", renderer.mark_texts
    if not after.startswith(before):
        opened = before[before.rfind(marks[0]) :] if marks[0] in before else ""
        if not opened or marks[1] in opened or not after.startswith(before.removesuffix(opened)):
            raise ValueError("the chat template does not start an assistant's turn with its generation prompt")
    said = after[len(before) - len(opened) :]
    ends = tuple(renderer.end_tokens.values())
    stops = [said.rfind(end) + len(end) for end in ends if end in said]
    said = _first_end(said[: max(stops)], ends) if stops else said.rstrip() + renderer.end_of(message)
    if opened:
        said = said.removeprefix(marks[0]) if said.startswith(marks[0]) else f"\n{marks[1]}\n\n{said}"
    return before, said


def _first_end(said: str, ends: tuple[str, ...]) -> str:
    """The turn without a second end token, which some templates write at the end of each conversation."""
    shorter = {said.removesuffix(end).rstrip() for end in ends if said.endswith(end)}
    return next((text for text in shorter if text.endswith(ends)), said)
