"""How long a context is where the job leaves it to us."""

from __future__ import annotations

from trainer.spec.job import JobSpec

MAX_AUTO_CONTEXT = 16_384


def context_of(job: JobSpec, max_context: int | None) -> int:
    """In tokens: what `auto` means for a model that takes at most `max_context`, None where nobody knows it."""
    wanted = job.cluster.context_length
    if wanted != "auto":
        return wanted
    return MAX_AUTO_CONTEXT if max_context is None else min(max_context, MAX_AUTO_CONTEXT)
