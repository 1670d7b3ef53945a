"""How long a learner may take for a step: in proportion to its tokens, so that a long step is not taken for a hang."""

from __future__ import annotations

FACTOR = 5.0
"""How many times longer than measured a token may take: longer sequences have more attention, nodes have other work."""
FIRST_FACTOR = 20.0
"""How many times longer than assumed, before a step was measured."""


class StepLimit:
    """Limits from the mean rate of the steps so far, or from an assumed rate before the first one.

    Args:
        min_s: Seconds that any step may take.
        assumed_token_s: Seconds per token of a step, as the plan assumes; 0: unknown.
    """

    def __init__(self, min_s: float, assumed_token_s: float) -> None:
        self._min_s = min_s
        self._assumed_token_s = assumed_token_s
        self._seconds = self._num_tokens = 0.0

    def of(self, num_tokens: int) -> float:
        """Return the seconds that a step with so many tokens may take."""
        if self._num_tokens:
            token_s = FACTOR * self._seconds / self._num_tokens
        else:
            token_s = FIRST_FACTOR * self._assumed_token_s
        return max(self._min_s, num_tokens * token_s)

    def measured(self, num_tokens: int, seconds: float) -> None:
        """Count a step that has ended."""
        self._num_tokens += num_tokens
        self._seconds += seconds
