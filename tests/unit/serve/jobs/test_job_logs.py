"""What is kept of the outputs of a job's processes, and what of it is never shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent_rft.serve.jobs.job_logs import (
    KEEP_S,
    MAX_BYTES,
    MAX_DRIVERS,
    SHOWN_BYTES,
    VALIDATION,
    JobLogs,
    collect_secrets,
)
from agent_rft.spec.job import JobSpec
from tests.support.bad_requests import SECRET
from tests.support.builders import raw_job

JOB = "ftjob-1"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logs(tmp_path: Path) -> JobLogs:
    return JobLogs(tmp_path)


def read(logs: JobLogs, secrets: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    return [(output.attempt, output.text) for output in logs.read(JOB, secrets)]


def test_outputs_are_read_in_the_order_of_the_processes(logs: JobLogs) -> None:
    for attempt in (10, 2, VALIDATION):
        logs.create_file(JOB, attempt).write_text(f"{attempt}\n")
    logs.add(JOB, 2, "the cluster said so")
    assert read(logs) == [(0, "0\n"), (2, "2\nthe cluster said so\n"), (10, "10\n")]
    assert logs.read("ftjob-2", ()) == []


def test_only_the_servers_user_may_read_them(logs: JobLogs) -> None:
    path = logs.create_file(JOB, 1)
    modes = [stat.S_IMODE(found.stat().st_mode) for found in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_a_long_output_is_cut_while_its_process_writes_and_shown_from_a_whole_line_on(logs: JobLogs) -> None:
    path = logs.create_file(JOB, 1)
    with path.open("a") as process:
        for number in range(MAX_BYTES // 10 + 1):
            process.write(f"{number:09}\n")
        process.flush()
        logs.truncate(JOB, 1)
        process.write("the end\n")
    assert path.stat().st_size <= SHOWN_BYTES + len("the end\n")
    ((_, text),) = read(logs)
    lines = text.splitlines()
    assert lines[-1] == "the end" and int(lines[-2]) == MAX_BYTES // 10 and {len(line) for line in lines[:-1]} == {9}


def test_the_outputs_of_the_last_drivers_are_kept_and_of_no_job_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    logs = JobLogs(tmp_path, clock)
    for attempt in range(MAX_DRIVERS + 3):
        logs.create_file(JOB, attempt)
    assert [attempt for attempt, _ in read(logs)] == [VALIDATION, *range(3, MAX_DRIVERS + 3)]
    clock.now = logs.file_path(JOB, 5).stat().st_mtime + KEEP_S + 60
    logs.create_file("ftjob-2", 1)
    assert read(logs) == []


def test_secrets_of_the_job_the_server_and_others_are_not_shown(logs: JobLogs) -> None:
    raw = raw_job(
        tools=[{"name": "t", "server_url": "https://t.example", "headers": {"X": SECRET}, "k": "kept-in-extra"}]
    )
    job = JobSpec.model_validate(raw)
    secrets = collect_secrets(job, environment={"HF_TOKEN": "token-of-env", "HOME": "/home/someone"})
    lines = [
        f"headers: {SECRET}", "kept-in-extra", "token-of-env", "postgresql://me:password-1@db/x",
        "Authorization: Bearer abcdefghijklmnop", "sk-rft-0123456789abcdef-AAAA", "/home/someone/x.py",
    ]  # fmt: skip
    logs.create_file(JOB, 1).write_text("\n".join(lines))
    ((_, text),) = read(logs, secrets)
    assert text.splitlines() == [
        "headers: [redacted]", "[redacted]", "[redacted]", "postgresql://**********@db/x",
        "Authorization: Bearer [redacted]", "[redacted]", "/home/someone/x.py",
    ]  # fmt: skip


def test_a_terminal_is_sent_no_control_characters(logs: JobLogs) -> None:
    logs.create_file(JOB, 1).write_bytes(b"\x1b]0;title\x07red \x1b[31m \xff\x9b\r\n")
    assert read(logs) == [(1, "]0;titlered [31m ��\n")]
