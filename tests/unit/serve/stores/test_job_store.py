"""The job store: moves between states, claims by exactly one server, retries that create no second job, pages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert

from agent_rft.metrics import find_metric
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_states import (
    STATE_CHANGES,
    STATUSES,
    TERMINAL,
    IdempotencyConflict,
    IllegalStateChange,
    UnknownCursor,
    UnknownJob,
)
from agent_rft.serve.stores.job_tables import EventRow, JobError
from agent_rft.serve.stores.migration import migrate
from tests.support.jobs import NEW_JOB, StoredJobs

PATHS = {
    "validating_files": [],
    "queued": ["queued"],
    "running": ["queued", "running"],
    "paused": ["queued", "running", "paused"],
    "succeeded": ["queued", "running", "succeeded"],
    "failed": ["failed"],
    "cancelled": ["cancelled"],
}


class JobsByStatus(StoredJobs):
    def job(self, status: str = "validating_files", **changes: Any) -> str:
        job, _ = self.store.create(replace(NEW_JOB, **changes))
        for to in PATHS[status]:
            self.store.move(job.id, to)  # type: ignore[arg-type]
        return job.id


@pytest.fixture
def jobs(any_database: Database) -> JobsByStatus:
    return JobsByStatus(any_database)


# -- moves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", STATUSES)
def test_a_job_can_only_make_the_moves_of_the_table(jobs: JobsByStatus, before: str) -> None:
    for to in STATUSES:
        job_id = jobs.job(before)
        if to in STATE_CHANGES[before]:
            assert jobs.store.move(job_id, to).status == to
        else:
            with pytest.raises(IllegalStateChange, match=f"is {before} and cannot become {to}"):
                jobs.store.move(job_id, to)
            assert jobs.store.get(job_id).status == before


def test_a_failed_job_records_when_and_why(jobs: JobsByStatus) -> None:
    job_id = jobs.job("running")
    jobs.now = 2_000.0
    error = JobError("invalid_training_file", "line 3: is not valid JSON", "training_file")
    job = jobs.store.move(job_id, "failed", error=error)
    assert (job.finished_at, job.error) == (2_000.0, error)
    assert set(TERMINAL) == {"succeeded", "failed", "cancelled"}


def test_a_replaced_driver_cannot_end_the_job(jobs: JobsByStatus) -> None:
    job_id = jobs.job("running")
    assert jobs.store.next_attempt(job_id, 0, "first", failures=0)
    assert jobs.store.next_attempt(job_id, 1, "second", failures=1)
    with pytest.raises(IllegalStateChange, match="was replaced by driver 2"):
        jobs.store.move(job_id, "succeeded", attempt=1)
    assert jobs.store.heartbeat(job_id, 1) is None and not jobs.store.update_for_driver(job_id, 1, trained_tokens=5)
    assert jobs.store.heartbeat(job_id, 2) == "running"


# -- creation ----------------------------------------------------------------------------------------------------------


def test_requests_with_the_same_idempotency_key_create_one_job(jobs: JobsByStatus) -> None:
    first, new = jobs.store.create(NEW_JOB, idempotency_key="k")
    jobs.now += 1e6
    again, new_again = jobs.store.create(NEW_JOB, idempotency_key="k")
    assert (new, new_again, again.id) == (True, False, first.id)
    assert jobs.store.create(replace(NEW_JOB, owner="key-2"), idempotency_key="k")[1], (
        "keys are separate for each owner"
    )
    with pytest.raises(IdempotencyConflict):
        jobs.store.create(replace(NEW_JOB, digest="other"), idempotency_key="k")


def test_an_equal_request_is_a_retry_within_the_window_and_a_new_job_after_it(jobs: JobsByStatus) -> None:
    first, _ = jobs.store.create(NEW_JOB)
    jobs.now += 9
    assert jobs.store.create(NEW_JOB, retry_window_s=10)[0].id == first.id
    assert jobs.store.create(replace(NEW_JOB, digest="other"), retry_window_s=10)[1]
    assert jobs.store.create(replace(NEW_JOB, owner="key-2"), retry_window_s=10)[1]
    jobs.now += 2
    assert jobs.store.create(NEW_JOB, retry_window_s=10)[1]


def test_concurrent_retries_create_one_job(jobs: JobsByStatus) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: jobs.store.create(NEW_JOB, retry_window_s=60), range(8)))
    assert len({job.id for job, _ in made}) == 1 and sum(new for _, new in made) == 1


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_jobs_start_in_the_order_they_were_queued_up_to_the_limit(jobs: JobsByStatus) -> None:
    ids = [jobs.job() for _ in range(3)]
    for job_id in (ids[1], ids[0], ids[2]):
        jobs.now += 1
        jobs.store.move(job_id, "queued")
    claimed = [jobs.store.claim_next("m", 2, 10) for _ in range(3)]
    assert [job and job.id for job in claimed] == [ids[1], ids[0], None]


def test_a_resumed_job_queues_behind_the_others(jobs: JobsByStatus) -> None:
    paused = jobs.job("paused")
    jobs.now += 1
    waiting = jobs.job("queued")
    jobs.now += 1
    jobs.store.move(paused, "queued")
    first = jobs.store.claim_next("m", 1, 10)
    assert first is not None and first.id == waiting


def test_keys_take_turns(jobs: JobsByStatus) -> None:
    """A key that has queued many jobs does not delay another key's job by more than one job."""
    many = [jobs.job("queued") for _ in range(4)]
    jobs.now += 1
    other = jobs.job("queued", owner="key-2")
    order = list[str]()
    for _ in range(5):
        jobs.now += 1
        claimed = jobs.store.claim_next("m", 1, 10)
        assert claimed is not None
        order.append(claimed.id)
        assert jobs.store.claim_next("m", 1, 10) is None
        jobs.store.next_attempt(claimed.id, 0, "driver", failures=0)
        jobs.store.move(claimed.id, "succeeded", attempt=1)
        assert jobs.store.clear_driver(claimed.id, "driver")
    assert order == [many[0], other, *many[1:]]


def test_a_key_that_pauses_and_resumes_its_job_waits_for_its_turn(jobs: JobsByStatus) -> None:
    first, other = jobs.job("queued"), jobs.job("queued", owner="key-2")
    for _ in range(3):
        claimed = jobs.store.claim_next("m", 1, 10)
        assert claimed is not None
        jobs.store.next_attempt(claimed.id, claimed.attempt, "driver", failures=0)
        jobs.now += 1
        jobs.store.move(claimed.id, "paused")
        assert jobs.store.clear_driver(claimed.id, "driver")
        jobs.store.move(claimed.id, "queued")
        assert claimed.id == first
        first, other = other, first


def test_a_key_runs_fewer_jobs_than_another_key_first(jobs: JobsByStatus) -> None:
    own = [jobs.job("queued") for _ in range(3)]
    other = jobs.job("queued", owner="key-2")
    claimed = [jobs.store.claim_next("m", 3, 10) for _ in range(3)]
    assert [job and job.id for job in claimed] == [own[0], other, own[1]]


def test_readiness_checks_of_a_key_get_half_of_the_jobs(jobs: JobsByStatus) -> None:
    readiness = {"samples": 2, "target_s": None}
    own = [jobs.job("queued", readiness=readiness) for _ in range(3)]
    assert [job and job.id for job in (jobs.store.claim_next("m", 3, 10) for _ in range(3))] == [own[0], own[1], None]
    training, other = jobs.job("queued"), jobs.job("queued", owner="key-2", readiness=readiness)
    assert (claimed := jobs.store.claim_next("m", 3, 10)) is not None and claimed.id == other
    assert (claimed := jobs.store.claim_next("m", 4, 10)) is not None and claimed.id == training


def test_a_job_whose_old_driver_may_still_run_is_not_started_and_counts_as_running(jobs: JobsByStatus) -> None:
    job_id = jobs.job("running")
    jobs.store.next_attempt(job_id, 0, "driver", failures=0)
    jobs.store.move(job_id, "paused")
    jobs.store.move(job_id, "queued")
    other = jobs.job("queued")
    assert jobs.store.claim_next("m", 1, 10) is None
    first = jobs.store.claim_next("m", 2, 10)
    assert first is not None and first.id == other
    assert jobs.store.clear_driver(job_id, "driver")
    second = jobs.store.claim_next("m", 2, 10)
    assert second is not None and second.id == job_id


def test_concurrent_claims_start_each_job_once(jobs: JobsByStatus) -> None:
    ids = {jobs.job("queued") for _ in range(12)}
    with ThreadPoolExecutor(8) as threads:
        claimed = [job for job in threads.map(lambda i: jobs.store.claim_next(f"m{i}", 5, 10), range(24)) if job]
    assert len(claimed) == 5 and len({job.id for job in claimed} & ids) == 5


def test_a_lease_belongs_to_one_manager_until_it_expires(jobs: JobsByStatus) -> None:
    job_id = jobs.job("running")
    assert jobs.store.lease(job_id, "a", 10) and not jobs.store.lease(job_id, "b", 10)
    jobs.now += 8
    assert jobs.store.lease(job_id, "a", 10)
    jobs.now += 8
    assert not jobs.store.lease(job_id, "b", 10)
    jobs.now += 3
    assert jobs.store.lease(job_id, "b", 10) and not jobs.store.lease(job_id, "a", 10)


# -- pages -------------------------------------------------------------------------------------------------------------


def test_pages_go_from_newest_to_oldest_and_tell_whether_more_follow(jobs: JobsByStatus) -> None:
    job_id, other = jobs.job(), jobs.job()
    sent = [jobs.store.add_event(job_id, "info", f"event {i}").id for i in range(5)]
    jobs.store.add_event(other, "info", "another job's")
    got: list[str] = []
    more, after = True, None
    while more:
        page, more = jobs.store.events(job_id, after=after, limit=2)
        got += [event.id for event in page]
        after = got[-1]
    assert got == sent[::-1]
    with pytest.raises(UnknownCursor):
        jobs.store.events(other, after=sent[0])
    with pytest.raises(UnknownCursor):
        jobs.store.list_jobs(None, after="ftjob-none")


def test_jobs_are_counted_for_every_state_including_empty_ones(jobs: JobsByStatus) -> None:
    jobs.job("running")
    for _ in range(2):
        jobs.job("queued")
        jobs.now += 30
    counts = jobs.store.live_metrics()
    assert all(find_metric(name) for name in counts)
    assert counts.pop("api_jobs/running") == 1 and counts.pop("api_jobs/queued") == 2
    assert counts.pop("api_queue_age_s") == 60.0
    assert {"api_jobs/paused", "api_jobs/failed"} <= counts.keys() and set(counts.values()) == {0.0}


def test_a_page_of_events_is_read_through_an_index(tmp_path: Path) -> None:
    jobs = JobsByStatus(Database.from_folder(tmp_path))
    migrate(jobs.database)
    job_id = jobs.job()
    rows = [
        {"id": f"ftevent-{i}", "job_id": job_id, "created_at": 1.0, "level": "info", "type": "message", "message": "m"}
        for i in range(5_000)
    ]
    with jobs.database.session() as session:
        session.execute(insert(EventRow), rows)
    statements: list[tuple[str, object]] = []
    event.listen(jobs.database.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])))
    page, more = jobs.store.events(job_id, after="ftevent-2500", limit=20)
    assert page[0].id == "ftevent-2499" and more
    with jobs.database.engine.connect() as connection:
        for statement, parameters in list(statements):
            plan = " ".join(
                str(row) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            )
            assert "SCAN" not in plan and "TEMP B-TREE" not in plan, plan
    jobs.database.close()


def test_jobs_are_filtered_by_labels_and_owner(jobs: JobsByStatus) -> None:
    first = jobs.job()
    other = jobs.store.create(replace(NEW_JOB, owner="key-2", labels={"team": "b"}))[0].id
    jobs.store.create(replace(NEW_JOB, owner="key-2", labels=None))
    assert [job.id for job in jobs.store.list_jobs(None, labels={"team": "b"})[0]] == [other]
    assert [job.id for job in jobs.store.list_jobs("key-1")[0]] == [first]
    with pytest.raises(UnknownJob):
        jobs.store.get(first, "key-2")


def test_a_repeated_steps_checkpoint_replaces_the_earlier_one(jobs: JobsByStatus) -> None:
    job_id = jobs.job()
    jobs.store.add_checkpoint(job_id, 1, "ft:a", {"step": 1.0})
    jobs.store.add_checkpoint(job_id, 2, "ft:b", {"step": 2.0})
    jobs.store.add_checkpoint(job_id, 1, "ft:a", {"step": 1.0, "train_mean_reward": 0.5})
    assert {c.step: c.metrics for c in jobs.store.checkpoints(job_id)[0]}[1]["train_mean_reward"] == 0.5
    jobs.store.drop_checkpoint(job_id, 1)
    assert [c.step for c in jobs.store.checkpoints(job_id)[0]] == [2]
