"""The masks of constrained decoding: which tokens the grammar of a turn allowed before each token was sampled.

The engine samples from the policy that is masked so, and the learner must compare and train that same policy. Masks are
computed again from token ids, by the library that the engine uses, so no rollout has to hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer

from agent_rft.trainer.model.batch import MicroBatch, TokenMasks

CACHE_BYTES = 256 << 20
"""Size of the cache of compiled grammars: rows may have tools of their own."""


class Grammars:
    """Computes masks for the model in a local folder. Its tokenizer is read when the first grammar is needed.

    `end_token_ids` end a turn, as in the engine; none: the tokenizer's own end token.
    """

    def __init__(self, model: Path, end_token_ids: Sequence[int] = (), num_threads: int = 1) -> None:
        self._model = model
        self._end_token_ids = end_token_ids
        self._num_threads = num_threads

    def constrain(self, batch: MicroBatch) -> tuple[MicroBatch, TokenMasks | None]:
        """The masks of a batch's targets, None if it has no structures. Takes some 50 microseconds per token.

        In the batch that is returned, tokens carry no loss from the first one of a turn that its grammar refuses here.
        The engine did not refuse it, so another version of the library or of the tokenizer has sampled it.
        """
        if not any(batch.structures):
            return batch, None
        matchers = self._matchers
        words, weights = matchers.words, batch.weights.copy()
        distinct = {np.full_like(words, -1).tobytes(): 0}
        which = np.zeros(batch.num_trained, np.int64)
        for turn, structure in _turns(batch):
            matcher = matchers.start(structure)
            for target in range(turn.start, turn.stop):
                matcher.fill_next_token_bitmask(matchers.bitmask)
                if not matcher.accept_token(int(batch.targets[target])):
                    weights[target : turn.stop] = 0
                    break
                which[target] = distinct.setdefault(words.tobytes(), len(distinct))
        allowed = np.frombuffer(b"".join(distinct), np.int32).reshape(len(distinct), -1)
        return replace(batch, weights=weights), TokenMasks(allowed, which)

    @cached_property
    def _matchers(self) -> _Matchers:
        vocabulary = AutoConfig.from_pretrained(self._model).get_text_config().vocab_size
        tokenizer = AutoTokenizer.from_pretrained(self._model)
        return _Matchers(tokenizer, self._end_token_ids or [tokenizer.eos_token_id], vocabulary, self._num_threads)


class _Matchers:
    """Matchers of grammars as the engine makes them, and the bitmask that they fill, also as `words`."""

    def __init__(self, tokenizer: Any, end_token_ids: Sequence[int], vocabulary: int, num_threads: int) -> None:
        import xgrammar  # a second, which only jobs with a response format need

        tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=num_threads, cache_limit_bytes=CACHE_BYTES)
        self._matcher = xgrammar.GrammarMatcher
        self._ends = list(end_token_ids)
        self.bitmask = xgrammar.allocate_token_bitmask(1, vocabulary)
        self.words: NDArray[np.int32] = self.bitmask.numpy()[0]

    def start(self, structure: str) -> Any:
        return self._matcher(self._compiler.compile_structural_tag(structure), override_stop_tokens=self._ends)


def _turns(batch: MicroBatch) -> list[tuple[slice, str]]:
    """The targets of each turn that was sampled under a structure, and the structure.

    A turn's tokens follow each other; before the next turn there are tokens that nobody sampled.
    """
    owners = np.searchsorted(np.cumsum(batch.lengths), batch.logits_indices, side="right")
    starts = np.flatnonzero((np.diff(batch.logits_indices, prepend=-2) != 1) | (np.diff(owners, prepend=-1) != 0))
    stops = [*starts[1:], batch.num_trained]
    turns = [(slice(start, stop), batch.structures[owners[start]]) for start, stop in zip(starts, stops, strict=True)]
    return [(turn, structure) for turn, structure in turns if structure is not None]
