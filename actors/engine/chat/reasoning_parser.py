"""Reasoning parser for served turns that matches the episode loop: reasoning is everything up to `</think>`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.reasoning import ReasoningParserManager

from agent_rft.actors.engine.vllm_internals import reasoning_parser_base

NAME = "agent_rft_thoughts"


class DelimitedReasoningParser(reasoning_parser_base()):  # type: ignore[misc] # vLLM has no types
    """The reasoning parser for vLLM's serving layer.

    A turn has no reasoning unless it starts with `<think>`, in its text or at the end of its prompt. vLLM's own parsers
    treat all of such a turn as reasoning.
    """

    _is_open = False
    delimiters = ("<think>", "</think>")

    @property
    def start_token(self) -> str:
        return self.delimiters[0]

    @property
    def end_token(self) -> str:
        return self.delimiters[1]

    def adjust_request(self, request: Any) -> Any:
        """Keep special tokens in the text, as rollouts do: delimiters may be special, and are searched in the text."""
        request.skip_special_tokens = False
        return request

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return False for any prompt: the reasoning of earlier turns does not affect this turn."""
        return False

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        marks = [token for token in prompt_token_ids if token in (self.start_token_id, self.end_token_id)]
        self._is_open = bool(marks) and marks[-1] == self.start_token_id

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        if self.end_token_id in delta_ids:
            return True
        return not self._is_open and self.start_token_id not in input_ids

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
        if self._is_open:  # parse as if the opening delimiter had been sampled
            previous_token_ids = [self.start_token_id, *previous_token_ids]
        return super().extract_reasoning_streaming(
            previous_text, current_text, delta_text, previous_token_ids, current_token_ids, delta_token_ids
        )

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        reasoning, closed, content = model_output.partition(self.end_token)
        if closed:
            return reasoning.lstrip().removeprefix(self.start_token), content or None
        if model_output.lstrip().startswith(self.start_token):  # cut off within the reasoning
            return model_output.lstrip().removeprefix(self.start_token), None
        return None, model_output

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return token_ids.index(self.end_token_id) + 1 if self.end_token_id in token_ids else 0


def register_parser(marks: tuple[str, str]) -> str:
    """Register the parser of reasoning between these delimiters in vLLM, and return its name."""
    name = f"{NAME}:{' '.join(marks)}"
    parser = type(DelimitedReasoningParser.__name__, (DelimitedReasoningParser,), {"marks": marks})
    ReasoningParserManager.register_module(name, module=parser)
    return name
