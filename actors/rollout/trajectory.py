"""State of a running rollout: its turns, token segments and messages.

Invariant: the newest segment contains exactly the tokens that the engine has seen, and the next turn is sampled after
these tokens. If the chat template only appends text, the rollout has a single segment. Whenever the template changes
earlier text, a new segment begins. The new segment starts with the full prompt of the next turn, which is masked (not
trained).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn, TurnParser
from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.chat.renderer import Renderer
from agent_rft.types import Message, Segment, ToolSchema, Turn


def parse_turn(
    renderer: Renderer, parse: TurnParser, token_ids: Sequence[int], tools: Sequence[ToolSchema]
) -> tuple[ParsedTurn, int]:
    """Parse the sampled tokens of a turn; return the turn and the number of its reasoning tokens."""
    length = renderer.count_reasoning(token_ids)
    parsed = parse(renderer.decode_turn(token_ids[length:]), tools)
    return (replace(parsed, reasoning=renderer.decode_reasoning(token_ids[:length])) if length else parsed), length


@dataclass(slots=True)
class Trajectory:
    """A rollout in progress. `prompt` contains the tokens of the first prompt, before any turn.

    `messages` is the conversation. `result_tokens` has the tokens of each tool result in the conversation.
    """

    prompt: InitVar[list[int]]
    messages: list[Message]
    result_tokens: list[list[int]]
    turns: list[Turn] = field(default_factory=list)
    num_sampled: int = 0
    reasoning_tokens: int = 0
    _segments: list[_SegmentBuilder] = field(init=False)

    def __post_init__(self, prompt: list[int]) -> None:
        self._segments = [_SegmentBuilder(prompt)]

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the newest segment, which the engine has seen or will see in its next request."""
        return self._segments[-1].token_ids

    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment.build() for segment in self._segments)

    @property
    def num_steps(self) -> int:
        return len(self.turns) + self.num_calls

    @property
    def num_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    def add_completion(self, completion: Completion) -> tuple[int, int, int]:
        """Add sampled tokens; return the index of the segment, and the start and stop of the tokens in the segment."""
        start = len(self.token_ids)
        self._segments[-1].add_sampled(completion)
        self.num_sampled += len(completion.token_ids)
        return len(self._segments) - 1, start, len(self.token_ids)

    def add_turn(self, turn: Turn, parsed: ParsedTurn, result_tokens: Sequence[list[int]]) -> None:
        """Add a parsed turn with its results.

        A turn with a malformed call is added as plain text, and the error becomes a user message instead of a tool
        result: some chat templates refuse a tool result without a call.
        """
        calls = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in turn.calls
        ]
        assistant_message: Message = {"role": "assistant", "content": turn.text}
        if not parsed.is_malformed:
            assistant_message = {"role": "assistant", "content": parsed.content, "tool_calls": calls}
            if parsed.reasoning:
                assistant_message["reasoning_content"] = parsed.reasoning
        self.messages.append(assistant_message)
        for call, result, tokens in zip(turn.calls, turn.results, result_tokens, strict=True):
            result_message: Message = {"role": "user", "content": result.output}
            if result.error != "malformed_call":
                result_message |= {"role": "tool", "tool_call_id": call.call_id, "name": call.name}
                self.result_tokens.append(tokens)
            self.messages.append(result_message)
        self.turns.append(turn)

    def add_unsampled_tokens(self, token_ids: Sequence[int]) -> None:
        """Add tokens that the engine did not sample, such as tool results."""
        self._segments[-1].add_environment(token_ids)

    def continue_with(self, prompt: list[int]) -> None:
        """Continue the rollout from `prompt`, the rendered messages before the next turn.

        If `prompt` starts with the tokens of the current segment, the rest of `prompt` is added to this segment.
        Otherwise, a new segment begins with `prompt`.
        """
        num_seen = len(self.token_ids)
        if prompt[:num_seen] == self.token_ids:
            self.add_unsampled_tokens(prompt[num_seen:])
        else:
            self._segments.append(_SegmentBuilder(prompt))


@dataclass(slots=True)
class _SegmentBuilder:
    """A segment under construction. All lists except `experts` always have equal length."""

    token_ids: list[int]
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    experts: list[NDArray[np.integer[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._add_masked(len(self.token_ids))

    def _add_masked(self, count: int) -> None:
        self.loss_mask += [False] * count
        self.logprobs += [0.0] * count
        self.versions += [-1] * count

    def add_environment(self, token_ids: Sequence[int]) -> None:
        self.token_ids += token_ids
        self._add_masked(len(token_ids))

    def add_sampled(self, completion: Completion) -> None:
        self.token_ids += completion.token_ids
        self.loss_mask += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs.tolist()
        self.versions += completion.versions.tolist()
        if completion.experts is not None:  # earlier turns already reported the experts of their tokens
            self.experts.append(completion.experts[sum(map(len, self.experts)) :].copy())

    def build(self) -> Segment:
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
