"""/v1/fine_tuning/jobs/{id}/now: what the processes of a running job do, for the key that made it and for admins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse

from cluster.records.run_folder import RunFolder
from cluster.stores.job_store import JobStore
from serve.http.auth import Reader
from serve.http.pages import AsciiJson
from serve.http.schemas.base import answers
from serve.http.schemas.now import JobNow
from serve.routes.fine_tuning import job_errors

NOTHING: dict[str, Any] = {"engines": [], "actors": [], "endpoints": []}


def make_router(store: JobStore, runs: Path, clock: Callable[[], float] = time.time) -> APIRouter:
    """Returns the route: a plain function, so that it runs in a thread, where a file may be read."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.get("/{job_id}/now", response_model=None, responses=answers(JobNow))
    def now(job_id: Annotated[str, PathParameter(max_length=100)], key: Reader) -> JSONResponse:
        """Return what the processes of a job do, for its key and for admins: not a part of OpenAI's API."""
        with job_errors(job_id):
            job = store.get(job_id, None if key.may("admin") else key.id)
        try:
            found = json.loads(RunFolder(runs / job_id).now.read_text())
        except FileNotFoundError:
            found = None
        age_s = None if found is None else max(0.0, clock() - found.pop("at"))
        kind = {"object": "fine_tuning.job.now", "fine_tuning_job_id": job_id}
        return AsciiJson(kind | {"status": job.status, "age_s": age_s} | (found or NOTHING))

    return router
