"""The records of jobs that several clients read at the same time: no request waits for the work of another one."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import RolloutIndex
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.jobs.owner_records import JobRecords, NotIndexed
from agent_rft.serve.stores.job_tables import JobRecord
from tests.support.jobs import FolderJobs, fixture_of
from tests.support.synthetic import Synthetic


class Slow:
    """Work that, for one run, goes on only when the test lets it."""

    def __init__(self) -> None:
        self.run: Path | None = None
        self.begun, self.may_end = threading.Event(), threading.Event()

    def work(self, run: Path) -> None:
        if run == self.run:
            self.begun.set()
            assert self.may_end.wait(20)


class Jobs(FolderJobs):
    """Jobs with runs; indexing and writing a report are slow work."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.slow = slow = Slow()

        class Index(RolloutIndex):
            def __init__(self, run: Path) -> None:
                super().__init__(run)
                self._run = run

            def catch_up(self, seconds: float = 0.0) -> bool:
                slow.work(self._run)
                return super().catch_up(seconds)

        def write(run: RunFolder) -> Path:
            slow.work(run.path)
            run.report_file.write_text("a report")
            return run.report_file

        self.records = JobRecords(self.store, self.runs, Index, write)

    def ran(self, digest: str) -> JobRecord:
        job = self.new(digest=digest)
        Synthetic().run(self.runs / job.id, steps=1, total=1, validation_every=0)
        return job

    def page(self, job: JobRecord) -> list[Any]:
        return self.records.rollouts(job, RolloutFilter(), "newest", 5, None)[0]

    @contextmanager
    def during(self, work: Any, job: JobRecord) -> Iterator[None]:
        """While another request does this for a job."""
        self.slow.run = self.runs / job.id
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(work, job)
            try:
                assert self.slow.begun.wait(20)
                yield
            finally:
                self.slow.may_end.set()
            other.result()


jobs = fixture_of(Jobs)


def test_no_request_waits_for_the_index_of_a_job(jobs: Jobs) -> None:
    one, other = jobs.ran("a"), jobs.ran("b")
    (jobs.runs / one.id / "rollouts.sqlite").unlink()
    with jobs.during(jobs.page, one):
        with pytest.raises(NotIndexed, match="the rollouts are being indexed"):
            jobs.page(one)
        assert len(jobs.page(other)) == 5
    assert len(jobs.page(one)) == 5


def test_a_complete_index_is_read_by_all_at_the_same_time(jobs: Jobs) -> None:
    job = jobs.ran("a")
    with jobs.during(jobs.page, job):
        assert len(jobs.page(job)) == 5


def test_while_a_report_is_written_others_get_the_one_that_is_there(jobs: Jobs) -> None:
    one, other = jobs.ran("a"), jobs.ran("b")
    before = jobs.records.report(other)
    assert before is not None
    with jobs.during(jobs.records.report, one):
        with pytest.raises(NotIndexed, match="the report is being written"):
            jobs.records.report(one)
        assert jobs.records.report(other) == before


def test_an_old_report_is_served_while_it_is_written_again(jobs: Jobs) -> None:
    job = jobs.ran("a")
    path = jobs.records.report(job)
    assert path is not None
    os.utime(path, (0, 0))
    with jobs.during(jobs.records.report, job):
        assert jobs.records.report(job) == path and path.stat().st_mtime == 0
    assert path.stat().st_mtime > 0


class Hasty(RolloutIndex):
    """An index that reads one file at a time."""

    def catch_up(self, seconds: float = 0.0) -> bool:
        return super().catch_up(0.0)


class CaughtUp(RolloutIndex):
    """An index that has nothing to catch up with."""

    def catch_up(self, seconds: float = 0.0) -> bool:
        return True


def first_page(records: JobRecords, job: JobRecord) -> list[Any]:
    return records.rollouts(job, RolloutFilter(), "newest", 5, None)[0]


def test_an_index_that_cannot_be_written_is_made_over_several_requests(jobs: Jobs) -> None:
    job, records = jobs.ran("a"), JobRecords(jobs.store, jobs.runs, Hasty)
    path = jobs.runs / job.id / "rollouts.sqlite"
    path.unlink()
    path.mkdir()
    for _ in RunFolder(jobs.runs / job.id).rollout_names()[1:]:
        with pytest.raises(NotIndexed, match="the rollouts are being indexed"):
            first_page(records, job)
    assert len(first_page(records, job)) == 5


@pytest.mark.parametrize("kind", [RolloutIndex, CaughtUp])
def test_while_another_process_writes_the_index_clients_are_to_try_again(jobs: Jobs, kind: type[RolloutIndex]) -> None:
    job, records = jobs.ran("a"), JobRecords(jobs.store, jobs.runs, partial(kind, busy_s=0.0))
    with closing(sqlite3.connect(jobs.runs / job.id / "rollouts.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotIndexed, match="index"):
            first_page(records, job)
    assert len(first_page(records, job)) == 5


def test_only_so_many_jobs_are_kept_and_the_others_are_closed(jobs: Jobs) -> None:
    closed = list[Path]()

    class Index(RolloutIndex):
        def __init__(self, run: Path) -> None:
            super().__init__(run)
            self._run = run

        def close(self) -> None:
            super().close()
            closed.append(self._run)

    job, few = jobs.ran("a"), JobRecords(jobs.store, jobs.runs, Index, max_kept=2)
    for id in ("ftjob-1", "ftjob-2", "ftjob-1", "ftjob-3"):
        assert few.report(replace(job, id=id)) is None
    assert closed == [jobs.runs / "ftjob-2"]
