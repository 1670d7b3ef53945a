"""The tokenizer of an engine's model."""

from __future__ import annotations

from pathlib import Path

from agent_rft.chat.renderer import Tokenizer
from agent_rft.trainer.learner.adapter import AdapterFolder


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the Hugging Face tokenizer in a folder."""
    from transformers import AutoTokenizer  # the import takes seconds, and few processes need it

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    return tokenizer


def load_engine_tokenizer(model: Path) -> Tokenizer:
    """Load the tokenizer in the folder `model`. An adapter without a tokenizer has the tokenizer of its base model."""
    adapter = AdapterFolder.read(model)
    if adapter is not None and not (adapter.path / "tokenizer_config.json").exists():
        return load_tokenizer(adapter.base)
    return load_tokenizer(model)
