"""The process that validates a job: its limits, how it is run, and what its end means.

Rows, schemas and graders are their users' input: what they cost is the job's, never the server's.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agent_rft.errors import Problem, RftError
from agent_rft.serve.jobs.problems import how_it_ended, see_log

CPU_S = 300
"""Processor seconds of a check: 50,000 rows take one minute."""
MEMORY_BYTES = 8 << 30
"""Memory of a check: rows of 512 MB, the largest file, take half of it."""
OUT_OF_MEMORY = 4
"""The exit code of a check that exceeded MEMORY_BYTES."""


async def run_check(
    command: Sequence[str], environment: Mapping[str, str], job_id: str | None, output: Path, given: bytes = b""
) -> list[Problem]:
    """Run the command, with `--check FILE` added, and return the problems that it wrote; ends it when cancelled.

    It reads `given`; its output is appended to the file `output`. `job_id` is None if there is no job yet.

    Raises:
        RftError: The check exceeded a limit, or failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "problems.json"
        with output.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--check",
                str(out),
                stdin=asyncio.subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=dict(environment),
            )
        try:
            await process.communicate(given)
            code = await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if code != 0 or not out.exists():
            raise RftError(_reason(code, job_id))
        return [Problem(**problem) for problem in json.loads(out.read_text())]


def _reason(code: int, job_id: str | None) -> str:
    remedy = "use fewer or smaller rows, tools and schemas"
    if code == -signal.SIGXCPU:
        return f"checking the job took more than {CPU_S} s of a processor: {remedy}"
    if code == OUT_OF_MEMORY:
        return f"checking the job took more than {MEMORY_BYTES >> 30} GiB of memory: {remedy}"
    why = f"the check of the job failed: {how_it_ended(code)}"
    return why if job_id is None else see_log(why, job_id)
