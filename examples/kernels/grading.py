"""Grading of kernels: the result must be right for random shapes; the grade then depends on the saved work.

The work is counted by `interpreter` and compared with the reference's work, so the grades do not depend on the load of
the host. The held-out grader in job_small.yaml measures time instead.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np

from examples.kernels.interpreter import Refused, is_flat, read, run

NUM_SHAPES: Final = 2
SIZES: Final[dict[int, tuple[int, int]]] = {1: (100, 200), 2: (9, 15)}
"""Minimum and maximum length of each axis, by the number of axes."""
RIGHT: Final = 0.2
"""Grade of a right kernel that is not faster than the reference."""
FULL_SPEEDUP: Final = 8.0
TOLERANCE: Final = 1e-6
_SECRET: Final = secrets.token_hex()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Grade from 0 to 1, its reason, and its parts."""

    score: float
    reason: str
    scores: dict[str, float]


def grade(text: str, item: Mapping[str, Any], seed: str = _SECRET) -> Verdict:
    """Grade a kernel. All answers to a row get the same inputs, which depend only on the row and the seed."""
    try:
        speedup = measured(text, item, seed)
    except Refused as error:
        return nothing(str(error))
    return of_speedup(speedup, FULL_SPEEDUP, f"right, {speedup:.1f} times less work than the reference")


def of_speedup(speedup: float, full: float, reason: str) -> Verdict:
    """Return the grade of a right kernel. It is capped, and logarithmic so that each doubling has the same value."""
    gained = min(1.0, max(0.0, math.log(speedup) / math.log(full)))
    return Verdict(RIGHT + (1 - RIGHT) * gained, reason, {"correct": 1.0, "speedup": speedup})


def nothing(reason: str) -> Verdict:
    return Verdict(0.0, reason, {"correct": 0.0, "speedup": 0.0})


def measured(text: str, item: Mapping[str, Any], seed: str) -> float:
    """Return the reference's work divided by the work of a right kernel.

    Raises:
        Refused: The kernel is wrong, or is not a kernel.
    """
    kernel, reference = read(text), read(item["reference"], "ref")
    rng = Random(f"{seed} {item['reference']}")
    least, most = SIZES[item["num_axes"]]
    spent = wanted = 0
    for _ in range(NUM_SHAPES):
        shape = [rng.randint(least, most) for _ in range(item["num_axes"])]
        values = np.random.default_rng(rng.getrandbits(64))
        inputs = [values.normal(0, 2, shape) for _ in reference.args.args]
        right, work = run(reference, inputs)
        wanted += work
        found, work = run(kernel, inputs)
        spent += work
        if not same(found, right):
            raise Refused(f"wrong for shape {tuple(shape)}")
    return wanted / spent


def same(found: Any, right: Any) -> bool:
    """Return whether both results have the same shape and nearly the same numbers. NaN equals nothing."""
    if not isinstance(found, bool | int | float | list | np.ndarray) or (
        isinstance(found, list) and not is_flat(found)
    ):
        return False
    ours, theirs = np.asarray(found, float), np.asarray(right, float)
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE))


def tried(text: str, item: Mapping[str, Any], seed: str) -> str:
    """Return the output of the tool `run`. The seed must differ from the grader's seed."""
    try:
        return f"ok {measured(text, item, seed):.1f}x"
    except Refused as error:
        return str(error)
