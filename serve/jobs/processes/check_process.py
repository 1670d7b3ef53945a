"""Process that checks a job, with limits on its CPU time and memory.

Rows, schemas and graders are user input, so checking them must not use up the server's resources.
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
from agent_rft.serve.jobs.client_errors import add_log_hint, describe_exit

CPU_S = 300
"""Maximum CPU seconds of a check; 50,000 rows take one minute."""
MEMORY_BYTES = 8 << 30
"""Maximum memory of a check in bytes. A file of 512 MB, the default maximum size, needs half of this memory."""
OUT_OF_MEMORY = 4
"""Exit code of a check that exceeded MEMORY_BYTES."""


async def run_check(
    command: Sequence[str], environment: Mapping[str, str], job_id: str | None, output: Path, stdin: bytes = b""
) -> list[Problem]:
    """Run `command` with `--check FILE` added, and return the problems that the command wrote to the file.

    The command reads `stdin` as its standard input, and its output is appended to the file `output`. The command is
    killed if this task is cancelled. `job_id` is None if there is no job yet.

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
            await process.communicate(stdin)
            code = await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if code != 0 or not out.exists():
            raise RftError(_describe_failure(code, job_id))
        return [Problem(**problem) for problem in json.loads(out.read_text())]


def _describe_failure(code: int, job_id: str | None) -> str:
    fix = "use fewer or smaller rows, tools and schemas"
    if code == -signal.SIGXCPU:
        return f"the job check used more than {CPU_S} s of CPU time; {fix}"
    if code == OUT_OF_MEMORY:
        return f"the job check used more than {MEMORY_BYTES >> 30} GiB of memory; {fix}"
    why = f"the job check failed: {describe_exit(code)}"
    return why if job_id is None else add_log_hint(why, job_id)
