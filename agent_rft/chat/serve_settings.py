"""Settings with which a trained model is served, taken from the job that trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agent_rft.chat.dialect import Dialect
from agent_rft.spec.job import JobSpec, RolloutLimits
from agent_rft.spec.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings with which a trained model is served.

    Attributes:
        dialect: Conversation format; None: the format in the model's folder.
        context_length: Maximum length of a conversation in tokens; None: the model's maximum, but at most 16,384.
        max_completion_tokens: Maximum number of sampled tokens, for requests that do not set it.
        temperature: Sampling temperature, for requests that do not set it.
    """

    dialect: Dialect | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None
    max_tool_output_tokens: int = RolloutLimits().max_tool_output_tokens
    max_reasoning_tokens: int | None = None
    temperature: float = 1.0

    @classmethod
    def from_job(cls, job: JobSpec, plan: StepPlan, context_length: int, dialect: Dialect) -> ServeSettings:
        """Create the settings from a job; the other arguments are results of the job check."""
        if job.method.type == "supervised":
            return cls(dialect, context_length)
        limits = job.reinforcement.limits
        return cls(
            dialect=dialect,
            context_length=context_length,
            max_completion_tokens=limits.max_completion_tokens,
            max_tool_output_tokens=limits.max_tool_output_tokens,
            max_reasoning_tokens=plan.max_reasoning_tokens,
            temperature=job.reinforcement.algorithm.evaluation_temperature,
        )

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> ServeSettings:
        """Load settings that a server has stored; unknown keys from other versions are ignored."""
        known = {setting.name: values[setting.name] for setting in fields(cls) if setting.name in values}
        dialect = known.pop("dialect", None)
        return cls(None if dialect is None else Dialect.from_json(dialect), **known)
