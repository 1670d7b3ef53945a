"""Whether a text fits a format of constrained decoding, without a model."""

from __future__ import annotations

import json
from typing import Any

import xgrammar

_TOKENS = xgrammar.TokenizerInfo([*(bytes([i]) for i in range(256)), b"</s>"], stop_token_ids=[256])


def fits(content: dict[str, Any], text: str) -> bool:
    """Whether the whole text, and no more, is of this format of a structural tag."""
    structure = json.dumps({"type": "structural_tag", "format": content})
    compiler = xgrammar.GrammarCompiler(_TOKENS, max_threads=1, cache_enabled=False)
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(structure))
    return bool(matcher.accept_string(text)) and bool(matcher.accept_token(256))
