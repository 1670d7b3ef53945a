"""How a kernel is graded: right on shapes that it cannot know, then by how much less work it does than the reference.

The work is counted (`interpreter`), so a busy machine does not decide what the small model learns. The held-out grader
in job_small.yaml measures time instead.
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
"""The least and greatest length of each axis, by the number of axes."""
RIGHT: Final = 0.2
"""The grade of a right kernel that is not faster."""
FULL_SPEEDUP: Final = 8.0
TOLERANCE: Final = 1e-6
_SECRET: Final = secrets.token_hex()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A grade from 0 to 1, why, and its parts."""

    score: float
    reason: str
    scores: dict[str, float]


def grade(text: str, item: Mapping[str, Any], seed: str = _SECRET) -> Verdict:
    """Grade a kernel. All answers to a row get the same inputs, which depend on the row and the seed alone."""
    try:
        speedup = measured(text, item, seed)
    except Refused as error:
        return nothing(str(error))
    return of_speedup(speedup, FULL_SPEEDUP, f"right, {speedup:.1f} times less work than the reference")


def of_speedup(speedup: float, full: float, reason: str) -> Verdict:
    """The grade of a right kernel: capped, and logarithmic, since twice as fast is always worth the same."""
    gained = min(1.0, max(0.0, math.log(speedup) / math.log(full)))
    return Verdict(RIGHT + (1 - RIGHT) * gained, reason, {"correct": 1.0, "speedup": speedup})


def nothing(reason: str) -> Verdict:
    return Verdict(0.0, reason, {"correct": 0.0, "speedup": 0.0})


def measured(text: str, item: Mapping[str, Any], seed: str) -> float:
    """How many times less work than the reference a right kernel does.

    Raises:
        Refused: it is wrong, or not a kernel.
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
    """Whether both have one shape and nearly the same numbers. Not a number equals nothing."""
    if not isinstance(found, bool | int | float | list | np.ndarray) or (
        isinstance(found, list) and not is_flat(found)
    ):
        return False
    ours, theirs = np.asarray(found, float), np.asarray(right, float)
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE))


def tried(text: str, item: Mapping[str, Any], seed: str) -> str:
    """What the tool `run` says; it must not have the grader's seed."""
    try:
        return f"ok {measured(text, item, seed):.1f}x"
    except Refused as error:
        return str(error)
