"""Client operations on jobs, such as create and cancel. They only change the store; the job manager does the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent_rft.cluster.checks.offline_checks import check_gradable
from agent_rft.errors import InvalidJob, UnsealFailed
from agent_rft.serve.jobs.job_logs import JobLogs, ProcessOutput, collect_secrets, redact_secrets
from agent_rft.serve.jobs.job_request import FileLookup, parse_api_job
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRecord, NewJob
from agent_rft.serve.stores.model_registry import ModelCatalog
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.job import JobSpec
from agent_rft.spec.legacy_job import load_legacy_job
from agent_rft.spec.operator.operator_config import OperatorConfig

RETRY_WINDOW_S = 600.0
"""Maximum seconds between a request and its retry, if the client sends a retry count."""
UNMARKED_WINDOW_S = 10.0
"""Maximum seconds between a request and its retry, if the client does not send a retry count."""


class JobService:
    """Client operations on jobs.

    `wake` is called when a job has changed. It notifies the job manager if the job manager runs in this process.
    """

    def __init__(
        self,
        store: JobStore,
        models: ModelCatalog,
        files: FileLookup,
        secrets: SecretBox,
        operator: OperatorConfig,
        logs: JobLogs,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self._models = models
        self._files = files
        self._secrets = secrets
        self._operator = operator
        self._logs = logs
        self._wake = wake

    def create(
        self,
        body: Any,
        owner: str,
        *,
        idempotency_key: str | None = None,
        retry: int | None = None,
        readiness: dict[str, Any] | None = None,
    ) -> JobRecord:
        """Create a job, or return the job that an earlier attempt of the same request created.

        `retry` is the client's retry count: 0 for the first attempt, or None if the client does not send a count. If
        `readiness` (fields of `ReadinessOptions`) is set, the job is a readiness check.

        Raises:
            InvalidJob: The request is invalid.
            IdempotencyConflict: The Idempotency-Key was used with a different request.
        """
        found = parse_api_job(body, self._models, self._files, self._operator)
        request, digest = found.request, found.digest
        if readiness is not None:
            check_gradable(found.spec, "training_file")
            digest = f"{digest}-{hashlib.blake2b(json.dumps(readiness).encode(), digest_size=8).hexdigest()}"
        new = NewJob(
            owner=owner,
            model=request.model,
            base=found.base,
            training_file=request.training_file,
            validation_file=request.validation_file,
            test_file=request.test_file,
            method=found.method,
            model_options=found.model_options,
            integrations=found.integrations,
            seed=found.spec.seed,
            suffix=request.suffix,
            labels=request.metadata,
            sealed_spec="",
            digest=digest,
            readiness=readiness,
        )
        window_s = UNMARKED_WINDOW_S if retry is None else RETRY_WINDOW_S if retry else 0.0

        def seal(job_id: str) -> str:
            return self._secrets.sealer("job", job_id).seal(found.secret_spec)

        job, is_new = self.store.create(new, seal=seal, idempotency_key=idempotency_key, retry_window_s=window_s)
        if is_new:
            what = "fine-tuning job" if readiness is None else "readiness check"
            self.store.add_event(job.id, "info", f"Created {what}: {job.id}")
        self._wake()
        return job

    def prepare_check(self, body: Any, samples: int | None = None) -> CheckRequest:
        """Return the input for a check of `body`. `samples` is the number of rollouts per row in a readiness check.

        Raises:
            InvalidJob: The request is invalid.
        """
        found = parse_api_job(body, self._models, self._files, self._operator)
        if samples is not None:
            check_gradable(found.spec, "training_file")
        return CheckRequest(found.secret_spec, found.request.model, samples)

    def cancel(self, job_id: str) -> JobRecord:
        """Cancel a job that has not ended; its driver then exits without saving a checkpoint.

        Raises:
            UnknownJob: The job does not exist.
            IllegalStateChange: The job has ended.
        """
        job = self.store.move(job_id, "cancelled")
        return self._record(job, "The job was cancelled")

    def pause(self, job_id: str) -> JobRecord:
        """Pause a running job: its driver writes a checkpoint and releases its resources.

        Raises:
            UnknownJob: The job does not exist.
            IllegalStateChange: The job is not running.
        """
        job = self.store.move(job_id, "paused", estimated_finish=None)
        how = "finishes its step and writes a checkpoint" if job.readiness is None else "keeps the rows already sampled"
        return self._record(job, f"The job is being paused: it {how}")

    def resume(self, job_id: str) -> JobRecord:
        """Queue a paused job again; the job then continues from its last checkpoint.

        Raises:
            UnknownJob: The job does not exist.
            IllegalStateChange: The job is not paused.
        """
        job = self.store.move(job_id, "queued")
        return self._record(job, "The job was resumed and is queued again")

    def read_log(self, job_id: str) -> tuple[str, list[ProcessOutput]]:
        """Return a job's log for admins: the full error message, and the last part of each process's output.

        Raises:
            UnknownJob: The job does not exist.
        """
        job = self.store.get(job_id)
        secrets = collect_secrets(self._operator)
        # If this server cannot decrypt the job, no driver could either, so its output holds no job secrets.
        with suppress(UnsealFailed, InvalidJob):
            secrets = collect_secrets(self._operator, self.decrypt(job))
        error = redact_secrets(job.error.log or job.error.message, secrets) if job.error else ""
        return error, self._logs.read(job_id, secrets)

    def decrypt(self, job: JobRecord) -> JobSpec:
        """Return the job's specification, with decrypted secrets.

        Raises:
            UnsealFailed: The job was encrypted with another master secret.
            InvalidJob: An old version created the job, and this version cannot read it.
        """
        sealed = self._secrets.sealer("job", job.id).open(job.sealed_spec)
        return load_legacy_job(json.loads(sealed), "the job")[0]

    def _record(self, job: JobRecord, message: str) -> JobRecord:
        self.store.add_event(job.id, "info", message)
        self._wake()
        return job
