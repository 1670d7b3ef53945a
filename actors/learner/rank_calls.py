"""Calls of the learner ranks: the results of all ranks or one error, and how long a step may take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from agent_rft.actors.runtime.calls import cannot_start
from agent_rft.errors import LearnerFailed, RftError

GRACE_S = 10.0
"""How long the other ranks may take to fail after the first: the first error is often only that a peer is gone."""
FACTOR = 5.0
"""How many times longer than measured a token may take: longer sequences have more attention, nodes have other work."""
FIRST_FACTOR = 20.0
"""How many times longer than assumed, before a step was measured."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The error of a call that failed in some ranks; `is_fatal` unless all ranks raised an expected error."""

    error: RftError
    is_fatal: bool


async def call_results(
    what: str, refs: Sequence[Any], timeout_s: float, given_up: Mapping[int, str]
) -> list[Any] | CallFailure:
    """Return the results of all ranks, or the failure if one of them fails or is late.

    `given_up` are the reasons why ranks were killed.
    """
    tasks = [asyncio.ensure_future(_outcome(ref)) for ref in refs]
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
        failure = _why(what, failed, len(tasks), given_up)
    else:
        ranks = [rank for rank, task in enumerate(tasks) if task in late]
        text = f"learner ranks {ranks} of {len(tasks)} did not finish {what} in {timeout_s:g} s"
        failure = LearnerFailed(text, ranks=ranks)
    return CallFailure(failure, bool(late) or not all(isinstance(error, RftError) for error in errors.values()))


async def _outcome(ref: Any) -> Any:
    outcome = await ref
    if isinstance(outcome, RftError):
        raise outcome
    return outcome


def _why(what: str, failed: Mapping[int, BaseException], num_ranks: int, given_up: Mapping[int, str]) -> RftError:
    """One error for the errors of several ranks; lost processes come first, since the others only lost a peer."""
    for rank, error in failed.items():
        known = error if isinstance(error, RftError) else cannot_start(error, f"learner rank {rank}")
        if known is not None:
            return known
    ranks = sorted(failed, key=lambda rank: not isinstance(failed[rank], RayActorError))
    described = [(rank, given_up.get(rank) or _lost(failed[rank])) for rank in ranks]
    failed_in = [(f"learner rank {rank} of {num_ranks} failed in {what}", why, failed[rank]) for rank, why in described]
    message = "; ".join(f"{who}: {why or _quoted(error)}" for who, why, error in failed_in)
    public = "; ".join(f"{who}: {why}" if why else who for who, why, _ in failed_in)
    return LearnerFailed(message, ranks=ranks, public=public)


def _lost(error: BaseException) -> str:
    lost = isinstance(error, RayActorError)
    return "its process was lost (killed, out of memory, or its node is gone)" if lost else ""


def _quoted(error: BaseException) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}"


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
