"""Routes of /v1/console/session: browser sessions. A session is opened with an API key, which the browser discards."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from agent_rft.serve.http.auth import Reader
from agent_rft.serve.http.middleware import delete_session, read_session, set_session
from agent_rft.serve.http.schemas.key_schemas import ConsoleSession, DeletedSession, SessionKey
from agent_rft.serve.stores.key_store import SESSION_S, ApiKey, SessionStore
from agent_rft.wire.api_errors import ApiError


def make_router(sessions: SessionStore, *, read_only: bool = False, public_url: str | None = None) -> APIRouter:
    """Return the router of console sessions.

    With `read_only`, the console shows no buttons that change anything. If `public_url` has the scheme https, browsers
    send the session cookie only over https.
    """
    router = APIRouter(prefix="/console/session", tags=["console"])

    def build_session(key: ApiKey) -> ConsoleSession:
        return ConsoleSession(key=SessionKey.model_validate(key), read_only=read_only)

    @router.post("")
    async def create(request: Request, response: Response, key: Reader) -> ConsoleSession:
        """Open a session for the request's API key, and set the session cookie, which is HttpOnly and SameSite=Strict.

        The session ends after a day, or earlier if the key expires or is revoked.
        """
        if not request.headers.get("authorization"):
            message = "A session cannot open another session. Send an API key in the Authorization header."
            raise ApiError(400, message, code="missing_api_key")
        token = await run_in_threadpool(sessions.open, key)
        set_session(response, request.headers, token, SESSION_S, public_url)
        return build_session(key)

    @router.get("")
    async def get(key: Reader) -> ConsoleSession:
        """Return the API key that the request's session or Authorization header belongs to, with the key's scopes."""
        return build_session(key)

    @router.delete("")
    async def delete(request: Request, response: Response, key: Reader) -> DeletedSession:
        """End the session that the request's cookie identifies."""
        await run_in_threadpool(sessions.close, read_session(request.headers))
        delete_session(response, request.headers)
        return DeletedSession()

    return router
