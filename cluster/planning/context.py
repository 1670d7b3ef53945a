"""The context length of a job in tokens."""

from __future__ import annotations

from trainer.errors import Problem
from trainer.spec.job import JobSpec

MAX_AUTO_CONTEXT = 16_384


def context_of(job: JobSpec, max_context: int | None) -> int:
    """The job's context length; `auto` is the model's `max_context` (None: unknown), but at most MAX_AUTO_CONTEXT."""
    wanted = job.cluster.context_length
    if wanted != "auto":
        return wanted
    return MAX_AUTO_CONTEXT if max_context is None else min(max_context, MAX_AUTO_CONTEXT)


def context_problems(context_length: int, max_context: int | None) -> list[Problem]:
    """A problem if the context is longer than the model allows."""
    if max_context is None or context_length <= max_context:
        return []
    message, remedy = f"is {context_length}, the model allows {max_context}", f"give at most {max_context}, or auto"
    return [Problem("context_too_long", "cluster.context_length", message, remedy)]
