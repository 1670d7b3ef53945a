"""Phase 0 of making the ledger example's base model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from examples.ledger import make_base
from examples.ledger.base_model import build_model
from examples.ledger.lookup_training import train_lookup
from tests.unit.examples.test_ledger import World, world  # noqa: F401


@pytest.mark.nightly
def test_phase_0_learns(world: World) -> None:  # noqa: F811
    rng = random.Random(0)
    samples = make_base.practice_samples(world, rng)
    seconds: Iterator[float] = itertools.count(0.0)
    result = train_lookup(
        build_model(seed=0),
        samples.draw,
        samples.scored_conversations(2),
        rng,
        31.0,
        batch_tokens=256,
        clock=lambda: next(seconds),
    )
    assert len(result.losses) == 30
    assert sum(result.losses[-5:]) < 0.9 * sum(result.losses[:5])
    assert 0.0 <= result.score <= 1.0
