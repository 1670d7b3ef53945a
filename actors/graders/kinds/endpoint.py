"""The grader of kind `endpoint`, the user's own: POST {sample, item, trace_id} is answered by {"score": number}."""

from __future__ import annotations

from typing import Any

from actors.endpoints.answer import HttpAnswer
from actors.endpoints.client import EndpointClient
from actors.endpoints.signing import Signer
from actors.graders.base import finite_number, outside
from actors.runtime.timing import Timing
from trainer.errors import GraderFailed
from trainer.spec.graders import EndpointGrader
from trainer.spec.operator import Operator
from trainer.types import Grade

SCORE_KEYS = ("score", "reward")
"""The first of these keys in the answer counts."""


class EndpointGrade:
    """A grader of kind `endpoint`. `label` names it in messages, and makes idempotency keys unique within a `multi`."""

    def __init__(
        self, spec: EndpointGrader, label: str, operator: Operator, timing: Timing, signer: Signer | None = None
    ) -> None:
        self._label = label
        self._range = spec.range
        self._client = EndpointClient(
            f"grader {label!r}",
            spec.url,
            spec,
            GraderFailed,
            timing,
            allowed_networks=operator.allowed_networks,
            hedge_after_s=spec.hedge_after_s,
            signer=signer,
        )

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        body = {"sample": sample, "item": item, "trace_id": trace_id}
        answer = await self._client.post(body, f"{trace_id}/{self._label}", trace_id)
        return Grade(self._score(answer), latency_s=answer.latency_s)

    async def close(self) -> None:
        await self._client.close()

    def _score(self, answer: HttpAnswer) -> float:
        if not answer.ok:
            raise self._client.bad_answer(answer, "a grader must answer 200 with a score")
        try:
            body = None if answer.truncated else answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise self._client.bad_answer(answer, 'the body is not a JSON object such as {"score": 0.5}')
        for key in SCORE_KEYS:
            if key in body:
                where = f"{self._client.what} failed: the {key} in its answer"
                score = finite_number(body[key], where)
                if problem := outside(score, self._range):
                    raise GraderFailed(f"{where} {problem}")
                return score
        raise self._client.bad_answer(answer, 'the object has no "score"')
