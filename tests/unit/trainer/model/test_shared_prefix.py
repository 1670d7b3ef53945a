"""Sequences with a common beginning: what is computed once, and that results and gradients stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.model_probe import can_share_prefixes
from agent_rft.trainer.model.policy import DeviceBatch
from agent_rft.trainer.model.shared_prefix import MAX_SHARED_LENGTH, MIN_SHARED, NO_PARENT, PrefixTree
from agent_rft.types import TrainSegment
from tests.support.shapes import KINDS
from tests.unit.trainer.model.test_shapes import gradients, policy_of, tokens

CPU = torch.device("cpu")
ALONE = {"llama4", "qwen3_next", "kimi_linear", "nemotron_h", "lfm2", "minimax"}
"""Kinds whose layers do not share: chunked attention, and those that carry a state."""
pytestmark = pytest.mark.filterwarnings("ignore:.*is falling back to its reference")


def rollouts() -> list[NDArray[np.int32]]:
    """Six of two rows, all with the same instructions; one is there twice, and one is the beginning of another."""
    instructions, first, second = tokens(20), tokens(23), tokens(18)
    rows = [[instructions, first, tokens(n)] for n in (5, 9, 5)] + [[instructions, second, tokens(n)] for n in (7, 12)]
    return [np.concatenate(parts) for parts in [*rows, [instructions, first]]]


def batch_of(sequences: list[NDArray[np.int32]], *, share: bool) -> DeviceBatch:
    rows = [WeightedSequence(ids, (np.arange(len(ids)) > 0).astype(np.float32)) for ids in sequences]
    [[micro_batch]] = pack_sequences(rows, num_ranks=1, budget=10_000)
    return DeviceBatch.from_micro_batch(micro_batch, CPU, share=share)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_each_token_continues_its_own_sequence(rows: list[list[int]], min_shared: int) -> None:
    token_ids, lengths = np.concatenate(rows), [len(row) for row in rows]
    tree = PrefixTree.from_tokens(token_ids, lengths, min_shared)
    assert sum(tree.lengths) == len(tree.computed) <= len(token_ids)
    starts = np.cumsum([0, *tree.lengths])
    paths: list[list[int]] = []
    for segment, parent in enumerate(tree.parents):
        before = [] if parent == NO_PARENT else paths[parent]
        paths.append(before + list(range(starts[segment], starts[segment + 1])))
    place = 0
    for row in rows:
        places = tree.state_indices[place : place + len(row)].tolist()
        segment = int(np.searchsorted(starts, places[-1], side="right")) - 1
        assert places == paths[segment][: len(row)]
        assert token_ids[tree.computed[places]].tolist() == row
        place += len(row)
    if min_shared == 1:
        assert len(tree.computed) == len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})


def test_the_prompt_of_a_group_and_the_instructions_of_all_rows_are_computed_once() -> None:
    alone, together = (batch_of(rollouts(), share=share) for share in (False, True))
    assert len(alone.token_ids) == sum(len(ids) - 1 for ids in rollouts())  # the last token predicts nothing
    first, second = 22 + (5 + 9 + 5), 18 + (6 + 11)
    assert len(together.token_ids) == 20 + first + second


@pytest.mark.parametrize("shape", sorted(set(KINDS) - ALONE))
def test_log_probabilities_and_gradients_are_those_without_sharing(shape: str) -> None:
    alone, together = policy_of(shape), policy_of(shape)
    assert can_share_prefixes(together, CPU)
    expected = alone(batch_of(rollouts(), share=False))[0]
    logprobs = together(batch_of(rollouts(), share=True))[0]
    torch.testing.assert_close(logprobs, expected, atol=5e-5, rtol=1e-5)
    expected.sum().backward()
    logprobs.sum().backward()
    for name, gradient in gradients(alone).items():
        scale = float(gradient.abs().max())
        found = gradients(together)[name]
        torch.testing.assert_close(found, gradient, atol=1e-4 * max(scale, 1e-3), rtol=1e-3, msg=name)


@pytest.mark.parametrize("shape", sorted(ALONE))
def test_layers_that_see_one_sequence_only_do_not_share(shape: str) -> None:
    assert not can_share_prefixes(policy_of(shape), CPU)


def shared(*sequences: NDArray[np.int32]) -> bool:
    return batch_of(list(sequences), share=True).packing.parents is not None


def test_few_common_tokens_are_not_shared() -> None:
    """Neither fewer than are worth a call, nor few of many."""
    few, enough = tokens(MIN_SHARED - 1), tokens(MIN_SHARED)
    assert not shared(*(np.concatenate([few, tokens(n)]) for n in (5, 9)))
    assert shared(*(np.concatenate([enough, tokens(n)]) for n in (5, 9)))
    assert not shared(*(np.concatenate([enough, tokens(n)]) for n in (150, 190)))


def test_sequences_whose_masks_would_be_large_are_not_shared() -> None:
    prompt = tokens(MAX_SHARED_LENGTH // 2)
    long = np.concatenate([prompt, tokens(MAX_SHARED_LENGTH // 2 + 2)])
    assert shared(prompt, long[:-1])
    assert not shared(prompt, long)


def test_nothing_is_shared_where_the_engine_chose_the_experts() -> None:
    """It may have sent the same token to other experts in another rollout."""
    sequence = TrainSegment(
        token_ids=tokens(30),
        loss_mask=np.arange(30) > 20,
        logprobs=np.zeros(30, np.float32),
        versions=np.zeros(30, np.int32),
        advantage=1.0,
    )
    chosen = replace(sequence, experts=np.zeros((30, 1, 2), np.uint8))
    for rollout, expected in ((sequence, True), (chosen, False)):
        [[micro_batch]] = pack_sequences([rollout, rollout], num_ranks=1, budget=100)
        assert (DeviceBatch.from_micro_batch(micro_batch, CPU, share=True).packing.parents is not None) == expected
