"""Masks of constrained decoding, computed again from sampled token ids."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from agent_rft.actors.engine.grammar.structural_tags import build_turn_structure
from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.renderer import Renderer
from agent_rft.trainer.model.grammar_masks import GrammarMasks
from agent_rft.trainer.model.micro_batches import MicroBatch, TokenMasks, pack_sequences
from agent_rft.types import TrainSegment
from tests.support.paths import BASE

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["answer"],
    "additionalProperties": False,
}
STRUCTURE = build_turn_structure((), SCHEMA, HERMES.call_syntaxes)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(BASE))


@pytest.fixture(scope="module")
def grammars() -> GrammarMasks:
    return GrammarMasks(BASE)


def rollout(renderer: Renderer, *turns: str, structure: str | None = STRUCTURE) -> TrainSegment:
    """Turns of these texts, each after five tokens that nobody sampled."""
    token_ids: list[int] = []
    mask: list[bool] = []
    for text in turns:
        sampled = [*renderer.encode_untrusted(text), renderer.tokenizer.eos_token_id]
        token_ids += [5] * 5 + sampled
        mask += [False] * 5 + [True] * len(sampled)
    zeros = np.zeros(len(mask), np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    return TrainSegment(np.array(token_ids, np.int32), np.array(mask), zeros, versions, 1.0, structure)


def batch_of(*sequences: TrainSegment) -> MicroBatch:
    [[batch]] = pack_sequences(sequences, num_ranks=1, budget=1000)
    return batch


def allowed(masks: TokenMasks) -> np.ndarray:
    """Whether each token [V] was allowed at each target [M]."""
    return np.unpackbits(masks.allowed.view(np.uint8), axis=1, bitorder="little")[masks.mask_index].astype(bool)


def test_each_turn_starts_its_grammar_and_every_sampled_token_is_allowed(
    renderer: Renderer, grammars: GrammarMasks
) -> None:
    twice, once = rollout(renderer, '{"answer": 42}', '{"answer":17}'), rollout(renderer, '{"answer": 99}')
    free = rollout(renderer, "well", structure=None)
    batch = batch_of(twice, free, once)
    kept, masks = grammars.constrain(batch)
    assert masks is not None
    assert (kept.weights == 1).all()
    found = allowed(masks)
    assert found[np.arange(batch.num_trained), batch.targets].all()
    first = [
        i
        for i, target in enumerate(batch.targets)
        if i == 0 or batch.logits_indices[i - 1] + 1 != batch.logits_indices[i]
    ]
    opening, end = renderer.encode_untrusted("{")[0], renderer.tokenizer.eos_token_id
    for i, number in enumerate(first):
        if masks.mask_index[number] != 0:
            assert np.flatnonzero(found[number]).tolist() == [opening], i
    assert (masks.mask_index == 0).sum() == free.loss_mask.sum()
    ends = np.flatnonzero((batch.targets == end) & (masks.mask_index != 0))
    assert [np.flatnonzero(found[i]).tolist() for i in ends] == [[end]] * 3
    assert len(masks.allowed) < batch.num_trained / 2, "equal masks are held once"


def test_a_batch_without_structures_has_no_masks(renderer: Renderer, grammars: GrammarMasks) -> None:
    batch = batch_of(rollout(renderer, "well", structure=None))
    assert grammars.constrain(batch) == (batch, None)


def test_tokens_that_the_grammar_refuses_carry_no_loss_up_to_the_end_of_their_turn(
    renderer: Renderer, grammars: GrammarMasks
) -> None:
    good, bad = '{"answer": 42}', '{"answer": no}'
    batch = batch_of(rollout(renderer, good, bad, good))
    kept, masks = grammars.constrain(batch)
    assert masks is not None
    length, refused = len(renderer.encode_untrusted(good)) + 1, len(renderer.encode_untrusted('{"answer": '))
    bad_length = len(renderer.encode_untrusted(bad)) + 1
    assert kept.weights.tolist() == [1] * (length + refused) + [0] * (bad_length - refused) + [1] * length
    assert (masks.mask_index[kept.weights == 0] == 0).all()
