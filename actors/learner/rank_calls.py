"""Calls to all learner ranks: waiting for results, combining errors, and time limits of training steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from agent_rft.actors.runtime.actor_calls import find_start_error
from agent_rft.errors import LearnerFailed, RftError

GRACE_S = 10.0
"""Seconds to wait for the errors of other ranks after a first error."""
STEP_LIMIT_FACTOR = 5.0
"""Time limit per token, as a multiple of the measured mean time."""
FIRST_STEP_LIMIT_FACTOR = 20.0
"""Time limit per token until a first step has been measured, as a multiple of `assumed_token_s` in `StepLimit`."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Error of a call that failed in at least one rank. It is fatal unless all ranks raised an expected error."""

    error: RftError
    is_fatal: bool


async def wait_for_results(
    what: str, refs: Sequence[Any], timeout_s: float, kill_reasons: Mapping[int, str]
) -> list[Any] | CallFailure:
    """Return the results of the call `what` from all ranks, or a failure if a rank fails or exceeds the time limit.

    `kill_reasons` maps each rank that the watchdog killed to the reason.
    """
    tasks = [asyncio.ensure_future(_result_or_raise(ref)) for ref in refs]
    try:
        done, late = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        if late and any(task.exception() for task in done):
            _, late = await asyncio.wait(late, timeout=GRACE_S)
        errors = {rank: task.exception() for rank, task in enumerate(tasks) if task not in late}
    finally:
        for task in tasks:
            task.cancel()
    failed = {rank: error for rank, error in errors.items() if error is not None}
    if not late and not failed:
        return [task.result() for task in tasks]
    if failed:
        failure = _combine_errors(what, failed, len(tasks), kill_reasons)
    else:
        ranks = [rank for rank, task in enumerate(tasks) if task in late]
        text = f"learner ranks {ranks} of {len(tasks)} did not finish {what} in {timeout_s:g} s"
        failure = LearnerFailed(text, ranks=ranks)
    return CallFailure(failure, bool(late) or not all(isinstance(error, RftError) for error in errors.values()))


async def _result_or_raise(ref: Any) -> Any:
    outcome = await ref
    if isinstance(outcome, RftError):
        raise outcome
    return outcome


def _combine_errors(
    what: str, failed: Mapping[int, BaseException], num_ranks: int, kill_reasons: Mapping[int, str]
) -> RftError:
    """Return one error for all failed ranks."""
    for rank, error in failed.items():
        expected_error = error if isinstance(error, RftError) else find_start_error(error, f"learner rank {rank}")
        if expected_error is not None:
            return expected_error
    ranks = sorted(failed, key=lambda rank: not isinstance(failed[rank], RayActorError))
    described = [(rank, kill_reasons.get(rank) or _describe_loss(failed[rank])) for rank in ranks]
    failed_in = [(f"learner rank {rank} of {num_ranks} failed in {what}", why, failed[rank]) for rank, why in described]
    message = "; ".join(f"{who}: {why or _quote_error(error)}" for who, why, error in failed_in)
    public = "; ".join(f"{who}: {why}" if why else who for who, why, _ in failed_in)
    return LearnerFailed(message, ranks=ranks, public_message=public)


def _describe_loss(error: BaseException) -> str:
    lost = isinstance(error, RayActorError)
    return "its process was lost (killed, out of memory, or its node is gone)" if lost else ""


def _quote_error(error: BaseException) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}"


class StepLimit:
    """Time limit of a training step.

    The limit is computed from the mean time per token of earlier steps. The first step uses `assumed_token_s` instead.

    Args:
        min_s: Minimum time limit of a step, in seconds.
        assumed_token_s: Assumed seconds per token of a step, from the step plan. 0 if unknown.
    """

    def __init__(self, min_s: float, assumed_token_s: float) -> None:
        self._min_s = min_s
        self._assumed_token_s = assumed_token_s
        self._seconds = self._num_tokens = 0.0

    def limit_s(self, num_tokens: int) -> float:
        """Return the time limit, in seconds, of a step with this many tokens."""
        if self._num_tokens:
            token_s = STEP_LIMIT_FACTOR * self._seconds / self._num_tokens
        else:
            token_s = FIRST_STEP_LIMIT_FACTOR * self._assumed_token_s
        return max(self._min_s, num_tokens * token_s)

    def record(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of a finished step."""
        self._num_tokens += num_tokens
        self._seconds += seconds
