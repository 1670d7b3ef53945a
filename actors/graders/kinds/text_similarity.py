"""Grader of kind `text_similarity`: the similarity of two rendered templates, from 0 to 1."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from async_lru import alru_cache
from numpy.typing import NDArray

from agent_rft.actors.endpoints.model_client import MODEL_SERVER_ERROR, ModelClient
from agent_rft.actors.graders.grader_protocol import StringWorker
from agent_rft.actors.graders.grader_templates import render
from agent_rft.actors.graders.kinds.similarity import MAX_CHARS, SimilarityMetric, load_similarity_metric
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import TextSimilarityGrader
from agent_rft.types import Grade

MAX_CACHED_EMBEDDINGS = 2_048


class TextSimilarity:
    """A grader of kind `text_similarity`. `label` names the grader in messages.

    `client` requests the embeddings for the metric `cosine`; it is None for other metrics.
    """

    def __init__(self, spec: TextSimilarityGrader, label: str, client: ModelClient | None) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"
        self._work = StringWorker()
        self._cosine = None if client is None else Cosine(client, self._what)
        self._metric: SimilarityMetric | None = (
            load_similarity_metric(spec.evaluation_metric) if client is None else None
        )

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        text = render(self._spec.input, f"{self._what}, input", item=item, sample=sample)
        reference = render(self._spec.reference, f"{self._what}, reference", item=item, sample=sample)
        if self._cosine is not None:
            return await self._cosine.grade(text, reference)
        assert self._metric is not None
        metric = self._metric
        return Grade(await self._work.run(lambda: metric(text, reference), len(text) + len(reference)))

    async def close(self) -> None:
        self._work.close()
        if self._cosine is not None:
            await self._cosine.close()


class Cosine:
    """Cosine similarity of the embeddings of two texts, with negative values clipped to 0.

    Embeddings are cached by text, because all rollouts of a row have the same reference.
    """

    def __init__(self, client: ModelClient, what: str) -> None:
        self._client = client
        self._what = f"{what}: model {client.name!r}"
        self._embedding = alru_cache(MAX_CACHED_EMBEDDINGS)(self._request_embedding)

    async def grade(self, text: str, reference: str) -> Grade:
        text, reference = text[:MAX_CHARS].strip(), reference[:MAX_CHARS].strip()
        if not (text and reference):
            return Grade(float(text == reference))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._embedding(each)) for each in (text, reference)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        ours, theirs = (task.result() for task in tasks)
        if ours.shape != theirs.shape:
            raise self._make_embedding_error("returned two embeddings of different lengths")
        return Grade(float(np.clip(ours @ theirs, 0.0, 1.0)))

    async def close(self) -> None:
        await self._client.close()

    async def _request_embedding(self, text: str) -> NDArray[np.float32]:
        """Request the embedding of `text`, and return it scaled to length 1."""
        answer = await self._client.ask({"input": [text], "encoding_format": "float"})
        try:
            vector = np.asarray(answer["data"][0]["embedding"], dtype=np.float64)
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._make_embedding_error("returned no data[0].embedding") from None
        norm = float(np.linalg.norm(vector)) if vector.ndim == 1 else 0.0
        if not (np.isfinite(norm) and norm > 0):
            raise self._make_embedding_error("returned an embedding that is not a finite, non-zero vector")
        return (vector / norm).astype(np.float32)

    def _make_embedding_error(self, why: str) -> GraderFailed:
        return GraderFailed(f"{self._what} {why} [{MODEL_SERVER_ERROR}]", code=MODEL_SERVER_ERROR)
