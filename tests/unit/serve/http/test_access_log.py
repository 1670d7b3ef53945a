"""The access log's file: private, bounded, and no reason for a request to fail."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from agent_rft.serve.http.access_log import AccessLog, AccessLogEntry

LINE = AccessLogEntry("2026-11-22T10:00:00.000+00:00", "req_1", None, None, "GET", "/v1/models", 401, 0.5)


def test_lines_are_json_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "logs" / "access-0.jsonl")
    log.write(LINE)
    log.close()
    log.write(LINE)
    log.close()
    path = tmp_path / "logs" / "access-0.jsonl"
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first == second and first["status"] == 401 and first["key"] is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_files_of_bounded_size_are_kept(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "logs" / "a.jsonl", max_bytes=1_000)
    for _ in range(100):
        log.write(LINE)
    log.close()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "logs").iterdir()}
    assert sizes.keys() == {"a.jsonl", "a.jsonl.1"} and max(sizes.values()) <= 1_000


def test_a_folder_that_cannot_be_written_loses_lines_only(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    log = AccessLog(tmp_path / "logs" / "a.jsonl")
    log.write(LINE)
    (tmp_path / "logs").unlink()
    log.write(LINE)
    log.close()
    assert (tmp_path / "logs" / "a.jsonl").read_text().count("\n") == 1
