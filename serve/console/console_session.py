"""Routes of /v1/console/session: browser sessions, opened with an API key that the browser does not keep."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.middleware import delete_session, read_session, set_session
from agent_rft.serve.http.schemas.key_schemas import ConsoleSession, DeletedSession, SessionKey
from agent_rft.serve.stores.key_store import SESSION_S, ApiKey, SessionStore
from agent_rft.wire.api_errors import ApiError


def make_router(sessions: SessionStore, *, read_only: bool = False) -> APIRouter:
    """Return the routes of sessions. With `read_only`, the page offers no actions."""
    router = APIRouter(prefix="/console/session", tags=["console"])

    def shown(key: ApiKey) -> ConsoleSession:
        return ConsoleSession(key=SessionKey.model_validate(key), read_only=read_only)

    @router.post("")
    async def create(request: Request, response: Response, key: Reader) -> ConsoleSession:
        """Open a session of the request's key. Its cookie is HttpOnly and SameSite=Strict, and expires with the key."""
        if not request.headers.get("authorization"):
            message = "A session cannot open another session. Send an API key in the Authorization header."
            raise ApiError(400, message, code="missing_api_key")
        set_session(response, request.headers, await run_in_threadpool(sessions.open, key), SESSION_S)
        return shown(key)

    @router.get("")
    async def get(key: Reader) -> ConsoleSession:
        """Return the permissions of the request's session or key."""
        return shown(key)

    @router.delete("")
    async def delete(request: Request, response: Response, key: Reader) -> DeletedSession:
        """End the session of the request's cookie."""
        await run_in_threadpool(sessions.close, read_session(request.headers))
        delete_session(response, request.headers)
        return DeletedSession()

    return router
