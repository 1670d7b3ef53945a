"""Trials of graders that only compute on texts: little work is done here, more in a process of its own, with limits.

The parts of a grader share that process, which takes one slot, so that a request costs this process little more than
its own size.
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

from agent_rft.actors.graders.base import Grader
from agent_rft.actors.graders.templates import num_placeholders
from agent_rft.actors.grading.slots import Slot
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import SingleGrader
from agent_rft.types import Grade

INLINE_CHARS = 100_000
"""Most characters that the templates of all parts, with their values and for all samples of a request, may have to be
worked on in this process."""
CPU_S = 100
"""Processor seconds of the process: 64 parts that each take a second, the slowest with the longest texts."""
MEMORY_BYTES = 2 << 30
LOGGED_BYTES = 4_000

log = logging.getLogger(__name__)


class TextParts:
    """The parts by name; the grades of a sample are computed together, when the first of them is asked for."""

    def __init__(self, specs: Mapping[str, SingleGrader], slot: Slot) -> None:
        self._specs = {name: spec.model_dump(mode="json", exclude_unset=True) for name, spec in specs.items()}
        templates = [getattr(spec, field) for spec in specs.values() for field in spec.TEMPLATES]
        self._num_chars, self._num_placeholders = sum(map(len, templates)), sum(map(num_placeholders, templates))
        self._slot = slot
        self._inline_chars = 0
        self._computing: dict[str, asyncio.Task[dict[str, Any] | None]] = {}

    async def answer(self, name: str, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Any:
        """What `text_process` answers for a part; None if the work is little."""
        if trace_id not in self._computing:
            self._computing[trace_id] = asyncio.create_task(self._compute(sample, item))
        answers = await asyncio.shield(self._computing[trace_id])
        return None if answers is None else answers[name]

    async def close(self) -> None:
        """End what still computes."""
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
            return await _in_a_process(f'{{"parts": {json.dumps(self._specs)}, "values": {values}}}'.encode())


class TextPart:
    """A grader that computes on texts; `grader` does it here."""

    def __init__(self, name: str, grader: Grader, parts: TextParts) -> None:
        self._name = name
        self._grader = grader
        self._parts = parts

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        answer = await self._parts.answer(self._name, sample, item, trace_id)
        if answer is None:
            return await self._grader.grade(sample, item, trace_id)
        if "error" in answer:
            raise GraderFailed(answer["error"], **answer["details"])
        return Grade(answer["value"], reason=answer["reason"])

    async def close(self) -> None:
        await self._parts.close()
        await self._grader.close()


async def _in_a_process(request: bytes) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "agent_rft.actors.grading.text_process", str(CPU_S), str(MEMORY_BYTES)]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # and none of the server's secrets
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
        raise GraderFailed(f"comparing the texts took more than {CPU_S} s of a processor: use shorter texts")
    log.error("the process of text graders ended with code %d: %s", process.returncode, errors[-LOGGED_BYTES:])
    raise GraderFailed("the process that compares texts was lost: use shorter texts")
