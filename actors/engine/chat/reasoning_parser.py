"""Reasoning parser for served turns. As in rollouts, reasoning is all text up to the closing delimiter, `</think>`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.reasoning import ReasoningParserManager

from agent_rft.actors.engine.vllm_internals import reasoning_parser_base

NAME = "agent_rft_thoughts"


class DelimitedReasoningParser(reasoning_parser_base()):  # type: ignore[misc] # vLLM has no types
    """Reasoning parser for vLLM's serving layer.

    A turn has reasoning only if the turn, or the end of its prompt, opens reasoning with `<think>`. vLLM's own parsers
    would treat all text of other turns as reasoning.
    """

    _is_opened_by_prompt = False
    delimiters = ("<think>", "</think>")

    @property
    def start_token(self) -> str:
        return self.delimiters[0]

    @property
    def end_token(self) -> str:
        return self.delimiters[1]

    def adjust_request(self, request: Any) -> Any:
        """Keep special tokens in the sampled text, as in rollouts.

        The parser searches for the delimiters in the text, and they may be special tokens.
        """
        request.skip_special_tokens = False
        return request

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return False for any prompt, because the reasoning of earlier turns does not affect this turn."""
        return False

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        marks = [token for token in prompt_token_ids if token in (self.start_token_id, self.end_token_id)]
        self._is_opened_by_prompt = bool(marks) and marks[-1] == self.start_token_id

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        if self.end_token_id in delta_ids:
            return True
        return not self._is_opened_by_prompt and self.start_token_id not in input_ids

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
        if self._is_opened_by_prompt:  # parse as if the opening delimiter had been sampled
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


def register_parser(tags: tuple[str, str]) -> str:
    """Register a reasoning parser for these delimiters in vLLM, and return the name under which it is registered."""

    class RegisteredParser(DelimitedReasoningParser):
        delimiters = tags

    name = f"{NAME}:{' '.join(tags)}"
    ReasoningParserManager.register_module(name, module=RegisteredParser)
    return name
