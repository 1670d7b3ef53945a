"""Grader of kind `endpoint`, which sends POST {sample, item, trace_id} to the user's server.

The server answers {"score": 0.5}, or {"score": 0.5, "reason": "no unit", "scores": {"value": 1, "unit": 0}}. `scores`
contains the parts of the score. `reason` and `scores` are recorded, but do not affect the grade. If they are invalid,
they are ignored, and the rollout is not discarded. With `"train": false`, the rollout is not trained on.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.http_response import HttpResponse
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.graders.grader_protocol import (
    UNGATED,
    check_finite_number,
    check_train,
    range_problem,
    truncate_reason,
)
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import EndpointGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade

SCORE_KEYS = ("score", "reward")
"""Keys of the score in an answer; the first one that is present is used."""
MAX_PARTS, MAX_PART_CHARS = 16, 64
"""Maximum number of different part names of a grader, and maximum length of a part name.

Each part becomes a curve and a metric. After MAX_PARTS names have occurred, parts with other names are ignored."""
MAX_READ_PARTS = 1_000
"""Maximum number of parts that are read from an answer."""


class EndpointCaller:
    """A grader of kind `endpoint`. `label` names the grader in messages and in idempotency keys."""

    def __init__(
        self,
        spec: EndpointGrader,
        label: str,
        operator: OperatorConfig,
        timing: Timing,
        signer: Signer | None = None,
        *,
        has_answered: bool = False,
    ) -> None:
        self._label = label
        self._range = spec.range
        self._parts: set[str] = set()
        self._client = EndpointClient(
            f"grader {label!r}",
            spec.url,
            spec,
            GraderFailed,
            timing,
            allowed_networks=operator.allowed_destinations,
            hedge_after_s=spec.hedge_after_s,
            signer=signer,
            has_answered=has_answered,
        )

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        body = {"sample": sample, "item": item, "trace_id": trace_id}
        answer = await self._client.post(body, f"{trace_id}/{self._label}", trace_id)
        found = self._parse_object(answer)
        where = f"{self._client.what} failed: the value of `train` in its answer"
        return Grade(
            self._parse_score(found, answer),
            self._parse_scores(found),
            answer.latency_s,
            reason=self._parse_reason(found),
            train=check_train(found.get("train", True), where),
        )

    async def close(self) -> None:
        await self._client.close()

    def _parse_object(self, answer: HttpResponse) -> dict[str, Any]:
        if not answer.ok:
            raise self._client.make_bad_answer_error(answer, "a grader must respond with status 200 and a score")
        if (body := answer.json_object) is None:
            why = f'the body is not a JSON object such as {{"score": 0.5}}{answer.json_problem}'
            raise self._client.make_bad_answer_error(answer, why)
        return body

    def _parse_score(self, body: dict[str, Any], answer: HttpResponse) -> float:
        for key in SCORE_KEYS:
            if key in body:
                where = f"{self._client.what} failed: the {key} in its answer"
                score = check_finite_number(body[key], where)
                if problem := range_problem(score, self._range):
                    raise GraderFailed(f"{where} {problem}")
                return score
        raise self._client.make_bad_answer_error(answer, 'the object has no "score"')

    def _parse_scores(self, body: dict[str, Any]) -> dict[str, float]:
        found: dict[str, float] = {}
        parts = body.get("scores")
        for part, value in islice(parts.items(), MAX_READ_PARTS) if isinstance(parts, dict) else ():
            name = self._client.scrub(part)
            is_full = name not in self._parts and len(self._parts) >= MAX_PARTS
            if len(name) <= MAX_PART_CHARS and name != UNGATED and not is_full:
                with suppress(GraderFailed):
                    found[name] = check_finite_number(value, name)
                    self._parts.add(name)
        return found

    def _parse_reason(self, body: dict[str, Any]) -> str:
        reason = body.get("reason")
        return truncate_reason(self._client.scrub(reason)) if isinstance(reason, str) else ""
