"""Trials of graders and tools."""

from __future__ import annotations

from typing import Any, Literal

from agent_rft.serve.http.schemas.base import ResponseBody


class ValidGrader(ResponseBody):
    """The parsed grader, without secrets."""

    grader: dict[str, Any]


class GraderErrors(ResponseBody):
    formula_parse_error: bool
    """`calculate_output` cannot be computed."""
    sample_parse_error: bool
    """Never true; OpenAI's clients expect the key."""
    truncated_observation_error: bool
    """Never true; OpenAI's clients expect the key."""
    unresponsive_reward_error: bool
    """The grader's endpoint did not answer by its deadline."""
    invalid_variable_error: bool
    """A path of a template does not exist in the row or the sample."""
    other_error: bool
    """A failure that none of the other keys names."""
    python_grader_server_error: bool
    """The sandbox failed: its worker was lost, or the grade took too long."""
    python_grader_runtime_error: bool
    """The code of a python grader raised, or returned no finite number."""
    model_grader_server_error: bool
    """The judge's endpoint failed."""
    model_grader_refusal_error: bool
    """The judge refused to grade."""
    model_grader_parse_error: bool
    """The judge's answers did not have the requested form."""
    python_grader_server_error_type: str | None
    python_grader_runtime_error_details: str | None
    model_grader_server_error_details: str | None


class GraderRunMetadata(ResponseBody):
    name: str
    """The grader's name, else its type."""
    type: str
    execution_time: float
    """Seconds."""
    scores: dict[str, Any]
    """For a multi grader the grade of each part by name; otherwise empty."""
    sampled_model_name: str | None
    """The judge's name; null if there is none."""
    token_usage: int | None
    """Tokens that judges used; null: none."""
    errors: GraderErrors


class GraderRun(ResponseBody):
    """If one of `metadata.errors` is true, the grader failed and `reward` is not a grade."""

    reward: float
    """The grade; 0 if the grader failed."""
    sub_rewards: dict[str, Any]
    """For a multi grader the grade of each part by name; otherwise empty."""
    model_grader_token_usage_per_model: dict[str, Any]
    """Tokens that each judge used, by name."""
    metadata: GraderRunMetadata
    """The grader's name and type, its time in seconds, and which error occurred."""


class ToolOutput(ResponseBody):
    """The result of a tool call as a model would see it."""

    type: Literal["function_call_output"] = "function_call_output"
    id: str
    """The request's `id`, or a new one."""
    call_id: str
    """Id of the call."""
    output: str
    """The text that a model would see, also of an error."""
    error: str | None
    """The kind of the error that the model would see; null: none."""
    latency_s: float
    """Seconds from the request to the answer, without waits."""
