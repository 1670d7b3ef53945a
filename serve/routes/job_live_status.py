"""/v1/fine_tuning/jobs/{id}/live_status: live status of a running job's processes, for its owner and admins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.pagination import AsciiJson
from agent_rft.serve.http.schemas.live_status_schemas import JobLiveStatus
from agent_rft.serve.routes.job_routes import JobIdPath, get_own_job, job_errors
from agent_rft.serve.stores.job_store import JobStore


def make_router(store: JobStore, runs: Path, clock: Callable[[], float] = time.time) -> APIRouter:
    """Return the router. Its route is a plain function, so it runs in a thread and may read files."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.get("/{job_id}/live_status", response_class=AsciiJson)
    def get_live_status(job_id: JobIdPath, key: Reader) -> JobLiveStatus:
        """Return the live status of a job's processes, for its owner and admins. Not part of OpenAI's API."""
        with job_errors(job_id):
            job = get_own_job(store, job_id, key)
        try:
            found = json.loads(RunFolder(runs / job_id).status_file.read_text())
        except FileNotFoundError:
            return JobLiveStatus(fine_tuning_job_id=job_id, status=job.status, age_s=None)
        age_s = max(0.0, clock() - found.pop("at"))
        return JobLiveStatus(fine_tuning_job_id=job_id, status=job.status, age_s=age_s, **found)

    return router
