"""Rotary positions on CPUs: those of vLLM's reference, in each shape that its models use."""

from __future__ import annotations

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from agent_rft.actors.engine.worker.worker_extension import apply_rotary_positions

NUM_TOKENS, SIZE = 7, 32


@pytest.mark.parametrize("is_neox_style", [True, False])
@pytest.mark.parametrize("shape", [(NUM_TOKENS, -1), (NUM_TOKENS, -1, SIZE)], ids=["flat", "heads"])
def test_every_head_of_every_token_is_rotated(shape: tuple[int, ...], is_neox_style: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(NUM_TOKENS, heads, SIZE, generator=generator) for heads in (2, 1))
    with set_current_vllm_config(VllmConfig()):
        rotary = RotaryEmbedding(SIZE, SIZE, 64, 1e4, is_neox_style, torch.float32)
        positions = torch.arange(3, 3 + NUM_TOKENS)
        wanted, wanted_key = rotary.forward_native(positions, query, key)
        found, found_key = apply_rotary_positions(rotary, positions, query.clone().view(shape), key.clone().view(shape))
        alone, none = apply_rotary_positions(rotary, positions, query.clone().view(shape))
    assert none is None
    torch.testing.assert_close(found, wanted.view(shape))
    torch.testing.assert_close(alone, wanted.view(shape))
    torch.testing.assert_close(found_key, wanted_key.view(shape))
