"""How long a run needs to stop with a checkpoint: the update in progress, then the checkpoint's bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from actors.learner.sizes import STATE_BYTES
from trainer.errors import Problem
from trainer.spec.job import CheckpointInterval

CHECKPOINT_BYTES_PER_PARAMETER = STATE_BYTES + 4
"""At most: the optimizer's state, and the weights in float32 (2 bytes in bfloat16)."""
ASSUMED_WRITE_BYTES_PER_S = 500e6
PROMPT_S = 30.0
"""What a stop takes at most by default, on Kubernetes and where a machine is taken away: longer is said in advance."""
SPARE_S = 20.0
"""Ends actors and writes the report."""
TO_KILL_S = 30
"""What a pod gets beyond the run's own time, for Ray's processes."""


def interval_warnings(interval: CheckpointInterval, checkpoint_s: float, step_s: float | None) -> Iterator[Problem]:
    """A warning for each part of the interval that is shorter than writing a checkpoint takes.

    Args:
        interval: The interval of the job.
        checkpoint_s: Seconds to write a checkpoint.
        step_s: Seconds of a step; None if unknown.
    """
    place, fitting = "cluster.checkpoint_interval", interval.for_writes(checkpoint_s)
    takes = f"writing a checkpoint takes about {checkpoint_s:.0f} s"
    if fitting.minutes != interval.minutes:
        apart = f"checkpoints will be {fitting.minutes:.1f} minutes apart"
        message = f"{takes}, longer than {interval.minutes:g} minutes: {apart}"
        yield Problem("slow_checkpoints", f"{place}.minutes", message, "use a faster disk for the run folder, or LoRA")
    if interval.steps is not None and step_s and checkpoint_s > interval.steps * step_s:
        steps = "a step" if interval.steps == 1 else f"{interval.steps} steps"
        message = f"{takes}, longer than {steps} of about {step_s:.0f} s: training will wait for each"
        remedy = f"set it to {math.ceil(2 * checkpoint_s / step_s)} or more, or to null"
        yield Problem("slow_checkpoints", f"{place}.steps", message, remedy)


@dataclass(frozen=True, slots=True)
class StopTime:
    """The time to stop a run. `update_s` is an update's, estimated; 0 if it is not known."""

    num_parameters: int
    write_bytes_per_s: float
    update_s: float = 0.0

    @property
    def checkpoint_bytes(self) -> int:
        return self.num_parameters * CHECKPOINT_BYTES_PER_PARAMETER

    @property
    def checkpoint_s(self) -> float:
        return self.checkpoint_bytes / self.write_bytes_per_s

    @property
    def wait_s(self) -> int:
        """RAY_JOB_STOP_WAIT_TIME_S, in steps of ten."""
        return math.ceil((self.update_s + self.checkpoint_s + SPARE_S) / 10) * 10

    @property
    def grace_s(self) -> int:
        """The pod's terminationGracePeriodSeconds."""
        return self.wait_s + TO_KILL_S
