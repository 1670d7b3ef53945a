"""What a rollout consists of while it runs: its turns, its segments of tokens, and the same as messages.

Invariant: the newest segment is exactly what the engine has seen, so the next turn is sampled after it. A template that
only appends fills one segment. One that rewrites what was there begins another, whose prompt is masked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.chat.parsing import ParsedTurn, TurnParser
from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.chat.renderer import Renderer
from agent_rft.types import Message, Segment, ToolSchema, Turn


def read_turn(
    renderer: Renderer, parse: TurnParser, token_ids: Sequence[int], tools: Sequence[ToolSchema]
) -> tuple[ParsedTurn, int]:
    """What the sampled tokens of a turn say, and how many of them begin it as a thought between marks."""
    length = renderer.thought_length(token_ids)
    parsed = parse(renderer.text(token_ids[length:]), tools)
    return (replace(parsed, thought=renderer.thought_text(token_ids[:length])) if length else parsed), length


@dataclass(slots=True)
class Trajectory:
    """A rollout of some `messages`, whose tool results have the tokens `results`, from its first `prompt` on."""

    prompt: InitVar[list[int]]
    messages: list[Message]
    results: list[list[int]]
    turns: list[Turn] = field(default_factory=list)
    num_sampled: int = 0
    reasoning_tokens: int = 0
    _segments: list[_GrowingSegment] = field(init=False)

    def __post_init__(self, prompt: list[int]) -> None:
        self._segments = [_GrowingSegment(prompt)]

    @property
    def token_ids(self) -> list[int]:
        """What the engine has seen, or sees next."""
        return self._segments[-1].token_ids

    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment.finished() for segment in self._segments)

    @property
    def steps(self) -> int:
        return len(self.turns) + self.num_calls

    @property
    def num_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    def add_completion(self, completion: Completion) -> tuple[int, int, int]:
        """Add the tokens that the engine sampled; returns their segment, start and stop there."""
        start = len(self.token_ids)
        self._segments[-1].add_sampled(completion)
        self.num_sampled += len(completion.token_ids)
        return len(self._segments) - 1, start, len(self.token_ids)

    def add_turn(self, turn: Turn, parsed: ParsedTurn, result_tokens: Sequence[list[int]]) -> None:
        """Add a turn with its results, as it was parsed.

        One that could not be read stays the text that it was. What the model is told about it comes from the user: some
        templates refuse the result of a call that is not there.
        """
        calls = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in turn.calls
        ]
        said: Message = {"role": "assistant", "content": turn.text}
        if not parsed.malformed:
            said = {"role": "assistant", "content": parsed.content, "tool_calls": calls}
            if parsed.thought:
                said["reasoning_content"] = parsed.thought
        self.messages.append(said)
        for call, result, tokens in zip(turn.calls, turn.results, result_tokens, strict=True):
            told: Message = {"role": "user", "content": result.output}
            if result.error != "malformed_call":
                told |= {"role": "tool", "tool_call_id": call.call_id, "name": call.name}
                self.results.append(tokens)
            self.messages.append(told)
        self.turns.append(turn)

    def add_environment(self, token_ids: Sequence[int]) -> None:
        """Add tokens that the engine did not sample to what it has seen."""
        self._segments[-1].add_environment(token_ids)

    def go_on(self, prompt: list[int]) -> None:
        """Continue with a prompt of all messages: in this segment if the prompt starts with it, else in a new one."""
        num_seen = len(self.token_ids)
        if prompt[:num_seen] == self.token_ids:
            self.add_environment(prompt[num_seen:])
        else:
            self._segments.append(_GrowingSegment(prompt))


@dataclass(slots=True)
class _GrowingSegment:
    """The arrays of a segment, always of equal length."""

    token_ids: list[int]
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    experts: list[NDArray[np.integer[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._mask_out(len(self.token_ids))

    def _mask_out(self, count: int) -> None:
        self.loss_mask += [False] * count
        self.logprobs += [0.0] * count
        self.versions += [-1] * count

    def add_environment(self, token_ids: Sequence[int]) -> None:
        self.token_ids += token_ids
        self._mask_out(len(token_ids))

    def add_sampled(self, completion: Completion) -> None:
        self.token_ids += completion.token_ids
        self.loss_mask += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs.tolist()
        self.versions += completion.versions.tolist()
        if completion.experts is not None:  # what earlier turns computed is known from them
            self.experts.append(completion.experts[sum(map(len, self.experts)) :].copy())

    def finished(self) -> Segment:
        experts = None
        if self.experts:
            known = np.concatenate(self.experts)
            experts = np.concatenate([known, np.repeat(known[-1:], len(self.token_ids) - len(known), axis=0)])
        return Segment(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            loss_mask=np.array(self.loss_mask, dtype=np.bool_),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            experts=experts,
        )
