"""Trials of text graders, which only process strings. A trial is an API request that tests a grader.

Small inputs are graded in this process, larger inputs in a separate process with limits. All text parts of a grader
share one separate process, which takes one slot.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agent_rft.actors.graders.grader_protocol import Grader
from agent_rft.actors.graders.grader_templates import num_placeholders
from agent_rft.actors.grading.trial_slots import Slot
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import SingleGrader
from agent_rft.types import Grade

INLINE_CHARS = 100_000
"""Total length of rendered templates up to which this process grades the samples of a trial itself.

The length is the sum over all parts and samples. A separate process grades the remaining samples."""
CPU_S = 100
"""Maximum CPU seconds of the process. A grader has at most 64 parts, and the slowest metric takes about a second."""
MEMORY_BYTES = 2 << 30
LOGGED_BYTES = 4_000

log = logging.getLogger(__name__)


class TextTrials:
    """Trials of all text parts of a grader. The first call for a sample computes the grades of all parts."""

    def __init__(self, specs: Mapping[str, SingleGrader], slot: Slot) -> None:
        self._specs = {name: spec.model_dump(mode="json", exclude_unset=True) for name, spec in specs.items()}
        templates = [getattr(spec, field) for spec in specs.values() for field in spec.TEMPLATE_FIELDS]
        self._num_chars, self._num_placeholders = sum(map(len, templates)), sum(map(num_placeholders, templates))
        self._slot = slot
        self._inline_chars = 0
        self._computing: dict[str, asyncio.Task[dict[str, Any] | None]] = {}

    async def grade_part(self, name: str, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Any:
        """Grade the part `name` in a separate process, and return the process's answer for this part.

        Returns None if the input is small. The caller should then grade the part itself.
        """
        if trace_id not in self._computing:
            self._computing[trace_id] = asyncio.create_task(self._compute(sample, item))
        answers = await asyncio.shield(self._computing[trace_id])
        return None if answers is None else answers[name]

    async def close(self) -> None:
        """Cancel computations that are still running."""
        tasks = list(self._computing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _compute(self, sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any] | None:
        values = json.dumps({"sample": sample, "item": item})
        num_chars = self._num_chars + self._num_placeholders * len(values)
        if self._inline_chars + num_chars <= INLINE_CHARS:
            self._inline_chars += num_chars
            return None
        async with self._slot():
            return await _run_process(f'{{"parts": {json.dumps(self._specs)}, "values": {values}}}'.encode())


class TextTrialGrader:
    """Grader for a single text part, used in trial runs.

    `grader` grades small inputs in this process. `parts` grades larger inputs in a separate process.
    """

    def __init__(self, name: str, grader: Grader, parts: TextTrials) -> None:
        self._name = name
        self._grader = grader
        self._parts = parts

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        answer = await self._parts.grade_part(self._name, sample, item, trace_id)
        if answer is None:
            return await self._grader.grade(sample, item, trace_id)
        if "error" in answer:
            raise GraderFailed(answer["error"], **answer["details"])
        return Grade(answer["value"], reason=answer["reason"])

    async def close(self) -> None:
        await self._parts.close()
        await self._grader.close()


async def _run_process(request: bytes) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "agent_rft.actors.grading.text_trial_process", str(CPU_S), str(MEMORY_BYTES)]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # but not the server's secrets
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    try:
        output, errors = await process.communicate(request)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode == 0:
        answers: dict[str, Any] = json.loads(output)
        return answers
    if process.returncode == -signal.SIGXCPU:
        raise GraderFailed(f"the comparison used more than {CPU_S} s of CPU time: use shorter texts")
    log.error("the process that compares texts ended with exit code %d: %s", process.returncode, errors[-LOGGED_BYTES:])
    raise GraderFailed("the process that compares texts ended unexpectedly: use shorter texts")
