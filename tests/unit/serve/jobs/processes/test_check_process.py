"""The limits of the process that validates a job, with small programs in its place."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import uvloop

from agent_rft.errors import Problem, RftError
from agent_rft.serve.jobs.processes.check_process import run_check

PROBLEM = Problem("broken_json", "training_file", "is not JSON", "write JSON", "train.jsonl", 3)


def check_that(program: str) -> list[str]:
    """A command that limits itself to 512 MiB and a second more than its imports, then runs a program with OUT."""
    begin = (
        "import sys, json, dataclasses, time\nfrom agent_rft.serve.jobs.processes.check_process import OUT_OF_MEMORY\n"
    )
    begin += "from agent_rft.actors.runtime.process_setup import limit_process\n"
    begin += "limit_process(int(time.process_time()) + 2, 1 << 29)\n"
    return [sys.executable, "-c", f"{begin}OUT = sys.argv[2]\n{program}"]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


async def run(program: str, output: Path) -> list[Problem]:
    return await run_check(check_that(program), {"PYTHONPATH": ":".join(sys.path)}, "ftjob-1", output)


async def test_the_problems_that_a_check_writes_are_returned(output: Path) -> None:
    write = f"open(OUT, 'w').write(json.dumps([dataclasses.asdict({PROBLEM!r})]))"
    program = f"from agent_rft.errors import Problem\n{write}"
    assert await run(program, output) == [PROBLEM]


def test_check_runs_on_the_event_loop_of_the_server_with_the_environment_itself(output: Path) -> None:
    """uvloop, unlike asyncio, requires a dict of variables."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        checked = run_check(check_that("open(OUT, 'w').write('[]')"), os.environ, None, output)
        assert runner.run(checked) == []


async def test_a_check_that_computes_without_end_is_ended_with_a_message_that_says_so(output: Path) -> None:
    with pytest.raises(RftError, match=r"used more than 300 s of CPU time; use fewer or smaller rows"):
        await run("while True: pass", output)


async def test_a_check_that_takes_all_memory_is_ended_with_a_message_that_says_so(output: Path) -> None:
    program = "try: rows = [bytes(1 << 26) for _ in range(64)]\nexcept MemoryError: sys.exit(OUT_OF_MEMORY)"
    with pytest.raises(RftError, match=r"used more than 8 GiB of memory"):
        await run(program, output)


def test_the_output_of_a_check_that_crashes_is_for_the_log_only(output: Path) -> None:
    why = r"the job check failed: it ended with exit code 1; .* can see details with `agent-rft jobs log ftjob-1`"
    with pytest.raises(RftError, match=why) as error:
        asyncio.run(run("raise ValueError('/secret/path')", output))
    assert "/secret/path" not in error.value.message and "ValueError: /secret/path" in output.read_text()


async def test_a_check_that_the_kernel_killed_says_so(output: Path) -> None:
    with pytest.raises(RftError, match=r"SIGKILL ended it, usually because its node ran out of memory"):
        await run("import os; os.kill(os.getpid(), 9)", output)
