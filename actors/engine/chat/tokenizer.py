"""The tokenizer of an engine's model."""

from __future__ import annotations

from pathlib import Path

from actors.weights.adapter import AdapterFolder
from trainer.chat.renderer import Tokenizer


def load_tokenizer(model: str) -> Tokenizer:
    """The Hugging Face tokenizer of a model folder; an adapter without one has that of its base."""
    from transformers import AutoTokenizer  # seconds of imports, which only the process of an engine needs

    adapter = AdapterFolder.read(Path(model))
    if adapter is not None and not (adapter.path / "tokenizer_config.json").exists():
        model = str(adapter.base)
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model)
    return tokenizer
