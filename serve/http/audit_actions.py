"""Actions that the audit log records, by the request's method and route."""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request
from starlette.types import Scope

from agent_rft.serve.stores.audit_log import Outcome

ACTIONS = {
    ("POST", "/v1/files"): "file.create",
    ("DELETE", "/v1/files/{file_id}"): "file.delete",
    ("POST", "/v1/fine_tuning/jobs"): "job.create",
    ("POST", "/v1/fine_tuning/jobs/{job_id}/cancel"): "job.cancel",
    ("POST", "/v1/fine_tuning/jobs/{job_id}/pause"): "job.pause",
    ("POST", "/v1/fine_tuning/jobs/{job_id}/resume"): "job.resume",
    ("POST", "/v1/fine_tuning/readiness"): "readiness.create",
    ("POST", "/v1/fine_tuning/readiness/{readiness_id}/cancel"): "readiness.cancel",
    ("POST", "/v1/fine_tuning/readiness/{readiness_id}/pause"): "readiness.pause",
    ("POST", "/v1/fine_tuning/readiness/{readiness_id}/resume"): "readiness.resume",
    ("POST", "/v1/api_keys"): "key.create",
    ("DELETE", "/v1/api_keys/{key_id}"): "key.revoke",
    ("DELETE", "/v1/models/{model_id:path}"): "model.delete",
    ("POST", "/v1/console/session"): "session.create",
    ("DELETE", "/v1/console/session"): "session.delete",
}


SESSION_ACTIONS = frozenset({"session.create", "session.delete"})


class Auditor(Protocol):
    """Interface for recording requests. Implemented by agent_rft.serve.stores.audit_log.AuditLog."""

    def append(
        self,
        actor: str,
        action: str,
        object: str | None = None,
        *,
        request_id: str | None = None,
        outcome: Outcome = "done",
        status: int | None = None,
        client_request_id: str | None = None,
        countable: bool = False,
    ) -> None: ...


def find_action(scope: Scope) -> str | None:
    """Return the action of a request, such as `job.create`, or None if the audit log does not record the request."""
    return ACTIONS.get((scope["method"], str(getattr(scope.get("route"), "path", ""))))


def set_created_id(request: Request, object_id: str) -> None:
    """Store the id of the object that a request created, for the audit log."""
    request.state.made = object_id


def find_object_id(scope: Scope) -> str | None:
    """Return the id of the object that a request created.

    If the request created no object, return the id in the request's path, or None if the path has no id.
    """
    found = scope["state"].get("made")
    return found or next(iter(scope.get("path_params", {}).values()), None)


def is_countable(scope: Scope, action: str, status: int) -> bool:
    """Return whether the audit log may count this request instead of recording it in full.

    The audit log may count a request in these cases:

    - The request opens or ends a session.
    - The key lacks the scope for the request.
    - The request fails with a client error (status 400 to 498).

    In the last two cases, the request has changed nothing. If the client disconnected (status 499), the request may
    have changed something.
    """
    return action in SESSION_ACTIONS or not scope["state"].get("has_scope") or 400 <= status < 499


def get_outcome(status: int) -> Outcome:
    return "done" if status < 400 else "refused" if status == 403 else "failed"
