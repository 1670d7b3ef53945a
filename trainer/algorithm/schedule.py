"""The learning rate as a pure function of the step, so that checkpoints need no scheduler state."""

from __future__ import annotations

import math

from agent_rft.spec.job import Schedule

WARM_UP_SHARE = 0.03
"""Share of all steps that are warm-up steps, unless the job sets their number. Adam's second moments are inaccurate at
first: its first update moves each weight by about the full learning rate, however small the gradient is. The warm-up
keeps these first updates small."""


def learning_rate(step: int, *, total: int, base: float, schedule: Schedule, warm_up: int | None = None) -> float:
    """Return the learning rate of update `step` (from 0) of `total`.

    During warm-up, the rate is base x (step + 1) / warm, where warm is `warm_up` or ceil(0.03 x total). This rate is
    never 0. After the warm-up, with x = (step - warm) / (total - warm):

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
