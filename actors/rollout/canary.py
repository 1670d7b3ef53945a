"""The canary: a token sequence on which each engine is compared with the learner after a weight update."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.runtime.actor_calls import call_actor
from agent_rft.errors import EngineFailed
from agent_rft.types import Rollout

CANARY_LIMITS = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean absolute difference of log-probabilities, in nats, at which an engine is fenced (replaced). Keyed by dtype.

Equal weights give a difference of about 1e-6 in float32 and 0.02 in bfloat16. In a test, one stale tensor after one
small update gave 3e-3. This is below the limit for bfloat16, where only the checksums detect such a tensor."""
CANARY_TOKENS = 512
CANARY_TIMEOUT_S = 120.0
"""Timeout of the canary request.

The timeout is long because a busy engine queues the request, and the computation then takes seconds."""

ComputeLogprobs = Callable[[NDArray[np.int32]], Awaitable[NDArray[np.float32]]]
"""Function that returns the learner's log-probabilities [T-1] of a token sequence [T] at temperature 1."""


class Canary:
    """Check that engines and learner compute similar log-probabilities for the canary sequence.

    An engine is accepted if its mean absolute difference from the learner is below `limit`, in nats.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._logprobs: ComputeLogprobs | None = None
        self._token_ids: NDArray[np.int32] | None = None

    def set_learner_logprobs(self, logprobs: ComputeLogprobs) -> None:
        """Set the function that returns the learner's log-probabilities."""
        self._logprobs = logprobs

    def observe(self, rollout: Rollout) -> None:
        """Use the tokens of the first observed rollout as the canary sequence; ignore later rollouts."""
        if self._token_ids is None:
            self._token_ids = rollout.segments[0].token_ids[:CANARY_TOKENS]

    async def compute_learner_logprobs(self) -> NDArray[np.float32] | None:
        """Return the learner's log-probabilities [T-1] of the canary sequence [T]; None before the first rollout."""
        if self._token_ids is None or self._logprobs is None:
            return None
        return await self._logprobs(self._token_ids)

    async def measure_gap(self, worker: Any, name: str, expected: NDArray[np.float32]) -> float:
        """Return the mean absolute difference, in nats, between an engine's log-probabilities and `expected` [T-1].

        Returns infinity if the engine fails. `name` is the engine's name.
        """
        assert self._token_ids is not None  # `expected` was computed from it
        try:
            found = await call_actor(
                worker.canary_logprobs.remote(self._token_ids.tolist()), name, EngineFailed, CANARY_TIMEOUT_S
            )
        except EngineFailed:
            return math.inf
        return float(np.abs(np.asarray(found) - expected).mean())

    def accepts(self, gap: float) -> bool:
        """Return whether an engine may sample if `measure_gap` returned `gap` for the engine. NaN is not accepted."""
        return gap < self._limit
