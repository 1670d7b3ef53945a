"""Tokens of a rollout as the engine saw them, with their text if the model's tokenizer is available."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from agent_rft.cluster.records.rollout_index import UnknownValue
from agent_rft.types import DiscardedRollout, Rollout

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a segment.

    Attributes:
        text: Text that the token adds. "" if the token is the first part of a character; None if there is no tokenizer.
        logprob: Log-probability in the engine; None if the token was not sampled.
        version: Policy version that sampled the token; None if it was not sampled.
    """

    id: int
    text: str | None
    logprob: float | None
    version: int | None


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Consecutive tokens of a segment, from token `start`. `num_tokens` is the number of tokens in the full segment."""

    start: int
    num_tokens: int
    tokens: list[Token]


def read_token_range(
    outcome: Rollout | DiscardedRollout, segment: int, start: int, limit: int, tokenizer: Tokenizer | None
) -> TokenRange:
    """Return at most `limit` tokens of a segment, from token `start`. Prompt and tool results are included.

    Raises:
        UnknownValue: The rollout was discarded, or the segment or token does not exist.
    """
    if isinstance(outcome, DiscardedRollout):
        raise UnknownValue("the rollout was discarded, so its tokens were not recorded", "rollout_id")
    if segment >= len(outcome.segments):
        last = len(outcome.segments) - 1
        raise UnknownValue(f"the rollout has no segment {segment}; the last segment is {last}", "segment")
    arrays = outcome.segments[segment]
    if start >= len(arrays.token_ids):
        last = len(arrays.token_ids) - 1
        raise UnknownValue(f"the segment has no token {start}; the last token is {last}", "start")
    part = slice(start, start + limit)
    ids = arrays.token_ids[part].tolist()
    texts = [None] * len(ids) if tokenizer is None else _decode_tokens(ids, tokenizer)
    rest = (arrays.loss_mask[part].tolist(), arrays.logprobs[part].tolist(), arrays.versions[part].tolist())
    tokens = [
        Token(id, text, logprob if sampled else None, version if sampled else None)
        for id, text, sampled, logprob, version in zip(ids, texts, *rest, strict=True)
    ]
    return TokenRange(start, len(arrays.token_ids), tokens)


def find_tokenizer(folders: Iterable[Path]) -> Tokenizer | None:
    """Load the tokenizer of the first model folder that has a readable tokenizer; folders may be glob patterns."""
    for folder in folders:
        if not folder.is_absolute():
            continue
        for path in sorted(folder.parent.glob(f"{folder.name}/{TOKENIZER}")):
            if (tokenizer := _read_tokenizer(path, path.stat().st_mtime_ns)) is not None:
                return tokenizer
    return None


@lru_cache(maxsize=4)
def _read_tokenizer(path: Path, mtime_ns: int) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - the library raises plain Exceptions
        return None


def _decode_tokens(ids: list[int], tokenizer: Tokenizer) -> list[str | None]:
    stream, texts = DecodeStream(skip_special_tokens=False), list[str | None]()
    for id in ids:
        try:
            texts.append(stream.step(tokenizer, id) or "")
        except Exception:  # noqa: BLE001 - raised for an incomplete character after a complete one
            stream = DecodeStream(skip_special_tokens=False)
            texts.append(tokenizer.decode([id], skip_special_tokens=False))
    return texts
