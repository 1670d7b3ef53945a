"""Response models of trial runs of graders and tools."""

from __future__ import annotations

from typing import Any, Literal

from agent_rft.serve.http.schemas.base import ResponseBody


class ValidGrader(ResponseBody):
    """Result of checking a grader: the parsed grader, without secrets."""

    grader: dict[str, Any]


class GraderErrors(ResponseBody):
    """Errors of a grader run. At most one of the booleans is true."""

    formula_parse_error: bool
    """The formula in `calculate_output` could not be evaluated."""
    sample_parse_error: bool
    """Never true; OpenAI's clients expect the key."""
    truncated_observation_error: bool
    """Never true; OpenAI's clients expect the key."""
    unresponsive_reward_error: bool
    """The grader's endpoint did not respond before its deadline."""
    invalid_variable_error: bool
    """A template uses a path that does not exist in the row or the sample."""
    other_error: bool
    """Any other error."""
    python_grader_server_error: bool
    """The sandbox failed: its worker was lost, or grading took too long."""
    python_grader_runtime_error: bool
    """The code of a `python` grader raised an exception or did not return a finite number."""
    model_grader_server_error: bool
    """The judge's endpoint failed."""
    model_grader_refusal_error: bool
    """The judge refused to grade."""
    model_grader_parse_error: bool
    """The judge's answers did not match the requested schema."""
    python_grader_server_error_type: str | None
    python_grader_runtime_error_details: str | None
    model_grader_server_error_details: str | None


class GraderRunMetadata(ResponseBody):
    """Details of a grader run."""

    name: str
    """The grader's name, or its type if it has no name."""
    type: str
    execution_time: float
    """Duration of the run in seconds."""
    scores: dict[str, Any]
    """For a `multi` grader, the grade of each part by name; otherwise empty."""
    sampled_model_name: str | None
    """The judge's model; null if the grader has no judge."""
    token_usage: int | None
    """Number of tokens that all judges used; null if no judge was called."""
    errors: GraderErrors


class GraderRun(ResponseBody):
    """Result of a grader run. If the grader failed, `reward` is 0 and a flag in `metadata.errors` is true."""

    reward: float
    """The grade; 0 if the grader failed."""
    sub_rewards: dict[str, Any]
    """For a `multi` grader, the grade of each part by name; otherwise empty."""
    model_grader_token_usage_per_model: dict[str, Any]
    """Number of tokens by judge model."""
    metadata: GraderRunMetadata
    """Name and type of the grader, duration, and errors."""


class ToolOutput(ResponseBody):
    """The result of a tool call, as a model would see it."""

    type: Literal["function_call_output"] = "function_call_output"
    id: str
    """The `id` of the request, or else the `call_id`."""
    call_id: str
    """Id of the call."""
    output: str
    """Text that a model would see: the tool's output or an error."""
    error: str | None
    """Kind of the error in `output`; null if `output` is not an error."""
    latency_s: float
    """Seconds that the last attempt took. Queueing and earlier attempts are excluded."""
