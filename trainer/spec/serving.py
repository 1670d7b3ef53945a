"""What a model was trained with, and is therefore served with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.spec.job import JobSpec, Plan, RolloutLimits


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`context_length` None: what the model allows, at most training's default. `max_completion_tokens` and
    `temperature` hold where a request names none.
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
        """Those of a job, as its preflight resolved them."""
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
