"""The learning rate is a pure function of the step: nothing of it needs to be saved or restored."""

from __future__ import annotations

import math
from typing import Literal

WARM_UP_SHARE = 0.03
"""Of all steps. Adam's second moments are rough at first; a short ramp keeps its first updates small."""


def learning_rate(step: int, *, total: int, base: float, schedule: Literal["constant", "linear", "cosine"]) -> float:
    """The rate of update `step` (0 is the first) of `total`.

    Warm-up: base x (step + 1) / warm over the first warm = ceil(0.03 x total) steps, so that no step has rate 0.
    Then with x = (step - warm) / (total - warm), the share of the rest that is done:
    constant: base; linear: base x (1 - x); cosine: base x (1 + cos(pi x)) / 2. After `total` as at x = 1.
    """
    warm = math.ceil(WARM_UP_SHARE * total)
    if step < warm:
        return base * (step + 1) / warm
    if schedule == "constant":
        return base
    done = min(1.0, (step - warm) / max(1, total - warm))
    return base * (1 - done) if schedule == "linear" else base * (1 + math.cos(math.pi * done)) / 2
