"""The server's own log: complete for operators, without secrets, bounded, and copied to standard error."""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel

from agent_rft.serve.host.server_log import LogFollower, ServerLog


class Job(BaseModel):
    headers: dict[str, int]


@contextmanager
def logger(path: Path, **options: object) -> Iterator[logging.Logger]:
    handler = ServerLog(path, **{"environment": {}, **options})  # type: ignore[arg-type]
    made = logging.Logger("agent_rft.serve")
    made.addHandler(handler)
    yield made
    handler.close()


def failing(text: str) -> None:
    raise RuntimeError(text)


def logged(path: Path, text: str, **options: object) -> str:
    """Log an exception with this text and return the file."""
    with logger(path / "logs" / "server-0.log", **options) as log:
        try:
            failing(text)
        except RuntimeError:
            log.exception("req_1: POST /v1/files failed")
    return (path / "logs" / "server-0.log").read_text()


def test_record_has_time_level_request_and_traceback_in_a_private_file(tmp_path: Path) -> None:
    text = logged(tmp_path, "the disk is gone")
    first, *_, last = text.splitlines()
    assert first[:2] == "20" and first.endswith("+00:00 ERROR agent_rft.serve: req_1: POST /v1/files failed")
    assert "in failing" in text and last == "RuntimeError: the disk is gone"
    assert stat.S_IMODE((tmp_path / "logs" / "server-0.log").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Illegal header value b'Bearer abc.def-123'", "abc.def"),
        ("headers {'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
        ("no such key sk-rft-0123456789abcdef", "0123456789"),
        ("secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8"),
        ("connection to postgresql://rft:hunter2@db:5432/rft failed", "hunter2"),
        ("GET https://bucket.example/file?X-Signature=hunter2 failed", "hunter2"),
        ("cannot decrypt with correct-horse-battery", "correct-horse"),
        ("{'type': 'missing', 'loc': ('a',), 'input': {'X-Key': 'hunter2'}}", "hunter2"),
    ],
)
def test_secrets_are_removed(tmp_path: Path, text: str, hidden: str) -> None:
    variables = {"AGENT_RFT_SECRET_KEY": "correct-horse-battery", "SOME_KEY_COUNT": "1"}
    found = logged(tmp_path, text, environment=variables)
    assert hidden not in found and "**********" in found and "req_1: POST /v1/files failed" in found


def test_input_that_a_validation_error_quotes_is_removed(tmp_path: Path) -> None:
    path, secret = tmp_path / "server-0.log", "hunter" + "2"  # the traceback quotes source lines
    with logger(path) as log:
        try:
            Job.model_validate({"headers": {"X-Key": f"{secret},\nand more"}})
        except ValueError:
            log.exception("req_2: GET /v1/jobs failed")
    text = path.read_text()
    assert secret not in text and "headers.X-Key" in text


def test_information_is_not_written_and_a_record_and_the_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "server-0.log"
    with logger(path, max_bytes=100_000) as log:
        log.info("the client disconnected")
        for number in range(20):
            log.warning("number %d %s", number, "x" * 50_000)
    text = path.read_text()
    assert "number 19" in text and "characters omitted" in text and "disconnected" not in text
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes.keys() == {"server-0.log", "server-0.log.1"} and max(sizes.values()) <= 100_000


def test_follower_copies_new_records_of_all_replicas_across_a_rotation(tmp_path: Path) -> None:
    with logger(tmp_path / "logs" / "server-0.log") as log:
        log.warning("before the start")
    copied: list[str] = []
    with LogFollower(tmp_path, copied.append, poll_s=0.001):
        with logger(tmp_path / "logs" / "server-0.log", max_bytes=1_000) as log:
            for number in range(8):
                log.warning("replica 0, record %d", number)
                while f"record {number}\n" not in "".join(copied):
                    threading.Event().wait(0.001)
        with logger(tmp_path / "logs" / "server-1.log") as log:
            log.warning("replica 1")
    text = "".join(copied)
    assert "before the start" not in text and text.count("replica 0, record") == 8 and "replica 1\n" in text


def test_follower_survives_a_closed_output(tmp_path: Path) -> None:
    called = threading.Event()

    def write(text: str) -> None:
        called.set()
        raise BrokenPipeError

    with LogFollower(tmp_path, write, poll_s=0.001), logger(tmp_path / "logs" / "server-0.log") as log:
        log.warning("anything")
        assert called.wait(10)
        log.warning("more")
