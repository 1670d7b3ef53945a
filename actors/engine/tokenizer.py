"""The tokenizer of an engine's model."""

from __future__ import annotations

from trainer.chat.renderer import Tokenizer


def load_tokenizer(model: str) -> Tokenizer:
    """The Hugging Face tokenizer of a model folder."""
    from transformers import AutoTokenizer  # seconds of imports, which only the process of an engine needs

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model)
    return tokenizer
