"""What clients ask of jobs: create, cancel, pause, resume. It only changes the store; the manager does the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.jobs.request import Files, ModelCatalog, parse_api_job
from cluster.stores.job_store import JobStore
from cluster.stores.job_tables import JobRecord, NewJob
from cluster.stores.secrets import SecretBox
from trainer.spec.operator import Operator

RETRY_WINDOW_S = 600.0
"""The official clients wait so long for an answer before they try again. They say which try a request is."""
UNMARKED_WINDOW_S = 10.0
"""Of clients that do not: an equal request so soon after the first one is a retry, later it is another job."""


class JobService:
    """`wake` tells the manager of this process, if there is one."""

    def __init__(
        self,
        store: JobStore,
        models: ModelCatalog,
        files: Files,
        sealer: SecretBox,
        operator: Operator,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self._models = models
        self._files = files
        self._sealer = sealer
        self._operator = operator
        self._wake = wake

    def create(
        self, body: Any, owner: str, *, idempotency_key: str | None = None, retry: int | None = None
    ) -> JobRecord:
        """A new job, or the one that this request made before. `retry` counts the client's tries of this request; None
        where it does not say.

        Raises:
            InvalidJob: the request has mistakes.
            IdempotencyConflict: its Idempotency-Key came with another request.
        """
        found = parse_api_job(body, self._models, self._files, self._operator)
        request = found.request
        new = NewJob(
            owner=owner,
            model=request.model,
            base=found.base,
            training_file=request.training_file,
            validation_file=request.validation_file,
            test_file=request.test_file,
            method=found.method,
            seed=found.spec.seed,
            suffix=request.suffix,
            labels=request.metadata,
            sealed_spec=self._sealer.seal(found.secret_spec),
            digest=found.digest,
        )
        window_s = UNMARKED_WINDOW_S if retry is None else RETRY_WINDOW_S if retry else 0.0
        job, is_new = self.store.create(new, idempotency_key=idempotency_key, retry_window_s=window_s)
        if is_new:
            self.store.add_event(job.id, "info", f"Created fine-tuning job: {job.id}")
        self._wake()
        return job

    def cancel(self, job_id: str) -> JobRecord:
        """The job ends, wherever it is; its driver ends at once.

        Raises:
            UnknownJob, IllegalMove
        """
        job = self.store.move(job_id, "cancelled")
        return self._told(job, "The job was cancelled")

    def pause(self, job_id: str) -> JobRecord:
        """The driver takes a checkpoint and gives its resources back.

        Raises:
            UnknownJob, IllegalMove
        """
        job = self.store.move(job_id, "paused", estimated_finish=None)
        return self._told(job, "The job is being paused: it ends its step and takes a checkpoint")

    def resume(self, job_id: str) -> JobRecord:
        """The job waits for its turn again, and then goes on from its last checkpoint.

        Raises:
            UnknownJob, IllegalMove
        """
        job = self.store.move(job_id, "queued")
        return self._told(job, "The job was resumed and waits for its turn")

    def _told(self, job: JobRecord, message: str) -> JobRecord:
        self.store.add_event(job.id, "info", message)
        self._wake()
        return job
