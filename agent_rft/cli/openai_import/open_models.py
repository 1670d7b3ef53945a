"""Table of open-weights models that can replace OpenAI's models, and the function that proposes one of them.

`docs/models.md` shows the same table; a test compares the two tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Language model with open weights."""

    name: str
    """Name at Hugging Face."""
    parameters_in_billions: float
    """Parameters in billions."""
    context_length: int
    """Maximum tokens in a conversation: `max_position_embeddings` in the model's `config.json`."""
    tool_parser: str | None
    """Name of vLLM's parser for the model's tool calls; None if the model does not support tools."""
    license: str
    """License of the weights."""


OPEN_MODELS = (
    OpenModel("Qwen/Qwen3-0.6B", 0.6, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-1.7B", 1.7, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-4B", 4.0, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-8B", 8.2, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-14B", 14.8, 40_960, "hermes", "Apache-2.0"),
    OpenModel("Qwen/Qwen3-32B", 32.8, 40_960, "hermes", "Apache-2.0"),
)
"""Models to choose from, smallest first."""
MIN_BILLIONS = {"nano": 1.0, "mini": 4.0}
"""Minimum size of a replacement, in billions of parameters, by a word in the name of the OpenAI model.

For example, a model with "mini" in its name is replaced by a model with at least 4 billion parameters. The sizes are
guesses, because OpenAI does not publish its models' sizes.
"""
DEFAULT_MIN_BILLIONS = 8.0


def propose_model(model: str, context: int, *, tools: bool) -> OpenModel:
    """Return the smallest model that can replace OpenAI's `model` with at least `context` tokens of context.

    If `tools` is true, the returned model supports tools. If no model fits, return the model with the longest context.
    """
    words = re.split(r"[^a-z0-9]+", model.lower())
    min_billions = next((size for word, size in MIN_BILLIONS.items() if word in words), DEFAULT_MIN_BILLIONS)
    candidates = [found for found in OPEN_MODELS if found.tool_parser is not None or not tools]
    fitting = [
        found
        for found in candidates
        if found.parameters_in_billions >= min_billions and found.context_length >= context
    ]
    return (
        fitting[0]
        if fitting
        else max(
            candidates, key=lambda found: (found.context_length, -abs(found.parameters_in_billions - min_billions))
        )
    )
