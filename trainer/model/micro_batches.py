"""Packing of sequences into micro-batches without padding.

Each rank gets the same number of micro-batches, and the work is about the same for every rank. A sequence is never
split. A sequence of T tokens occupies T - 1 tokens of a micro-batch, because its last token predicts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.types import TrainSegment

ATTENTION_BREAK_EVEN_LENGTH = 24_576
"""Sequence length at which causal attention costs as much as a layer's matmuls.

It is 12 times a typical hidden size of 2,048. It only affects the balance between micro-batches."""


@dataclass(frozen=True, slots=True)
class WeightedSequence:
    """A conversation for supervised training: token_ids [T] int32, loss weights [T] float32 (0 means not trained)."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]


AnySequence = TrainSegment | WeightedSequence


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Input of one forward pass: S packed sequences with N tokens, M of which predict a trained token.

    For example, the sequences 10 11 *12 13* and 20 21 *22* (trained tokens in asterisks) become

        token_ids       10 11 12 20 21      N = 5
        positions        0  1  2  0  1
        lengths          3, 2               S = 2
        logits_indices   1  2  4            M = 3: the token at index 1 predicts the first target
        targets         12 13 22

    Attributes:
        token_ids: [N] int64, without the last token of each sequence.
        positions: [N] int64, starting at 0 in each sequence.
        lengths: S numbers that add up to N.
        logits_indices: [M] int64, the indices in N whose logits predict the trained tokens.
        targets: [M] int64, the trained tokens.
        weights: [M] float32, the weights of the targets in the loss.
        advantages: [M] float32, as in `TrainSegment`.
        logprobs: [M] float32, as in `TrainSegment`.
        versions: [M] int32, as in `TrainSegment`; -1 for all tokens of a turn that several versions sampled.
        structures: S values, as in `TrainSegment`.
        num_useful: N, or 0 if the micro-batch is a filler that trains nothing.
        experts: [N, L, k], as in `TrainSegment`; -1 in sequences without experts. None if no sequence has experts.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: tuple[int, ...]
    logits_indices: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    structures: tuple[str | None, ...]
    num_useful: int
    experts: NDArray[np.integer[Any]] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        return len(self.targets)

    @property
    def total_weight(self) -> float:
        return float(self.weights.sum(dtype=np.float64))


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Allowed tokens of M targets, as K distinct masks.

    K is far smaller than M, because many tokens, such as those inside a JSON string, have the same mask.

    Attributes:
        allowed: [K, ceil(V / 32)] int32, one bit per token, lowest bit first; mask 0 allows all tokens.
        mask_index: [M] int64, index of each target's mask in `allowed`.
    """

    allowed: NDArray[np.int32]
    mask_index: NDArray[np.int64]


def split_updates(sequences: Sequence[AnySequence], num_updates: int) -> list[list[AnySequence]]:
    """Split a batch into `num_updates` disjoint mini-batches, one for each optimizer step.

    With n updates, mini-batch i gets the rollouts i, i + n, ... The rollouts of a group are adjacent in a batch, so
    each mini-batch gets its share of every group. A rollout's segments stay together. If there are fewer rollouts than
    updates, each rollout is one mini-batch.
    """
    rollouts: list[list[AnySequence]] = []
    for sequence in sequences:
        if isinstance(sequence, TrainSegment) and sequence.segment > 0:
            rollouts[-1].append(sequence)
        else:
            rollouts.append([sequence])
    return [list(chain(*rollouts[first::num_updates])) for first in range(min(num_updates, len(rollouts)))]


def pack_sequences(sequences: Sequence[AnySequence], *, num_ranks: int, budget: int) -> list[list[MicroBatch]]:
    """Pack sequences into micro-batches [num_ranks][K], with the same K for every rank.

    A micro-batch has at most `budget` tokens; a longer sequence gets a separate micro-batch. Ranks with fewer than K
    micro-batches get fillers that train nothing, since under ZeRO every rank must take part in every pass.

    Raises:
        ValueError: No token is trained, a sequence has fewer than two tokens, or the first token of a sequence is
            trained, although no earlier token predicts it.
    """
    rows = [_pack_row(sequence) for sequence in sequences]
    for row in rows:
        if len(row.token_ids) < 2 or row.weights[0] != 0:
            raise ValueError("a sequence needs at least two tokens, and its first token cannot be trained on")
    if not any(row.weights.any() for row in rows):
        raise ValueError("the sequences contain no token to train on")
    lengths = [row.num_tokens for row in rows]
    bins = [chosen for chosen in _fill_bins(lengths, num_ranks, budget) if chosen]
    bins += [[]] * (-len(bins) % num_ranks)
    return [
        [_build_micro_batch([rows[index] for index in sorted(chosen)]) for chosen in rank_bins]
        for rank_bins in _deal_bins(bins, lengths, num_ranks)
    ]


def _cost(length: int) -> float:
    """Return the relative cost of a sequence: linear for matmuls, quadratic for attention."""
    return length * (1 + length / ATTENTION_BREAK_EVEN_LENGTH)


def _fill_bins(lengths: Sequence[int], num_ranks: int, budget: int) -> list[list[int]]:
    """Distribute sequence indices over bins, whose number is a multiple of `num_ranks`.

    Assigns the longest sequences first, each to the cheapest bin with enough space (longest processing time first,
    Graham 1969). Starts with the minimum number of bins, and adds `num_ranks` bins until all sequences fit.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    fitting = [length for length in lengths if length <= budget]
    min_bins = len(lengths) - len(fitting) + math.ceil(sum(fitting) / budget)
    num_bins = math.ceil(min_bins / num_ranks) * num_ranks
    while True:
        bins: list[list[int]] = [[] for _ in range(num_bins)]
        free = np.full(num_bins, budget, dtype=np.int64)
        costs = np.zeros(num_bins)
        for index in order:
            fits = (free >= lengths[index]) | (free == budget)
            if not fits.any():
                break
            chosen = int(np.where(fits, costs, np.inf).argmin())
            bins[chosen].append(index)
            free[chosen] -= lengths[index]
            costs[chosen] += _cost(lengths[index])
        else:
            return bins
        num_bins += num_ranks


def _deal_bins(bins: Sequence[list[int]], lengths: Sequence[int], num_ranks: int) -> list[list[list[int]]]:
    """Return the bins of each rank.

    The bins are sorted by cost and divided into rounds with one bin per rank. The bins of a round run in parallel, and
    have similar costs. In each round, the most expensive bin goes to the rank with the least work so far.
    """
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
    """A TrainSegment or WeightedSequence as arrays [T]."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]
    advantage: float
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    structure: str | None = None
    experts: NDArray[np.integer[Any]] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) - 1


def _pack_row(sequence: AnySequence) -> _PackedRow:
    if isinstance(sequence, TrainSegment):
        weights = sequence.loss_mask.astype(np.float32)
        s = sequence
        versions = _mark_mixed_turns(s.versions)
        return _PackedRow(s.token_ids, weights, s.advantage, s.logprobs, versions, s.structure, s.experts)
    return _pack_untrained(sequence.token_ids, sequence.weights)


def _mark_mixed_turns(versions: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return `versions` [T] with -1 for all tokens of turns that more than one policy version sampled.

    The engine computed the later tokens of such a turn with cached keys and values of older weights. A turn is a
    sequence of sampled tokens, whose versions are not -1.
    """
    bounds = np.flatnonzero(np.diff(versions >= 0, prepend=False, append=False))
    marked = versions.copy()
    for start, stop in bounds.reshape(-1, 2):
        if (versions[start:stop] != versions[start]).any():
            marked[start:stop] = -1
    return marked


def _pack_untrained(token_ids: NDArray[np.int32], weights: NDArray[np.float32]) -> _PackedRow:
    return _PackedRow(token_ids, weights, 0.0, np.zeros_like(weights), np.full(len(token_ids), -1, np.int32))


def _build_micro_batch(rows: Sequence[_PackedRow]) -> MicroBatch:
    """Concatenate rows; without rows, return a filler of one token that trains nothing."""
    num_useful = sum(row.num_tokens for row in rows)
    rows = rows or [_pack_untrained(np.zeros(2, np.int32), np.zeros(2, np.float32))]
    lengths = [row.num_tokens for row in rows]
    trained = [np.flatnonzero(row.weights) for row in rows]
    starts = np.cumsum([0, *lengths[:-1]])
    chosen = list(zip(rows, trained, strict=True))
    routed = [row.experts for row in rows if row.experts is not None]
    experts = [
        np.full((row.num_tokens, *routed[0].shape[1:]), -1, np.int16) if row.experts is None else row.experts[:-1]
        for row in (rows if routed else ())
    ]
    return MicroBatch(
        token_ids=np.concatenate([row.token_ids[:-1] for row in rows]).astype(np.int64),
        positions=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        lengths=tuple(lengths),
        logits_indices=np.concatenate([which - 1 + start for which, start in zip(trained, starts, strict=True)]),
        targets=np.concatenate([row.token_ids[which] for row, which in chosen]).astype(np.int64),
        weights=np.concatenate([row.weights[which] for row, which in chosen]),
        advantages=np.repeat(np.array([row.advantage for row in rows], np.float32), [len(which) for which in trained]),
        logprobs=np.concatenate([row.logprobs[which] for row, which in chosen]),
        versions=np.concatenate([row.versions[which] for row, which in chosen]),
        structures=tuple(row.structure for row in rows),
        num_useful=num_useful,
        experts=np.concatenate(experts) if experts else None,
    )
