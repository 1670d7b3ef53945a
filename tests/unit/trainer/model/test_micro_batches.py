"""Packing: nothing is lost, split or padded, and all ranks get equally many micro-batches at about equal cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rft.trainer.model.micro_batches import (
    AnySequence,
    MicroBatch,
    WeightedSequence,
    pack_sequences,
    split_updates,
)
from agent_rft.types import TrainSegment


def sequence(length: int, seed: int = 0, advantage: float = 1.0) -> TrainSegment:
    """A sequence whose token at index i is seed x 1000 + i; about half of its tokens are sampled."""
    mask = np.random.default_rng(seed).random(length) < 0.5
    mask[0], mask[-1] = False, True
    tokens = seed * 1000 + np.arange(length)
    return TrainSegment(
        token_ids=tokens.astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -tokens / 1000, 0).astype(np.float32),
        versions=np.where(mask, seed, -1).astype(np.int32),
        advantage=advantage,
    )


def sequences_of(lengths: list[int]) -> list[TrainSegment]:
    return [sequence(length, seed, float(seed)) for seed, length in enumerate(lengths)]


def all_of(packed: list[list[MicroBatch]]) -> list[MicroBatch]:
    return [micro_batch for row in packed for micro_batch in row]


def test_sequences_are_concatenated_and_positions_restart() -> None:
    [[batch]] = pack_sequences(sequences_of([4, 3]), num_ranks=1, budget=100)
    assert batch.token_ids.tolist() == [0, 1, 2, 1000, 1001]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.lengths == (3, 2)


def test_each_trained_token_keeps_its_own_values() -> None:
    sequences = sequences_of([7, 9, 5])
    [[batch]] = pack_sequences(sequences, num_ranks=1, budget=100)
    assert (
        batch.token_ids[batch.logits_indices].tolist() == (batch.targets - 1).tolist()
    )  # predicted from the token before
    owners = batch.targets // 1000
    assert batch.advantages.tolist() == owners.tolist()
    assert batch.versions.tolist() == owners.tolist()
    assert batch.logprobs == pytest.approx(-batch.targets / 1000)
    trained = np.concatenate([s.token_ids[s.loss_mask] for s in sequences])
    assert sorted(batch.targets.tolist()) == sorted(trained.tolist())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=40), st.integers(1, 4), st.integers(10, 100))
def test_nothing_is_lost_and_no_budget_is_exceeded(lengths: list[int], num_ranks: int, budget: int) -> None:
    packed = pack_sequences(sequences_of(lengths), num_ranks=num_ranks, budget=budget)
    assert len(packed) == num_ranks
    assert len({len(row) for row in packed}) == 1
    useful = [batch for batch in all_of(packed) if batch.num_useful]
    assert sum(batch.num_useful for batch in useful) == sum(length - 1 for length in lengths)
    assert sorted(length for batch in useful for length in batch.lengths) == sorted(length - 1 for length in lengths)
    for batch in useful:
        assert batch.num_tokens <= budget or len(batch.lengths) == 1
    assert len(all_of(packed)) - len(useful) < num_ranks


def test_a_sequence_longer_than_the_budget_has_a_micro_batch_of_its_own() -> None:
    [row] = pack_sequences(sequences_of([50, 5, 5]), num_ranks=1, budget=20)
    assert sorted(batch.lengths for batch in row) == [(4, 4), (49,)]


def test_a_rank_without_work_gets_fillers_that_train_nothing() -> None:
    packed = pack_sequences([sequence(10)], num_ranks=3, budget=100)
    fillers = [batch for batch in all_of(packed) if batch.num_useful == 0]
    assert len(fillers) == 2
    for batch in fillers:
        assert (batch.num_tokens, batch.num_trained, batch.total_weight) == (1, 0, 0.0)


def test_a_real_batch_is_packed_without_padding() -> None:
    lengths = np.random.default_rng(0).integers(80, 400, 128).tolist()
    packed = pack_sequences(sequences_of(lengths), num_ranks=2, budget=8192)
    assert all(batch.num_useful == batch.num_tokens for batch in all_of(packed))
    assert len(packed[0]) == 2  # 31k tokens in the fewest micro-batches that two ranks can share


def test_ranks_get_equal_shares_in_every_pass() -> None:
    lengths = np.random.default_rng(1).lognormal(6, 1, 200).astype(int).clip(2, 8000).tolist()
    packed = pack_sequences(sequences_of(lengths), num_ranks=4, budget=8192)
    totals = [sum(batch.num_tokens for batch in row) for row in packed]
    assert max(totals) / min(totals) < 1.05
    for in_parallel in zip(*packed, strict=True):
        tokens = [batch.num_tokens for batch in in_parallel]
        assert max(tokens) / min(tokens) < 1.25


def test_the_same_sequences_are_packed_the_same_way() -> None:
    first, second = (pack_sequences(sequences_of([30, 20, 20, 10, 30]), num_ranks=2, budget=50) for _ in range(2))
    assert [b.token_ids.tolist() for b in all_of(first)] == [b.token_ids.tolist() for b in all_of(second)]


def test_mini_batches_are_disjoint_and_share_every_group() -> None:
    sequences: list[AnySequence] = [*sequences_of([5] * 8)]
    first, second = split_updates(sequences, 2)
    assert first == sequences[::2]
    assert second == sequences[1::2]
    assert len(split_updates(sequences[:3], 8)) == 3


def test_the_segments_of_a_rollout_are_trained_in_the_same_mini_batch() -> None:
    numbers = [0, 0, 1, 2, 0, 1, 0]
    sequences: list[AnySequence] = [replace(s, segment=n) for s, n in zip(sequences_of([5] * 7), numbers, strict=True)]
    first, second = split_updates(sequences, 2)
    assert first == [sequences[0], sequences[4], sequences[5]]
    assert second == [*sequences[1:4], sequences[6]]
    assert len(split_updates(sequences, 8)) == 4


def test_weights_of_a_conversation_stay_with_their_tokens() -> None:
    tokens = np.arange(5, dtype=np.int32)
    sequence = WeightedSequence(tokens, np.array([0, 0.2, 0, 1, 1], np.float32))
    [[batch]] = pack_sequences([sequence], num_ranks=1, budget=10)
    assert batch.targets.tolist() == [1, 3, 4]
    assert batch.weights.tolist() == pytest.approx([0.2, 1, 1])
    assert batch.total_weight == pytest.approx(2.2)


def test_untrainable_sequences_are_rejected() -> None:
    untrained = WeightedSequence(np.arange(4, dtype=np.int32), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="no token"):
        pack_sequences([untrained], num_ranks=1, budget=10)
    with pytest.raises(ValueError, match="first token cannot"):
        pack_sequences([WeightedSequence(untrained.token_ids, np.ones(4, np.float32))], num_ranks=1, budget=10)
