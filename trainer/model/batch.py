"""Sequences -> micro-batches: laid end to end without padding, as many on each rank, about equally dear.

A sequence is never cut. A sequence of T tokens takes T - 1 places, since nothing is predicted from its last token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.types import TrainSequence

ATTENTION_EQUALS_LINEAR_AT = 24_576
"""Sequence length at which causal attention costs as much as a layer's matrices: about 12 x the hidden size (2,048
here, a model of 1.5B). Only the balance between micro-batches depends on it."""


@dataclass(frozen=True, slots=True)
class WeightedSequence:
    """What supervised training needs of one conversation: token_ids [T] int32, weights [T] float32 (0: not trained)."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]


AnySequence = TrainSequence | WeightedSequence


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes: S sequences on N places, M trained tokens.

    token_ids [N] int64, positions [N] int64 (from 0 in each sequence), lengths: S numbers whose sum is N.
    For each trained token: places [M] int64, where in N its prediction stands; targets [M] int64, the token;
    weights [M] float32 in the loss; advantages, logprobs [M] float32 and versions [M] int32 as in TrainSequence.
    `num_useful` are the places that are not filler.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: tuple[int, ...]
    places: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    num_useful: int

    @property
    def num_places(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        return len(self.targets)

    @property
    def total_weight(self) -> float:
        return float(self.weights.sum(dtype=np.float64))


def split_updates(sequences: Sequence[AnySequence], num_updates: int) -> list[list[AnySequence]]:
    """The mini-batches of one batch: disjoint, one optimizer step each, every `num_updates`-th sequence in turn.

    Groups stand together in a batch, so each mini-batch gets its share of each group. Fewer where sequences are fewer.
    """
    return [list(sequences[first::num_updates]) for first in range(min(num_updates, len(sequences)))]


def pack(sequences: Sequence[AnySequence], *, num_ranks: int, budget: int) -> list[list[MicroBatch]]:
    """Micro-batches per rank: [num_ranks][K], K the same on each.

    A micro-batch holds at most `budget` places; a longer sequence gets one of its own. What lacks to a multiple of
    `num_ranks` is filled with micro-batches that train nothing, since under ZeRO every rank must join every pass.

    Raises:
        ValueError: no sequence has a token to train, or a first token is to be trained (nothing predicts it).
    """
    rows = [_row(sequence) for sequence in sequences]
    for row in rows:
        if len(row.token_ids) < 2 or row.weights[0] != 0:
            raise ValueError("a sequence needs two tokens at least, and its first one cannot be trained")
    if not any(row.weights.any() for row in rows):
        raise ValueError("no token of these sequences is trained")
    lengths = [row.num_places for row in rows]
    bins = [chosen for chosen in _fill(lengths, num_ranks, budget) if chosen]
    bins += [[]] * (-len(bins) % num_ranks)
    return [
        [_micro_batch([rows[index] for index in sorted(chosen)]) for chosen in of_rank]
        for of_rank in _deal(bins, lengths, num_ranks)
    ]


def _cost(length: int) -> float:
    return length * (1 + length / ATTENTION_EQUALS_LINEAR_AT)


def _fill(lengths: Sequence[int], num_ranks: int, budget: int) -> list[list[int]]:
    """Bins of sequence indices, a multiple of `num_ranks` in number: the dearest sequence first, each into the cheapest
    bin with room (longest processing time first, Graham 1969). Starts from the fewest bins that could do.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    fitting = [length for length in lengths if length <= budget]
    fewest = len(lengths) - len(fitting) + math.ceil(sum(fitting) / budget)
    num_bins = math.ceil(fewest / num_ranks) * num_ranks
    while True:
        bins: list[list[int]] = [[] for _ in range(num_bins)]
        room = np.full(num_bins, budget, dtype=np.int64)
        costs = np.zeros(num_bins)
        for index in order:
            fits = (room >= lengths[index]) | (room == budget)
            if not fits.any():
                break
            chosen = int(np.where(fits, costs, np.inf).argmin())
            bins[chosen].append(index)
            room[chosen] -= lengths[index]
            costs[chosen] += _cost(lengths[index])
        else:
            return bins
        num_bins += num_ranks


def _deal(bins: Sequence[list[int]], lengths: Sequence[int], num_ranks: int) -> list[list[list[int]]]:
    """Bins per rank: those of like cost run side by side, and each time the rank with the least takes the most."""
    costs = [sum(_cost(lengths[index]) for index in chosen) for chosen in bins]
    order = sorted(range(len(bins)), key=lambda number: -costs[number])
    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    totals = [0.0] * num_ranks
    for first in range(0, len(bins), num_ranks):
        for number, rank in zip(order[first : first + num_ranks], np.argsort(totals, kind="stable"), strict=True):
            ranks[rank].append(bins[number])
            totals[rank] += costs[number]
    return ranks


@dataclass(frozen=True, slots=True)
class _PackedRow:
    """Either kind of sequence, arrays [T]."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]
    advantage: float
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]

    @property
    def num_places(self) -> int:
        return len(self.token_ids) - 1


def _row(sequence: AnySequence) -> _PackedRow:
    if isinstance(sequence, TrainSequence):
        weights = sequence.loss_mask.astype(np.float32)
        return _PackedRow(sequence.token_ids, weights, sequence.advantage, sequence.logprobs, sequence.versions)
    return _untaught(sequence.token_ids, sequence.weights)


def _untaught(token_ids: NDArray[np.int32], weights: NDArray[np.float32]) -> _PackedRow:
    return _PackedRow(token_ids, weights, 0.0, np.zeros_like(weights), np.full(len(token_ids), -1, np.int32))


def _micro_batch(rows: Sequence[_PackedRow]) -> MicroBatch:
    """Lay rows end to end. Of none, a filler: one place, nothing trained."""
    num_useful = sum(row.num_places for row in rows)
    rows = rows or [_untaught(np.zeros(2, np.int32), np.zeros(2, np.float32))]
    lengths = [row.num_places for row in rows]
    trained = [np.flatnonzero(row.weights) for row in rows]
    starts = np.cumsum([0, *lengths[:-1]])
    chosen = list(zip(rows, trained, strict=True))
    return MicroBatch(
        token_ids=np.concatenate([row.token_ids[:-1] for row in rows]).astype(np.int64),
        positions=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        lengths=tuple(lengths),
        places=np.concatenate([which - 1 + start for which, start in zip(trained, starts, strict=True)]),
        targets=np.concatenate([row.token_ids[which] for row, which in chosen]).astype(np.int64),
        weights=np.concatenate([row.weights[which] for row, which in chosen]),
        advantages=np.repeat(np.array([row.advantage for row in rows], np.float32), [len(which) for which in trained]),
        logprobs=np.concatenate([row.logprobs[which] for row, which in chosen]),
        versions=np.concatenate([row.versions[which] for row, which in chosen]),
        num_useful=num_useful,
    )
