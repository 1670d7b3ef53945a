"""The settings that a model was trained with and is therefore served with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainer.spec.job import JobSpec, RolloutLimits
from trainer.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a trained model is served.

    Attributes:
        context_length: In tokens. None: the model's maximum, but at most the default of training.
        max_completion_tokens: Default for requests that set none.
        temperature: Default for requests that set none.
    """

    tool_parser: str = "hermes"
    context_length: int | None = None
    max_completion_tokens: int | None = None
    max_tool_output_tokens: int = RolloutLimits().max_tool_output_tokens
    max_thinking_tokens: int | None = None
    temperature: float = 1.0
    template_arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: JobSpec, plan: Plan, context_length: int, template_arguments: Mapping[str, Any]) -> ServeSettings:
        """The settings of a job, as resolved by its preflight."""
        if job.method.type == "supervised":
            return cls(tool_parser=job.cluster.tool_parser, context_length=context_length)
        limits = job.reinforcement.limits
        return cls(
            tool_parser=job.cluster.tool_parser,
            context_length=context_length,
            max_completion_tokens=limits.max_completion_tokens,
            max_tool_output_tokens=limits.max_tool_output_tokens,
            max_thinking_tokens=plan.max_thinking_tokens,
            temperature=job.reinforcement.algorithm.temperature,
            template_arguments=dict(template_arguments),
        )

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> ServeSettings:
        """The settings that a server has stored; those that another version had and this one does not are left out."""
        return cls(**{setting.name: values[setting.name] for setting in fields(cls) if setting.name in values})
