"""Early stop: whether the last validations brought no gain, by the rewards of all validations of a run.

A function of what each checkpoint holds, so a resumed run counts as one that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer.spec.early_stop import EarlyStop


def num_without_gain(rewards: Sequence[float], min_gain: float) -> int:
    """How many rewards follow the last one that exceeded the best before it by more than `min_gain`."""
    best, count = -math.inf, 0
    for reward in rewards:
        gained = reward > best + min_gain
        best, count = (reward, 0) if gained else (best, count + 1)
    return count


def is_over(settings: EarlyStop | None, rewards: Sequence[float]) -> bool:
    """Whether a job with these `settings` ends after validations with these `rewards`."""
    return settings is not None and num_without_gain(rewards, settings.min_gain) >= settings.patience
