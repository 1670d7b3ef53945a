"""Token masks of constrained decoding: for each sampled token, the tokens that the turn's grammar allowed there.

The engine samples from the masked policy, so the learner must also compute and train the masked policy. The masks are
recomputed from token ids with the engine's library, so rollouts do not have to store them.
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

from agent_rft.trainer.model.micro_batches import MicroBatch, TokenMasks

CACHE_BYTES = 256 << 20
"""Size of the cache of compiled grammars."""


class GrammarMasks:
    """Computes token masks for the model in a local folder.

    The model's tokenizer is loaded when the first grammar is needed. `stop_token_ids` are the engine's stop tokens; if
    empty, the tokenizer's end token is used.
    """

    def __init__(self, model: Path, stop_token_ids: Sequence[int] = (), num_threads: int = 1) -> None:
        self._model = model
        self._end_token_ids = stop_token_ids
        self._num_threads = num_threads

    def constrain(self, batch: MicroBatch) -> tuple[MicroBatch, TokenMasks | None]:
        """Return the batch and the masks of its targets; the masks are None if no sequence has a structural tag.

        If the grammar rejects a target here although the engine accepted it, the engine uses another version of the
        library or tokenizer. This target and the rest of its turn then get weight 0 in the returned batch. Computing
        the masks takes about 50 microseconds per token.
        """
        if not any(batch.structures):
            return batch, None
        matchers = self._matchers
        words, weights = matchers.words, batch.weights.copy()
        distinct = {np.full_like(words, -1).tobytes(): 0}
        which = np.zeros(batch.num_trained, np.int64)
        for turn, structure in _find_turns(batch):
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
    """Creates grammar matchers in the same way as the engine.

    The matchers fill `bitmask`. `words` is a numpy array that shares the memory of `bitmask`.
    """

    def __init__(self, tokenizer: Any, stop_token_ids: Sequence[int], vocabulary: int, num_threads: int) -> None:
        import xgrammar  # takes a second, and only jobs with a response format need it

        tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=num_threads, cache_limit_bytes=CACHE_BYTES)
        self._matcher = xgrammar.GrammarMatcher
        self._stop_token_ids = list(stop_token_ids)
        self.bitmask = xgrammar.allocate_token_bitmask(1, vocabulary)
        self.words: NDArray[np.int32] = self.bitmask.numpy()[0]

    def start(self, structure: str) -> Any:
        return self._matcher(
            self._compiler.compile_structural_tag(structure), override_stop_tokens=self._stop_token_ids
        )


def _find_turns(batch: MicroBatch) -> list[tuple[slice, str]]:
    """Return (targets, structural tag) of each turn that was sampled under a structural tag.

    The targets of a turn are consecutive tokens; tokens that were not sampled separate two turns.
    """
    owners = np.searchsorted(np.cumsum(batch.lengths), batch.logits_indices, side="right")
    starts = np.flatnonzero((np.diff(batch.logits_indices, prepend=-2) != 1) | (np.diff(owners, prepend=-1) != 0))
    stops = [*starts[1:], batch.num_trained]
    turns = [(slice(start, stop), batch.structures[owners[start]]) for start, stop in zip(starts, stops, strict=True)]
    return [(turn, structure) for turn, structure in turns if structure is not None]
