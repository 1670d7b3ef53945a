"""The learning rate as a pure function of the step, so that checkpoints need no scheduler state."""

from __future__ import annotations

import math

from agent_rft.spec.job import Schedule

WARM_UP_SHARE = 0.03
"""Share of all steps, unless the job says how many. Adam's second moments are inaccurate at first: its first update
moves each weight by about the whole learning rate, however small the gradient is, and a ramp keeps that small."""


def learning_rate(step: int, *, total: int, base: float, schedule: Schedule, warm_up: int | None = None) -> float:
    """The learning rate of update `step` (from 0) of `total`.

    Warm-up: base x (step + 1) / warm for the first warm = `warm_up` or ceil(0.03 x total) steps, so no step has rate 0.
    After that, with x = (step - warm) / (total - warm):

        constant    base
        linear      base x (1 - x)
        cosine      base x (1 + cos(pi x)) / 2

    From step `total` on, x stays 1.
    """
    warm = math.ceil(WARM_UP_SHARE * total) if warm_up is None else warm_up
    if step < warm:
        return base * (step + 1) / warm
    if schedule == "constant":
        return base
    done = min(1.0, (step - warm) / max(1, total - warm))
    return base * (1 - done) if schedule == "linear" else base * (1 + math.cos(math.pi * done)) / 2
