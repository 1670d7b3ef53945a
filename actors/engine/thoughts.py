"""Thoughts in a served turn, cut off as the episode loop cuts them: all up to `</think>`, where there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

from trainer.data.chat import THOUGHT_MARKS

NAME = "agent_rft_thoughts"


class ThoughtParser(BaseThinkingReasoningParser):  # type: ignore[misc] # vLLM has no types
    """For vLLM's serving layer. A turn without `<think>` at its start (and without one at the end of its prompt) is no
    thought; vLLM's own parsers take all of such a turn for one.
    """

    _opened = False

    @property
    def start_token(self) -> str:
        return THOUGHT_MARKS[0]

    @property
    def end_token(self) -> str:
        return THOUGHT_MARKS[1]

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Of a prompt. Thoughts of earlier turns say nothing about this one."""
        return False

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        marks = [token for token in prompt_token_ids if token in (self.start_token_id, self.end_token_id)]
        self._opened = bool(marks) and marks[-1] == self.start_token_id

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        if self.end_token_id in delta_ids:
            return True
        return not self._opened and self.start_token_id not in input_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        if self.end_token_id not in input_ids:
            return input_ids
        return input_ids[input_ids.index(self.end_token_id) + 1 :]

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> Any:
        if self._opened:  # read on as if the mark had been sampled
            previous_token_ids = [self.start_token_id, *previous_token_ids]
        return super().extract_reasoning_streaming(
            previous_text, current_text, delta_text, previous_token_ids, current_token_ids, delta_token_ids
        )

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        thought, closed, content = model_output.partition(self.end_token)
        if closed:
            return thought.lstrip().removeprefix(self.start_token), content or None
        if model_output.lstrip().startswith(self.start_token):  # cut off in its thoughts
            return model_output.lstrip().removeprefix(self.start_token), None
        return None, model_output

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return token_ids.index(self.end_token_id) + 1 if self.end_token_id in token_ids else 0


def register() -> None:
    """Make the parser known to vLLM in this process."""
    ReasoningParserManager.register_module(NAME, module=ThoughtParser)
