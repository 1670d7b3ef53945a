"""Groups of rollouts: failed rollouts are retried and never graded, and a group does not wait for its stragglers.

While most rollouts fail, only probes are started (`holdback`). Each attempt at a rollout starts once and ends once:
graded, discarded with a reason, or cancelled. `Account` counts these, and the counts always balance.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from agent_rft.actors.rollout.board import Board
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.rollout.holdback import Holdback
from agent_rft.errors import EngineFailed
from agent_rft.events import RolloutDiscarded
from agent_rft.protocols import Emit
from agent_rft.spec.job import RolloutLimits
from agent_rft.types import Discarded, Group, GroupRequest, Rollout

STRAGGLER = "straggler"
STRAGGLER_QUORUM = 0.75
"""Share of a training group's rollouts that must have ended before `straggler_wait_s` starts.

A group of eight may lose its two slowest rollouts, and the other six are enough to compare their rewards."""
Discard = Callable[[Discarded], None]
"""Takes an attempt that ended without a grade."""
RunRollout = Callable[[RolloutRequest], Awaitable[Rollout | Discarded]]
"""Runs one rollout to its end, on any engine. Raises only errors that must end the job."""


@dataclass(slots=True)
class Account:
    """Counts of attempts since the start: started = graded + discarded + cancelled + in_flight, at every moment.

    `in_flight` is counted separately, not computed from the others, so that `balances` can check the counts.
    """

    started: int = 0
    graded: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    in_flight: int = 0

    @property
    def balances(self) -> bool:
        return self.started == self.graded + self.discarded.total() + self.cancelled + self.in_flight

    def metrics(self) -> dict[str, float]:
        """The counts under the names of `agent_rft.metrics`."""
        return {
            "account/started": float(self.started),
            "account/graded": float(self.graded),
            "account/discarded": float(self.discarded.total()),
            "account/cancelled": float(self.cancelled),
            "account/in_flight": float(self.in_flight),
        }

    def live(self) -> dict[str, float]:
        """The counts for a Recorder; may be called from another thread."""
        ended = {"graded": self.graded, "cancelled": self.cancelled, **dict(self.discarded)}
        counts = {f"rollouts/{outcome}": float(count) for outcome, count in ended.items()}
        return counts | {"rollouts_started": float(self.started), "rollouts_in_flight": float(self.in_flight)}


class Groups:
    """Runs groups over `run`."""

    def __init__(self, run: RunRollout, limits: RolloutLimits, holdback: Holdback, emit: Emit) -> None:
        self._run = run
        self._limits = limits
        self._holdback = holdback
        self._emit = emit
        self.account = Account()
        self.board = Board()

    async def sample(self, request: GroupRequest) -> Group:
        """Run a group; a training group with fewer than half (at least 2) rollouts left is sampled again, once."""
        started, attempts = time.monotonic(), self._limits.max_rollout_retries + 1
        first = request.attempt * 2 * attempts
        with self.board.group(request):
            group = await self._sample(request, attempt=first)
            if request.purpose == "train" and len(group.rollouts) < max(2, math.ceil(request.size / 2)):
                again = await self._sample(request, attempt=first + attempts)
                group = replace(again, discarded=(*group.discarded, *again.discarded))
        return replace(group, wall_s=time.monotonic() - started)

    async def _sample(self, request: GroupRequest, attempt: int) -> Group:
        late: set[int] = set()
        discarded: list[Discarded] = []

        def discard(lost: Discarded) -> None:
            discarded.append(lost)
            self._emit(
                RolloutDiscarded(
                    trace_id=lost.trace_id,
                    row_id=lost.row_id,
                    sample=lost.sample,
                    purpose=request.purpose,
                    reason=lost.reason,
                    cause=lost.message,
                    endpoint=lost.endpoint,
                )
            )

        async def one(sample: int) -> Rollout | None:
            asked = RolloutRequest(request.task, request.epoch, sample, attempt, request.temperature, request.index)
            rollout = await self._rollout(asked, discard, late)
            if rollout is not None and request.purpose != "train":
                rollout = rollout.without_experts()  # which are large, and of no use
            self.board.ended(request, rollout)
            return rollout

        tasks: list[asyncio.Task[Rollout | None]] = []
        try:
            for sample in range(request.size):
                tasks.append(asyncio.create_task(one(sample)))
                # Groups that start together take turns. Engines fill evenly then, so that each group can stay on one.
                await asyncio.sleep(0)
            late |= {tasks.index(task) for task in await self._stragglers(request, tasks)}
            rollouts = [task.result() for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Group(request, tuple(rollout for rollout in rollouts if rollout is not None), tuple(discarded))

    async def _stragglers(
        self, request: GroupRequest, tasks: list[asyncio.Task[Rollout | None]]
    ) -> set[asyncio.Task[Rollout | None]]:
        """Wait for a group; returns the stragglers. Validation waits for all, since slow rows count there as well."""
        wait_s = self._limits.straggler_wait_s if request.purpose == "train" else None
        quorum = max(2, math.ceil(STRAGGLER_QUORUM * len(tasks)))
        pending, deadline = set(tasks), math.inf
        while pending:
            if wait_s is not None and deadline == math.inf and len(tasks) - len(pending) >= quorum:
                deadline = time.monotonic() + wait_s
            timeout = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises an error that must end the job at once, not after the slowest rollout
            if not done:
                break
        return pending

    async def _rollout(self, request: RolloutRequest, discard: Discard, late: set[int]) -> Rollout | None:
        """Attempts at one sample of a group until one is graded or none is left; failures go to `discard`."""
        retries_left, engines_left = self._limits.max_rollout_retries, 1
        while True:
            probing = await self._holdback.enter()
            outcome = await self._attempt(request, discard, late)
            self._holdback.observe(outcome, probing)
            if isinstance(outcome, Rollout):
                return outcome
            discard(outcome)
            if outcome.reason == EngineFailed.reason and engines_left:
                engines_left -= 1  # the same attempt again, on another engine or on its replacement
            elif outcome.reason != EngineFailed.reason and retries_left:
                retries_left -= 1
                request = replace(request, attempt=request.attempt + 1)
            else:
                return None

    async def _attempt(self, request: RolloutRequest, discard: Discard, late: set[int]) -> Rollout | Discarded:
        """One attempt, counted in `account`."""
        account = self.account
        account.started += 1
        account.in_flight += 1
        try:
            with self.board.attempt(request.task):
                outcome = await self._run(request)
        except BaseException:  # cancelled, or an error that ends the job: it must be counted as well
            account.in_flight -= 1
            if request.sample in late:
                why = "the group did not wait for it: most of its other rollouts had ended long before"
                discard(Discarded("", request.task.row_id, request.sample, STRAGGLER, why))
                account.discarded[STRAGGLER] += 1
            else:
                account.cancelled += 1
            raise
        account.in_flight -= 1
        if isinstance(outcome, Rollout):
            account.graded += 1
        else:
            account.discarded[outcome.reason] += 1
        return outcome
