"""Client for an OpenAI-compatible `/v1/embeddings` endpoint, if the environment names one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import httpx
import numpy as np

from examples.finqa.library import Embed, Vectors

BATCH: Final = 64
MAX_CHARS: Final = 8_000
"""Maximum number of characters of a text that are embedded: about 2,000 tokens."""
TIMEOUT_S: Final = 60.0
MAX_CACHED: Final = 10_000
"""Maximum number of queries with a cached embedding. The rollouts of a group ask similar queries."""


class EmbeddingsFailed(Exception):
    """The model returned no valid embeddings."""


class Embeddings:
    """Embeddings by one model. Embeddings of single texts are cached."""

    def __init__(self, base_url: str, model: str, key: str | None, client: httpx.Client | None = None) -> None:
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._model = model
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = client or httpx.Client(timeout=TIMEOUT_S)
        self._client.headers.update(headers)
        self._one = lru_cache(MAX_CACHED)(lambda text: self._ask([text]))

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return the embeddings [N, D] of the texts, each of length 1.

        Raises:
            EmbeddingsFailed: The endpoint does not answer, or does not return one finite vector per text.
        """
        if len(texts) == 1:
            return self._one(texts[0])
        return np.concatenate([self._ask(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)])

    def _ask(self, texts: Sequence[str]) -> Vectors:
        body = {"model": self._model, "input": [text[:MAX_CHARS] for text in texts], "encoding_format": "float"}
        try:
            answer = self._client.post(self._url, json=body).raise_for_status()
            data = sorted(answer.json()["data"], key=lambda each: each["index"])
            found = np.array([each["embedding"] for each in data], dtype=np.float32)
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise EmbeddingsFailed(f"{self._url}: {error}") from None
        if found.ndim != 2 or len(found) != len(texts):
            raise EmbeddingsFailed(f"{self._url}: not {len(texts)} vectors of one length")
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and (lengths > 0).all()):
            raise EmbeddingsFailed(f"{self._url}: a vector of length 0 or that is not finite")
        return np.asarray(found / lengths, dtype=np.float32)


def embeddings_of(environment: Mapping[str, str]) -> Embed | None:
    """Return the model of FINQA_EMBEDDINGS_URL (such as http://10.0.0.7:8000/v1), `_MODEL` and `_KEY`, or None."""
    if not (url := environment.get("FINQA_EMBEDDINGS_URL")):
        return None
    if not environment.get("FINQA_EMBEDDINGS_MODEL"):
        raise SystemExit("FINQA_EMBEDDINGS_MODEL is not set: name the model of FINQA_EMBEDDINGS_URL")
    return Embeddings(url, environment["FINQA_EMBEDDINGS_MODEL"], environment.get("FINQA_EMBEDDINGS_KEY"))
