"""The limits of the process that validates a job, with small programs in its place."""

from __future__ import annotations

import sys

import pytest

from cluster.jobs.check_process import run_check
from trainer.errors import Problem, RftError

PROBLEM = Problem("broken_json", "training_file", "is not JSON", "write JSON", "train.jsonl", 3)


def check_that(program: str) -> list[str]:
    """A command that limits itself to a second and 512 MiB, and runs a program with OUT, the file of problems."""
    begin = "import sys, json, dataclasses\nfrom cluster.jobs.check_process import OUT_OF_MEMORY\n"
    begin += "from actors.runtime.process import limit_process\n"
    return [sys.executable, "-c", f"{begin}limit_process(1, 1 << 29)\nOUT = sys.argv[2]\n{program}"]


async def run(program: str) -> list[Problem]:
    return await run_check(check_that(program), {"PYTHONPATH": ":".join(sys.path)}, "ftjob-1")


async def test_the_problems_that_a_check_writes_are_returned() -> None:
    program = f"from trainer.errors import Problem\nopen(OUT, 'w').write(json.dumps([dataclasses.asdict({PROBLEM!r})]))"
    assert await run(program) == [PROBLEM]


async def test_a_check_that_computes_without_end_is_ended_with_a_message_that_says_so() -> None:
    with pytest.raises(RftError, match=r"took more than 300 s of a processor: use fewer or smaller rows"):
        await run("while True: pass")


async def test_a_check_that_takes_all_memory_is_ended_with_a_message_that_says_so() -> None:
    program = "try: rows = [bytes(1 << 26) for _ in range(64)]\nexcept MemoryError: sys.exit(OUT_OF_MEMORY)"
    with pytest.raises(RftError, match=r"took more than 8 GiB of memory"):
        await run(program)


async def test_the_output_of_a_check_that_crashes_is_for_the_log_only() -> None:
    with pytest.raises(RftError, match=r"failed with exit code 1; the server's log has its output under ftjob-1") as e:
        await run("raise ValueError('/secret/path')")
    assert "/secret/path" not in e.value.message
