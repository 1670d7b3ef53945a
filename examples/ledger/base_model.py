"""The untrained base model: a Qwen3 with 560,608 parameters."""

from collections.abc import Callable
from typing import Final

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from examples.ledger.vocabulary import PAD, PIECES, TOKEN_OF, TURN_END

NUM_LAYERS: Final = 2
EMBEDDING_STD: Final = 0.02


def build_model(seed: int) -> Qwen3ForCausalLM:
    """Return a float32 model with random weights; the same seed gives the same weights.

    Matrices are initialized with a standard deviation of 1 / sqrt(inputs), and less if they write into the residual
    stream. Embeddings start small, because training with small batches failed with large embeddings.
    """
    config = Qwen3Config(
        vocab_size=len(PIECES),
        hidden_size=160,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        intermediate_size=320,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=2048,
        eos_token_id=TOKEN_OF[TURN_END],
        pad_token_id=TOKEN_OF[PAD],
        bos_token_id=None,
        dtype="float32",
    )
    make: Callable[[Qwen3Config], Qwen3ForCausalLM] = Qwen3ForCausalLM  # its constructor is untyped
    model = make(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() != 2:
                continue
            std = EMBEDDING_STD if "embed" in name else parameter.shape[1] ** -0.5
            if "o_proj" in name or "down_proj" in name:
                std *= (2 * NUM_LAYERS) ** -0.5
            parameter.normal_(0, std, generator=generator)
    return model
