"""The settings that a model was trained with and is therefore served with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agent_rft.chat.dialect import Dialect
from agent_rft.spec.job import JobSpec, RolloutLimits
from agent_rft.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a trained model is served.

    Attributes:
        dialect: How it writes conversations. None: as its folder says.
        context_length: In tokens. None: the model's maximum, but at most the default of training.
        max_completion_tokens: Default for requests that set none.
        temperature: Default for requests that set none.
    """

    dialect: Dialect | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None
    max_tool_output_tokens: int = RolloutLimits().max_tool_output_tokens
    max_thinking_tokens: int | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, job: JobSpec, plan: Plan, context_length: int, dialect: Dialect) -> ServeSettings:
        """The settings of a job, as resolved by its preflight."""
        if job.method.type == "supervised":
            return cls(dialect, context_length)
        limits = job.reinforcement.limits
        return cls(
            dialect=dialect,
            context_length=context_length,
            max_completion_tokens=limits.max_completion_tokens,
            max_tool_output_tokens=limits.max_tool_output_tokens,
            max_thinking_tokens=plan.max_thinking_tokens,
            temperature=job.reinforcement.algorithm.temperature_of_evaluations,
        )

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> ServeSettings:
        """The settings that a server has stored; those that another version had and this one does not are left out."""
        known = {setting.name: values[setting.name] for setting in fields(cls) if setting.name in values}
        dialect = known.pop("dialect", None)
        return cls(None if dialect is None else Dialect.of_json(dialect), **known)
