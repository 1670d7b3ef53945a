"""A judge model's score or label, read strictly. Equal questions are asked once; what a judge refuses, or answers in a
form that cannot be read even when asked again, is a failure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from async_lru import alru_cache

from actors.endpoints.answer import cut
from actors.endpoints.model_client import ModelClient
from actors.graders.base import finite_number
from actors.graders.kinds.messages import chat_messages
from actors.graders.templates import render
from trainer.errors import GraderFailed
from trainer.spec.graders import LabelModelGrader, ScoreModelGrader
from trainer.types import Grade

REFUSAL_ERROR = "model_grader_refusal_error"
PARSE_ERROR = "model_grader_parse_error"
MAX_ANSWERS = 3
"""An answer that cannot be read is asked for so often in all."""
MAX_CACHED_ANSWERS = 4_096
EXCERPT_CHARS = 200
REASON_CHARS = 1_000
PARAMETERS = {"max_completions_tokens": "max_completion_tokens"}
"""The name in OpenAI's grader types -> the chat API's."""
OUR_PARAMETERS = frozenset({"model", "messages", "response_format", "stream", "n", "tools", "tool_choice"})
"""What `sampling_params` may not set."""


class _Unreadable(Exception):
    """An answer that is not what was asked for; says why."""


@dataclass(unsafe_hash=True)
class _Question:
    """Questions with equal bodies are one. `num_tokens` counts what was spent on this very one: a question that
    another one's answer serves costs nothing.
    """

    body: str
    num_tokens: int = field(default=0, hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Verdict:
    value: float
    reason: str


class Judge:
    """A grader of kind `score_model` or `label_model`. `label` names it in messages."""

    def __init__(self, spec: ScoreModelGrader | LabelModelGrader, label: str, client: ModelClient) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"
        self._client = client
        self._params = {PARAMETERS.get(k, k): v for k, v in spec.sampling_params.items() if v is not None}
        schema = answer_schema(spec)
        self._format = {"type": "json_schema", "json_schema": {"name": "grade", "strict": True, "schema": schema}}
        self._verdict = alru_cache(MAX_CACHED_ANSWERS)(self._ask)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        def fill(template: str, place: str) -> str:
            return render(template, f"{self._what}, {place}", item=item, sample=sample)

        begun = time.monotonic()
        body = {"messages": chat_messages(self._spec.input, fill), "response_format": self._format, **self._params}
        question = _Question(json.dumps(body))
        verdict = await self._verdict(question)
        tokens = {self._client.name: question.num_tokens} if question.num_tokens else {}
        return Grade(verdict.value, latency_s=time.monotonic() - begun, reason=verdict.reason, judge_tokens=tokens)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, question: _Question) -> _Verdict:
        body = json.loads(question.body)
        why, said = "", ""
        for attempt in range(MAX_ANSWERS):
            if isinstance(body.get("seed"), int):  # the same one would give the same answer again
                body["seed"] += min(attempt, 1)
            answer = await self._client.ask(body)
            question.num_tokens += tokens_of(answer)
            try:
                said = self._content(answer)
                return self._read(said)
            except _Unreadable as unreadable:
                why = str(unreadable)
        excerpt = cut(" ".join(self._client.scrub(said).split()), EXCERPT_CHARS) or "nothing"
        raise self._failed(f"{why}, {MAX_ANSWERS} times; it gave at last: {excerpt}", PARSE_ERROR)

    def _content(self, answer: Mapping[str, Any]) -> str:
        """The text of a chat completion.

        Raises:
            GraderFailed: the judge refused.
            _Unreadable: there is none.
        """
        try:
            choice = answer["choices"][0]
            message, finish = choice["message"], choice.get("finish_reason")
            refusal, content = message.get("refusal"), message.get("content")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise _Unreadable("its answer has no choices[0].message") from None
        if refusal or finish == "content_filter":
            shown = cut(" ".join(self._client.scrub(str(refusal or "by its content filter")).split()), EXCERPT_CHARS)
            raise self._failed(f"it refused to grade: {shown}", REFUSAL_ERROR)
        if finish == "length":
            raise _Unreadable("its answer was cut off: raise max_completions_tokens in sampling_params")
        if not isinstance(content, str):
            raise _Unreadable("its answer holds no text")
        return content

    def _read(self, content: str) -> _Verdict:
        """What the judge's JSON says."""
        try:
            verdict = json.loads(_bare(content))
        except (ValueError, RecursionError):
            raise _Unreadable("its answer is no JSON") from None
        if not isinstance(verdict, dict) or "result" not in verdict:
            raise _Unreadable('its answer is no object with "result"')
        result, reason = verdict["result"], _conclusion(verdict.get("steps"))
        if isinstance(self._spec, ScoreModelGrader):
            try:
                score = finite_number(result, "its result")
            except GraderFailed as failed:
                raise _Unreadable(failed.message) from None
            low, high = self._spec.range
            return _Verdict(min(high, max(low, score)), reason)
        if result not in self._spec.labels:
            raise _Unreadable(f"its result is {cut(json.dumps(result), EXCERPT_CHARS)}, but must be one of the labels")
        return _Verdict(float(result in self._spec.passing_labels), f"{result}: {reason}" if reason else result)

    def _failed(self, why: str, code: str) -> GraderFailed:
        return GraderFailed(f"{self._what}: model {self._client.name!r}: {why} [{code}]", code=code)


def answer_schema(spec: ScoreModelGrader | LabelModelGrader) -> dict[str, Any]:
    """The JSON schema that a judge's answer is held to."""
    texts = {name: {"type": "string"} for name in ("description", "conclusion")}
    steps = {"type": "array", "items": _object(texts)}
    if isinstance(spec, LabelModelGrader):
        return _object({"steps": steps, "result": {"type": "string", "enum": list(spec.labels)}})
    low, high = spec.range
    return _object({"steps": steps, "result": {"type": "number", "description": f"from {low:g} to {high:g}"}})


def tokens_of(answer: Mapping[str, Any]) -> int:
    """The tokens that an answer of the API says it cost; 0 where it does not say."""
    usage = answer.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and total > 0 else 0


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """A schema as strict decoding wants it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _bare(content: str) -> str:
    """The answer without the thoughts before it and a fence around it, which some servers leave in."""
    text = content.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json")
    return text


def _conclusion(steps: Any) -> str:
    """What the judge concluded, for whoever reads the trace."""
    found = [step.get("conclusion") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return cut(" ".join(" ".join(text for text in found if isinstance(text, str)).split()), REASON_CHARS)
