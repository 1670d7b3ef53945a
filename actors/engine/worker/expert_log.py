"""Record of the experts that a mixture-of-experts model chose for each token, for engines on CPUs.

On GPUs, vLLM reports the experts. The record contains the experts of each slot in the key-value cache. If a request
reuses cached prompt tokens of an earlier request, the experts of these tokens are therefore available too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agent_rft.actors.engine.vllm_internals import find_complete_cache, iter_running_requests, watch_routers

Choices = NDArray[np.integer[Any]]
"""[N, L, k]: ids of the k experts that each of L layers chose for each of N tokens; 0 in layers without experts."""
MAX_EXPERTS_IN_BYTE = 256


class ExpertLog:
    """Log of the experts that a vLLM model runner chose, for the `max_requests` most recent requests.

    `k` is the number of experts that a layer chooses for a token.

    Raises:
        ValueError: vLLM cannot watch the model's routers, or no layer of the model attends to all tokens.
    """

    def __init__(self, runner: Any, num_layers: int, num_experts: int, k: int, max_requests: int) -> None:
        self._runner = runner
        self._max_requests = max_requests
        self._layers: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self._dtype: type[np.integer[Any]] = np.uint8 if num_experts <= MAX_EXPERTS_IN_BYTE else np.uint16
        cache = find_complete_cache(runner)
        if cache is None:
            raise ValueError("no layer attends to all tokens")
        self._cache, self._block_tokens, num_blocks = cache
        self._by_slot = np.zeros((num_blocks * self._block_tokens, num_layers, k), self._dtype)
        self._requests: dict[str, list[Choices]] = {}
        watch_routers(runner.model, self)
        runner.execute_model = partial(self._execute_and_record, runner.execute_model)

    def capture(self, layer: int, experts: Tensor) -> None:
        """Record the expert ids [n, k] for the next n tokens of the step. Called by the router of each layer."""
        self._layers[layer].append(experts)

    def take(self, request_id: str) -> Choices | None:
        """Return and delete the experts of all tokens of a request except the last; None for an unknown request.

        The last token has no experts, because it was sampled but never computed.
        """
        # vLLM appends a suffix to the ids that it receives.
        found = [name for name in self._requests if name == request_id or name.startswith(f"{request_id}-")]
        return np.concatenate(self._requests.pop(found[0])) if found else None

    def _execute_and_record(self, execute: Callable[..., Any], scheduled: Any, *arguments: Any, **named: Any) -> Any:
        for layer in self._layers:
            layer.clear()
        result = execute(scheduled, *arguments, **named)
        if scheduled.total_num_scheduled_tokens and any(self._layers):
            self._record_step(scheduled)
        return result

    def _record_step(self, scheduled: Any) -> None:
        step = np.zeros((scheduled.total_num_scheduled_tokens, *self._by_slot.shape[1:]), self._dtype)
        for number, parts in enumerate(self._layers):
            if parts:
                step[:, number] = np.concatenate([part.numpy() for part in parts])[: len(step)]
        ran, begin = [], 0
        for request_id, count, start, blocks in iter_running_requests(self._runner, scheduled, self._cache):
            chosen = step[begin : begin + count].copy()
            slots = self._cache_slots(blocks, start + count)
            self._by_slot[slots[start:]] = chosen
            ran.append((request_id, slots[:start], chosen))
            begin += count
        for (
            request_id,
            before,
            chosen,
        ) in ran:  # after all writes: a request may reuse tokens that another request computes in this step
            known = self._requests.pop(request_id, [])  # moves the request to the end
            if sum(map(len, known)) != len(before):  # new, or restarted after its cache was evicted
                known = [self._by_slot[before]]
            self._requests[request_id] = [*known, chosen]
        for old in list(self._requests)[: max(0, len(self._requests) - self._max_requests)]:
            del self._requests[old]

    def _cache_slots(self, blocks: NDArray[np.int32], num_tokens: int) -> NDArray[np.int64]:
        """Return the cache slots of the first `num_tokens` tokens of a request with these cache blocks."""
        at = np.arange(num_tokens)
        slots: NDArray[np.int64] = blocks[at // self._block_tokens] * self._block_tokens + at % self._block_tokens
        return slots
