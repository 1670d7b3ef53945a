"""The canary: a token sequence on which each engine is compared with the learner after a weight update."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.vllm_engine import PromptScores
from agent_rft.actors.runtime.actor_calls import call_actor
from agent_rft.errors import EngineFailed
from agent_rft.types import Rollout

CANARY_LIMITS = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean absolute difference of log-probabilities, in nats, at which an engine is fenced (replaced). Keyed by dtype.

Equal weights give a difference of about 1e-6 in float32 and 0.02 in bfloat16. In a test, one stale tensor after one
small update gave 3e-3. This is below the limit for bfloat16, where only the checksums detect such a tensor."""
MAX_MIXTURE_LIMIT = 0.3
"""Maximum limit for a mixture of experts, in nats, whatever its first gap is."""
FIRST_GAP_FACTOR = 2.0
"""Ratio of the limit for a mixture of experts to its first gap; leaves room for the changes of the gap in training.

A random mixture with 8 of 64 experts in 8 layers gave 0.098 in bfloat16, and 0.027 with replayed experts."""
CANARY_TOKENS = 512
CANARY_TIMEOUT_S = 120.0
"""Timeout of the canary request.

The timeout is long because a busy engine queues the request, and the computation then takes seconds."""

ComputeLogprobs = Callable[[NDArray[np.int32], NDArray[np.integer[Any]] | None], Awaitable[NDArray[np.float32]]]
"""Function that returns the learner's log-probabilities [T-1] of a token sequence [T] at temperature 1.

The second argument is the experts [T, L, k] to use, as in `PromptScores`; None: the learner chooses them."""


class Canary:
    """Check that engines and learner compute similar log-probabilities for the canary sequence.

    An engine is accepted if its mean absolute difference from the learner (its gap) is below a limit, in nats. For
    dense models, this is `limit`. In a mixture of experts (`is_mixture`), engine and learner round differently and
    therefore choose different experts for some tokens. The effect of these choices depends on the model. The limit is
    then FIRST_GAP_FACTOR times the smallest gap after the first update, at least `limit`, at most MAX_MIXTURE_LIMIT.

    If an engine reports its experts, the learner computes with them (router replay), so that different choices
    of experts do not count. Engines report experts only with the job's `router_replay`.
    """

    def __init__(self, limit: float, *, is_mixture: bool = False) -> None:
        self.limit = limit
        self._must_learn_limit = is_mixture
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
        return await self._logprobs(self._token_ids, None)

    async def measure_gaps(
        self, engines: Sequence[tuple[Any, str]], expected: NDArray[np.float32], *, can_replay: bool
    ) -> list[float]:
        """Return the gap of each engine, given as its worker and name; infinity if the engine fails.

        `expected` [T-1] are the learner's log-probabilities with the experts that the learner chose. With `can_replay`,
        the learner computes them again with the experts of each engine that reports experts.
        """
        assert self._token_ids is not None and self._logprobs is not None  # `expected` was computed with them
        scores = await asyncio.gather(*(self._score(worker, name) for worker, name in engines))
        replayed: dict[bytes, NDArray[np.float32]] = {}  # most engines choose the same experts
        gaps = []
        for found in scores:
            if found is None:
                gaps.append(math.inf)
                continue
            learner = expected
            if found.experts is not None and can_replay:
                key = found.experts.tobytes()
                if key not in replayed:
                    replayed[key] = await self._logprobs(self._token_ids, found.experts)
                learner = replayed[key]
            gaps.append(float(np.abs(found.logprobs - learner).mean()))
        return gaps

    async def _score(self, worker: Any, name: str) -> PromptScores | None:
        """Return the canary sequence's log-probabilities on an engine; None if the engine fails."""
        assert self._token_ids is not None
        try:
            scores: PromptScores = await call_actor(
                worker.score_prompt.remote(self._token_ids.tolist()), name, EngineFailed, CANARY_TIMEOUT_S
            )
        except EngineFailed:
            return None
        return scores

    def accept(self, gaps: Sequence[float]) -> list[bool]:
        """Return for each gap of `measure_gaps` whether the engine may sample. NaN and infinity are not accepted.

        For a mixture of experts, the first accepted gaps determine the limit.
        """
        finite = [gap for gap in gaps if math.isfinite(gap)]
        if self._must_learn_limit and finite and min(finite) < MAX_MIXTURE_LIMIT:
            self.limit = min(MAX_MIXTURE_LIMIT, max(self.limit, FIRST_GAP_FACTOR * min(finite)))
            self._must_learn_limit = False
        return [gap < self.limit for gap in gaps]
