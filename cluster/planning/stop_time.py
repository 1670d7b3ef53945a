"""How long a run needs to stop with a checkpoint: the update in progress, then the checkpoint's bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from actors.learner.sizes import STATE_BYTES

CHECKPOINT_BYTES_PER_PARAMETER = STATE_BYTES + 4
"""At most: the optimizer's state, and the weights in float32 (2 bytes in bfloat16)."""
ASSUMED_WRITE_BYTES_PER_S = 500e6
PROMPT_S = 30.0
"""What a stop takes at most by default, on Kubernetes and where a machine is taken away: longer is said in advance."""
SPARE_S = 20.0
"""Ends actors and writes the report."""
TO_KILL_S = 30
"""What a pod gets beyond the run's own time, for Ray's processes."""


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
