"""Groups of rollouts: runs the rollouts of a group, retries failed rollouts, and cancels stragglers.

While too many rollouts fail, `RolloutThrottle` starts only probes. Each attempt starts once and ends once: graded,
discarded with a reason, or cancelled. `AttemptCounts` counts the attempts.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.rollout.live_counts import RolloutProgress
from agent_rft.actors.rollout.rollout_throttle import RolloutThrottle
from agent_rft.errors import EngineFailed
from agent_rft.events import RolloutDiscarded
from agent_rft.loop_protocols import Emit
from agent_rft.spec.job import RolloutLimits
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout

STRAGGLER = "straggler"
STRAGGLER_QUORUM = 0.75
"""Share of a training group's rollouts that must have ended before `straggler_wait_s` starts.

A group of eight may lose its two slowest rollouts, and the other six are enough to compare their rewards."""
OnDiscard = Callable[[DiscardedRollout], None]
"""Function that is called with each attempt that ended without a grade."""
RunRollout = Callable[[RolloutRequest], Awaitable[Rollout | DiscardedRollout]]
"""Function that runs one rollout to its end, on any engine. It raises only errors that must end the job."""


@dataclass(slots=True)
class AttemptCounts:
    """Numbers of attempts since the start of the job; `discarded` is counted by reason.

    At every moment, started = graded + discarded + cancelled + in_flight. `in_flight` is counted separately instead of
    being computed from the other counts, so that `is_balanced` can check this equation.
    """

    started: int = 0
    graded: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    in_flight: int = 0

    @property
    def is_balanced(self) -> bool:
        return self.started == self.graded + self.discarded.total() + self.cancelled + self.in_flight

    def metrics(self) -> dict[str, float]:
        """Return the counts, keyed by metric names of `agent_rft.metrics`."""
        return {
            "rollout_attempts/started": float(self.started),
            "rollout_attempts/graded": float(self.graded),
            "rollout_attempts/discarded": float(self.discarded.total()),
            "rollout_attempts/cancelled": float(self.cancelled),
            "rollout_attempts/in_flight": float(self.in_flight),
        }

    def live_metrics(self) -> dict[str, float]:
        """Return the counts as metrics for a Recorder. Each discard reason has a metric. Any thread may call this."""
        ended = {"graded": self.graded, "cancelled": self.cancelled, **dict(self.discarded)}
        counts = {f"rollouts/{outcome}": float(count) for outcome, count in ended.items()}
        return counts | {"rollouts_started": float(self.started), "rollouts_in_flight": float(self.in_flight)}


class GroupRunner:
    """Runs groups of rollouts; the argument `run` runs a single rollout."""

    def __init__(self, run: RunRollout, limits: RolloutLimits, throttle: RolloutThrottle, emit: Emit) -> None:
        self._run_rollout = run
        self._limits = limits
        self._throttle = throttle
        self._emit = emit
        self.attempt_counts = AttemptCounts()
        self.rollout_progress = RolloutProgress()

    @property
    def is_throttled(self) -> bool:
        """Whether too many rollouts fail, so that only probes are started."""
        return self._throttle.is_throttled

    async def sample(self, request: GroupRequest) -> Group:
        """Run the rollouts of a group and return the group.

        A training group is repeated once if too few of its rollouts are trainable: fewer than half, or fewer than two.
        """
        started, attempts = time.monotonic(), self._limits.max_rollout_retries + 1
        first = request.attempt * 2 * attempts
        with self.rollout_progress.track_group(request):
            group = await self._sample_once(request, attempt=first)
            if request.purpose == "train" and len(group.trainable) < max(2, math.ceil(request.size / 2)):
                second = await self._sample_once(request, attempt=first + attempts)
                group = replace(second, discarded=(*group.discarded, *second.discarded))
        return replace(group, wall_s=time.monotonic() - started)

    async def _sample_once(self, request: GroupRequest, attempt: int) -> Group:
        late_samples: set[int] = set()
        discarded: list[DiscardedRollout] = []

        def discard(lost: DiscardedRollout) -> None:
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

        async def run_sample(sample: int) -> Rollout | None:
            rollout_request = RolloutRequest(
                request.task, request.epoch, sample, attempt, request.temperature, request.index
            )
            rollout = await self._run_with_retries(rollout_request, discard, late_samples)
            if rollout is not None and request.purpose != "train":
                rollout = rollout.drop_experts()  # large, and only used in training
            self.rollout_progress.record_end(request, rollout)
            return rollout

        tasks: list[asyncio.Task[Rollout | None]] = []
        try:
            for sample in request.sample_indexes:
                tasks.append(asyncio.create_task(run_sample(sample)))
                # Interleaves groups that start together: engines then fill evenly, and each group can stay on one.
                await asyncio.sleep(0)
            late = await self._wait_for_group(request, tasks)
            late_samples |= {request.sample_indexes[tasks.index(task)] for task in late}
            rollouts = [task.result() for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Group(request, tuple(rollout for rollout in rollouts if rollout is not None), tuple(discarded))

    async def _wait_for_group(
        self, request: GroupRequest, tasks: list[asyncio.Task[Rollout | None]]
    ) -> set[asyncio.Task[Rollout | None]]:
        """Wait for the rollouts of a group, and return the tasks of its stragglers.

        Only training groups have stragglers. Evaluations wait for all rollouts, so that they include slow rows.
        """
        wait_s = self._limits.straggler_wait_s if request.purpose == "train" else None
        quorum = max(2, math.ceil(STRAGGLER_QUORUM * len(tasks)))
        pending, deadline = set(tasks), math.inf
        while pending:
            if wait_s is not None and deadline == math.inf and len(tasks) - len(pending) >= quorum:
                deadline = time.monotonic() + wait_s
            timeout = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises an error that ends the job now, not after the slowest rollout
            if not done:
                break
        return pending

    async def _run_with_retries(
        self, request: RolloutRequest, discard: OnDiscard, late_samples: set[int]
    ) -> Rollout | None:
        """Run attempts at one sample until an attempt is graded; return None if no retries are left.

        Failed attempts are passed to `discard`. `late_samples` contains the indexes of cancelled stragglers.
        """
        retries_left, engines_left = self._limits.max_rollout_retries, 1
        while True:
            is_probe = await self._throttle.wait_for_start()
            outcome = await self._run_attempt(request, discard, late_samples)
            self._throttle.observe(outcome, is_probe)
            if isinstance(outcome, Rollout):
                return outcome
            discard(outcome)
            if outcome.reason == EngineFailed.reason and engines_left:
                engines_left -= 1  # repeat the same attempt, on another engine or on the replacement
            elif outcome.reason != EngineFailed.reason and retries_left:
                retries_left -= 1
                request = replace(request, attempt=request.attempt + 1)
            else:
                return None

    async def _run_attempt(
        self, request: RolloutRequest, discard: OnDiscard, late_samples: set[int]
    ) -> Rollout | DiscardedRollout:
        """Run one attempt and count it in `attempt_counts`."""
        account = self.attempt_counts
        account.started += 1
        account.in_flight += 1
        try:
            with self.rollout_progress.track_attempt(request.task):
                outcome = await self._run_rollout(request)
        except BaseException:  # a cancellation, or an error that ends the job: count these attempts too
            account.in_flight -= 1
            if request.sample in late_samples:
                why = "the group stopped waiting for this rollout, because most of the group's other rollouts had ended"
                discard(DiscardedRollout("", request.task.row_id, request.sample, STRAGGLER, why))
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
