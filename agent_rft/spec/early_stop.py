"""The settings of early stop."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agent_rft.spec.endpoints import MOST, Strict


class EarlyStop(Strict):
    """Ends a job that has stopped gaining, by the mean reward over its validation file."""

    patience: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Validations in a row without a gain after which the job ends; that before the first step counts as the first
    best. Raise it if the reward of validations is noisy, or lower `eval_interval` for more of them."""
    min_gain: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    """By how much a validation's mean reward must exceed the best before it to be a gain. Raise it if small gains are
    not worth the time of their steps."""
