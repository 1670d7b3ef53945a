"""Graders of kind `score_model` and `label_model`, which ask a judge model for a score or a label.

Identical questions are asked only once. Grading fails if the judge refuses to grade, or if its answer is still invalid
after retries. If the operator sets `scoring` to logprobs, the grade is computed from log-probabilities: see
`judge_logprobs`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from async_lru import alru_cache

from agent_rft.actors.endpoints.model_client import ModelClient
from agent_rft.actors.endpoints.network.json_reader import read_json
from agent_rft.actors.graders.grader_protocol import check_finite_number, truncate_reason
from agent_rft.actors.graders.grader_templates import MAX_CHARS, render
from agent_rft.actors.graders.kinds.judge_logprobs import (
    LOGPROBS_PARAMETERS,
    MissingLabel,
    MissingLogprobs,
    label_grades,
    weigh_labels,
)
from agent_rft.actors.graders.kinds.judge_messages import chat_messages, escape_markers
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import LabelModelGrader, ScoreModelGrader
from agent_rft.types import Grade

REFUSAL_ERROR = "model_grader_refusal_error"
PARSE_ERROR = "model_grader_parse_error"
MAX_ANSWERS = 3
"""Maximum number of times that a question is asked; it is asked again only after an invalid answer."""
MAX_CACHED_ANSWERS = 4_096
PARAMETERS = {"max_completions_tokens": "max_completion_tokens"}
"""Name in OpenAI's grader types -> name in the chat API."""
RESERVED_PARAMETERS = frozenset({"model", "messages", "response_format", "stream", "n", "tools", "tool_choice"})
"""Parameters that the grader sets; `sampling_params` must not contain them."""
LABEL_FIX = (
    "ask for one of the labels and nothing else, show examples in earlier user and assistant messages, and use short "
    "labels such as yes and no; a judge that reasons before it answers does not support log-probabilities"
)


class _InvalidAnswer(Exception):
    """The judge's answer is not in the requested format; the message is the reason."""


@dataclass(unsafe_hash=True)
class _Question:
    """Request to the judge. `digest` is the hash of `body`, and the key of the cached answer.

    `num_tokens` counts the tokens spent on this question; it stays 0 if the answer comes from the cache.
    """

    digest: bytes
    body: str = field(hash=False, compare=False)
    num_tokens: int = field(default=0, hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Verdict:
    value: float
    reason: str


class Judge:
    """A grader of kind `score_model` or `label_model`. `label` names the grader in messages."""

    def __init__(self, spec: ScoreModelGrader | LabelModelGrader, label: str, client: ModelClient) -> None:
        self._spec = spec
        self._what = f"grader {label!r}"
        self._client = client
        self._params = {PARAMETERS.get(k, k): v for k, v in spec.sampling_params.items() if v is not None}
        self._logprobs_parameters: Mapping[str, Any] = LOGPROBS_PARAMETERS if client.uses_logprobs else {}
        self._schema = answer_schema(spec)
        self._verdict = alru_cache(MAX_CACHED_ANSWERS)(self._ask_for_logprobs if client.uses_logprobs else self._ask)

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        left_chars = MAX_CHARS

        def fill(template: str, field: str) -> str:
            nonlocal left_chars
            where = f"{self._what}, {field}"
            text = render(template, where, item=item, sample=sample, max_chars=left_chars, escape=escape_markers)
            left_chars -= len(text)
            return text

        started = time.monotonic()
        body = {"messages": chat_messages(self._spec.input, fill), **self._params, **self._logprobs_parameters}
        text = json.dumps(body)
        question = _Question(hashlib.sha256(text.encode()).digest(), text)
        verdict = await self._verdict(question)
        tokens = {self._client.name: question.num_tokens} if question.num_tokens else {}
        return Grade(verdict.value, latency_s=time.monotonic() - started, reason=verdict.reason, judge_tokens=tokens)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, question: _Question) -> _Verdict:
        body = json.loads(question.body)
        question.body = ""  # frees the memory, since the cache keeps the question
        why, content = "", ""
        for attempt in range(MAX_ANSWERS):
            if isinstance(body.get("seed"), int):  # the same seed would return the same answer again
                body["seed"] += min(attempt, 1)
            answer = await self._client.ask(body, self._schema)
            question.num_tokens += total_usage_tokens(answer)
            try:
                content = self._get_content(answer)
                return await self._read_verdict(content)
            except _InvalidAnswer as invalid:
                why = str(invalid)
        excerpt = self._client.excerpt(content) or "(empty)"
        raise self._make_error(f"{why} ({MAX_ANSWERS} attempts); the last answer was {excerpt}", PARSE_ERROR)

    async def _ask_for_logprobs(self, question: _Question) -> _Verdict:
        """Compute the verdict from log-probabilities. Asks once, because another answer would have the same values."""
        body = json.loads(question.body)
        question.body = ""
        name = self._client.name
        fix = (
            "serve the judge with a server that returns top_logprobs, such as vLLM or `agent-rft serve`, or remove "
            f"`scoring` from models.{name} in the operator's configuration"
        )
        try:
            answer = await self._client.ask(body)
            question.num_tokens += total_usage_tokens(answer)
            value, shares = weigh_labels(self._get_choice(answer), label_grades(self._spec))
        except (_InvalidAnswer, MissingLogprobs) as error:
            raise self._make_error(str(error), PARSE_ERROR, fix) from None
        except MissingLabel as error:
            raise self._make_error(self._client.excerpt(str(error)), PARSE_ERROR, LABEL_FIX) from None
        except GraderFailed as error:
            if error.details.get("kind") != "bad_answer":
                raise
            raise GraderFailed(
                f"{error.problem}: {fix}", **(error.details | {"problem": error.problem, "fix": fix})
            ) from None
        return _Verdict(value, ", ".join(f"{label} {share:.3f}" for label, share in shares.items()))

    def _get_choice(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first choice of a chat completion.

        Raises:
            GraderFailed: The judge refused to grade.
            _InvalidAnswer: The answer has no choice with a message.
        """
        try:
            choice: dict[str, Any] = answer["choices"][0]
            refusal, finish = choice["message"].get("refusal"), choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise _InvalidAnswer("the judge's answer has no choices[0].message") from None
        if refusal or finish == "content_filter":
            shown = self._client.excerpt(str(refusal or "blocked by its content filter"))
            raise self._make_error(f"the judge refused to grade: {shown}", REFUSAL_ERROR)
        return choice

    def _get_content(self, answer: Mapping[str, Any]) -> str:
        """Return the text of a chat completion.

        Raises:
            GraderFailed: The judge refused to grade.
            _InvalidAnswer: The answer has no text, or was truncated.
        """
        choice = self._get_choice(answer)
        content = choice["message"].get("content")
        if choice.get("finish_reason") == "length":
            raise _InvalidAnswer("the judge's answer was truncated: raise max_completions_tokens in sampling_params")
        if not isinstance(content, str):
            raise _InvalidAnswer("the judge's answer has no text")
        return content

    async def _read_verdict(self, content: str) -> _Verdict:
        """Read the verdict in the judge's JSON.

        Raises:
            _InvalidAnswer: The JSON, the result or the label is invalid.
        """
        try:
            verdict = (await read_json(_strip_reasoning_and_fence(content))).value
        except ValueError:
            raise _InvalidAnswer("the judge's answer is not valid JSON") from None
        if not isinstance(verdict, dict) or "result" not in verdict:
            raise _InvalidAnswer('the judge\'s answer is not an object with "result"')
        result, reason = verdict["result"], _join_conclusions(verdict.get("steps"))
        if isinstance(self._spec, ScoreModelGrader):
            try:
                score = check_finite_number(result, "the judge's result")
            except GraderFailed as failed:
                raise _InvalidAnswer(failed.message) from None
            low, high = self._spec.range
            return _Verdict(min(high, max(low, score)), reason)
        if result not in self._spec.labels:
            shown = self._client.excerpt(json.dumps(result, ensure_ascii=False))
            raise _InvalidAnswer(f"the judge's result is {shown}, but must be one of the labels")
        return _Verdict(float(result in self._spec.passing_labels), f"{result}: {reason}" if reason else result)

    def _make_error(self, why: str, code: str, fix: str = "") -> GraderFailed:
        problem = f"{self._what}: model {self._client.name!r}: {why} [{code}]"
        message = f"{problem}: {fix}" if fix else problem
        return GraderFailed(message, code=code, problem=problem, fix=fix)


def answer_schema(spec: ScoreModelGrader | LabelModelGrader) -> dict[str, Any]:
    """Return the JSON schema of a judge's answer."""
    texts = {name: {"type": "string"} for name in ("description", "conclusion")}
    steps = {"type": "array", "items": _object_schema(texts)}
    if isinstance(spec, LabelModelGrader):
        return _object_schema({"steps": steps, "result": {"type": "string", "enum": list(spec.labels)}})
    low, high = spec.range
    return _object_schema({"steps": steps, "result": {"type": "number", "description": f"from {low:g} to {high:g}"}})


def total_usage_tokens(answer: Mapping[str, Any]) -> int:
    """Return `usage.total_tokens` of an API response; 0 if the response has no usage."""
    usage = answer.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and total > 0 else 0


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object in the form that strict decoding requires."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _strip_reasoning_and_fence(content: str) -> str:
    """Remove the reasoning before an answer, and a code fence around the answer. Some servers return both."""
    text = content.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json")
    return text


def _join_conclusions(steps: Any) -> str:
    """Join the judge's conclusions into one string, for traces."""
    found = [step.get("conclusion") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return truncate_reason(" ".join(text for text in found if isinstance(text, str)))
