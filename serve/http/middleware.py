"""Middleware for all routes: request ids, authentication, session cookies, body limits, unexpected errors and metrics.

Each request gets an id, which is returned in the response. An id that the client sent is recorded separately. Requests
below `/v1` are authenticated before their body is read. Bodies are refused if they are too large or contain values that
cannot be stored. One API key can use at most half of the capacity for requests and bodies. Unexpected exceptions become
responses in the API's error format.

The middleware is plain ASGI, so responses, including streams, are not buffered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeGuard
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.serve.http.access_log import AccessLog, AccessLogEntry, format_utc_now
from agent_rft.serve.http.audit_actions import Auditor, find_action, find_object_id, get_outcome, is_countable
from agent_rft.serve.http.auth import Authenticator
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines, OwnerQuota
from agent_rft.serve.http.error_responses import error_response, make_too_many_error, make_unexpected_api_error
from agent_rft.serve.http.json_body import find_body_problem
from agent_rft.serve.stores.database import DatabaseError, describe_error, is_unavailable
from agent_rft.wire.api_errors import ApiError

UPLOAD_PATH = "/v1/files"
"""The only route whose body is not JSON. It reads and limits the body itself."""
AUTHENTICATED_PREFIX = "/v1/"
WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODIES = 128
"""Maximum memory for all bodies, as a multiple of the maximum size of one body."""
METHODS, OTHER_LABEL = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}), "other"
IGNORED_HEADER = "x-agent-rft-ignored"
"""Response header with the types of the tools that the server ignored."""
CLIENT_DISCONNECTED = 499
"""Status in metrics if the client disconnected before the response started (nginx's code)."""
_PLAIN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_log = logging.getLogger("agent_rft.serve")


class ApiMiddleware:
    """ASGI middleware around the API app.

    With `behind_proxy`, the proxy in front of the server writes the request id to the response and cancels requests of
    disconnected clients. The middleware then does neither. The middleware treats the proxy's request id as the client's
    id, because the proxy passes on the ids that clients send.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        max_body_bytes: int,
        max_in_progress: int,
        deadlines: Deadlines = DEADLINES,
        recorder: Recorder | None = None,
        behind_proxy: bool = False,
        access_log: AccessLog | None = None,
        audit: Auditor | None = None,
        public_url: str | None = None,
    ) -> None:
        self._app = app
        self._recorder = recorder or Recorder()
        self._authenticator = authenticator
        self._max_body_bytes = max_body_bytes
        self._body_s = deadlines.body_s
        self._in_progress = OwnerQuota(max_in_progress)
        self._body_bytes = OwnerQuota(MAX_BODIES * max_body_bytes)
        self._behind_proxy = behind_proxy
        self._access_log = access_log
        self._audit = audit
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id = headers.get("x-request-id", "")
        request_id = f"req_{secrets.token_hex(16)}"
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["client_request_id"] = client_request_id = client_id if _PLAIN_ID.fullmatch(client_id) else None
        start, status, started, ended = time.monotonic(), CLIENT_DISCONNECTED, False, False
        arrived = format_utc_now()

        async def send_with_id(message: Message) -> None:
            nonlocal started, status, ended
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                await self._audit_action(scope, status)  # before the client gets the response
                if tools := scope["state"].get("ignored_tools"):
                    MutableHeaders(scope=message)[IGNORED_HEADER] = ", ".join(tools)
                if not self._behind_proxy:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        held = scope["state"]["held"] = ExitStack()
        try:
            admitted = await self._admit(scope, headers, receive, held)
            answer = self._app(scope, admitted, send_with_id)
            if self._behind_proxy or not isinstance(admitted, _Replay):
                await answer
            else:
                await _await_until_disconnect(answer, receive, lambda: ended)
        except ApiError as error:
            scope["state"]["failure"] = error
            await error_response(error)(scope, receive, send_with_id)
        except ClientDisconnect:
            _log.info("%s: the client disconnected", _describe_ids(scope))
        except Exception as error:  # the only handler of unexpected errors; it logs them
            scope["state"]["failure"] = error
            if started:
                raise
            await error_response(make_unexpected_api_error(error))(scope, receive, send_with_id)
        finally:
            held.close()
            _log_failure(scope, status)
            took_s = time.monotonic() - start
            for label in scope["state"].get("ignored_keys", ()):
                self._recorder.record(f"api_ignored_keys/{label}")
            self._recorder.record(f"api_request_s/{status}/{_method_label(scope)}/{_route_label(scope)}", took_s)
            if self._access_log is not None:
                key = scope["state"].get("api_key")
                id = None if key is None else key.id
                ms = round(took_s * 1000, 1)
                self._access_log.write(
                    AccessLogEntry(
                        arrived,
                        request_id,
                        client_request_id,
                        id,
                        _method_label(scope),
                        _route_label(scope),
                        status,
                        ms,
                    )
                )
            if not started:  # the change may have been made even though no response was sent
                await self._audit_action(scope, status)

    async def _audit_action(self, scope: Scope, status: int) -> None:
        key, action = scope["state"].get("api_key"), find_action(scope)
        if self._audit is None or key is None or action is None:
            return
        entry = partial(self._audit.append, key.id, action, find_object_id(scope))
        try:
            await run_in_threadpool(
                entry,
                request_id=scope["state"]["request_id"],
                outcome=get_outcome(status),
                status=status,
                client_request_id=scope["state"]["client_request_id"],
                countable=is_countable(scope, action, status),
            )
        except DatabaseError as error:  # the change is not rolled back, and its response is sent
            missing = f"{action} is missing from the audit log"
            if _is_outage(scope["state"].get("failure")):
                scope["state"]["not_audited"] = f"; {missing}"  # appended to the log line of the failed request
            elif is_unavailable(error):
                _log.error("%s: %s: %s", _describe_ids(scope), missing, describe_error(error))
            else:
                _log.exception("%s: %s", _describe_ids(scope), missing)

    async def _admit(self, scope: Scope, headers: Headers, receive: Receive, held: ExitStack) -> Receive:
        """Check the request and return the ASGI receive channel with its body.

        Closing `held` frees the share of the quotas that this request uses.

        Raises:
            ApiError: The request is refused.
        """
        if b"\0" in unquote_to_bytes(scope["path"]) + unquote_to_bytes(scope["query_string"]):
            raise ApiError(400, "The URL contains the character %00, which is not allowed.", code="invalid_url")
        if scope["method"] in WITHOUT_BODY and _has_body(headers):
            message = f"A {scope['method']} request must not have a body."
            raise ApiError(400, message, code="unexpected_body")
        if not scope["path"].startswith(AUTHENTICATED_PREFIX):
            return receive
        key = scope["state"]["api_key"] = await self._authenticator.authenticate(
            headers.get("authorization", ""), (scope.get("client") or ("",))[0], read_session(headers)
        )
        if not headers.get("authorization") and scope["method"] not in SAFE_METHODS:
            check_origin(headers, self._public_url)
        held.enter_context(self._in_progress.hold(key.id, _too_many_error("requests")))(1)
        if headers.get("content-encoding", "identity").lower() != "identity":
            message = "Compressed request bodies are not supported. Send the body without Content-Encoding."
            raise ApiError(415, message, code="unsupported_media_type")
        if scope["path"] == UPLOAD_PATH and scope["method"] == "POST":
            return receive
        try:
            async with asyncio.timeout(self._body_s):
                take = held.enter_context(self._body_bytes.hold(key.id, _too_many_error("large request bodies")))
                body = await _read_body(receive, self._max_body_bytes, headers.get("content-length", ""), take)
        except TimeoutError:
            message = f"The request body did not arrive within {self._body_s:g} s."
            raise ApiError(408, message, code="timeout") from None
        if body:
            _check_json(body, headers.get("content-type", ""))
        return _Replay(body, receive)


async def _await_until_disconnect(answer: Awaitable[None], receive: Receive, ended: Callable[[], bool]) -> None:
    """Await `answer`, but cancel it if the client disconnects before the response is complete.

    The request body must have been read, so that `receive` can only return the disconnect.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    work, disconnect = asyncio.ensure_future(answer), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not ended():
            raise ClientDisconnect
        await work
    finally:
        disconnect.cancel()
        work.cancel()
        await asyncio.gather(work, disconnect, return_exceptions=True)


def _log_failure(scope: Scope, status: int) -> None:
    """Log a failed request once in the server's log, unless its client caused the failure."""
    failure = scope["state"].pop("failure", None)
    request = f"{_describe_ids(scope)}: {scope['method']} {scope['path']}"
    if _is_outage(failure):
        cause = make_unexpected_api_error(failure).cause  # no traceback, since an outage fails many requests
        _log.error("%s failed: %s%s", request, cause, scope["state"].get("not_audited", ""))
    elif isinstance(failure, ApiError):
        if failure.status >= 500 or failure.cause:
            _log.error("%s was answered with %d: %s", request, failure.status, failure.cause or failure.message)
    elif failure is not None:
        _log.error("%s failed", request, exc_info=failure)
    elif status >= 500:
        _log.error("%s was answered with %d", request, status)


def _describe_ids(scope: Scope) -> str:
    """Return the id of a request for the server's log, with the client's id in parentheses if there is one."""
    ours, theirs = scope["state"]["request_id"], scope["state"]["client_request_id"]
    return f"{ours} ({theirs})" if theirs else str(ours)


def _is_outage(failure: Exception | None) -> TypeGuard[Exception]:
    return failure is not None and is_unavailable(failure)


def _method_label(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else OTHER_LABEL


def _route_label(scope: Scope) -> str:
    """Return the template of the matched route, or else OTHER_LABEL, so that clients cannot invent metric labels."""
    return str(getattr(scope.get("route"), "path", OTHER_LABEL))


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _too_many_error(what: str) -> ApiError:
    message = f"Too many {what} are in progress, for this API key or in total. Try again in a moment."
    return make_too_many_error(message, "too_many_in_progress", 1)


async def _read_body(receive: Receive, limit_bytes: int, content_length: str, take: Callable[[int], None]) -> bytes:
    """Return the complete body; `take` is called with the size of each chunk.

    Raises:
        ApiError: The body exceeds the limit, or `take` refuses it.
        ClientDisconnect: The client disconnected before the body was complete.
    """
    too_large = ApiError(413, f"The request body exceeds the limit of {limit_bytes:,} bytes.", code="too_large")
    if content_length.isdecimal() and int(content_length[:20]) > limit_bytes:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > limit_bytes:
            raise too_large
        take(len(chunk))
        body += chunk
        if not message.get("more_body", False):
            return bytes(body)


def _check_json(body: bytes, content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415,
            "The request body must be JSON. Send the header Content-Type: application/json.",
            code="unsupported_media_type",
        )
    problem = find_body_problem(body)
    if problem is not None:
        raise ApiError(400, f"The request body is invalid: {problem}.", code="invalid_json")


class _Replay:
    """ASGI receive channel that returns a body that was already read, then the client's disconnect message."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


# -- cookie ------------------------------------------------------------------------------------------------------------


PATH = "/v1"
"""Path of the session cookie, so that browsers send it only to the API."""


def cookie_name(headers: Headers) -> str:
    port = headers.get("host", "").rpartition(":")[2]
    return f"agent_rft_session_{port}" if port.isascii() and port.isdecimal() else "agent_rft_session"


def read_session(headers: Headers) -> str:
    """Return the token of the session cookie, or an empty string if the cookie is missing."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers), "")


def set_session(
    response: Response, headers: Headers, token: str, max_age_s: int, public_url: str | None = None
) -> None:
    """Set the session cookie. Scripts cannot read the cookie, and browsers do not send it from other sites.

    If the scheme of `public_url` is https, browsers send the cookie only over https. If `public_url` is None, the
    scheme of the request's Origin header is used instead.
    """
    secure = (public_url or headers.get("origin", "")).startswith("https:")
    response.set_cookie(
        cookie_name(headers), token, max_age_s, path=PATH, secure=secure, httponly=True, samesite="strict"
    )


def delete_session(response: Response, headers: Headers) -> None:
    response.delete_cookie(cookie_name(headers), path=PATH)


def check_origin(headers: Headers, public_url: str | None = None) -> None:
    """Check that the request was sent by a page of this server, so that no other site can use the session cookie.

    The scheme of the Origin header is checked only if `public_url` is set: a server behind a proxy does not know it.

    Raises:
        ApiError: 403, the Origin header is missing or invalid, or differs from `public_url`. Without `public_url`, it
            must have the host and port of the Host header.
    """
    origin = headers.get("origin", "")
    if public_url is not None:
        if origin == public_url:
            return
        problem = "its header Origin differs from the server's public_url"
    else:
        try:
            host = urlsplit(origin).netloc
        except ValueError:
            host = ""
        if host and host == headers.get("host", ""):
            return
        problem = "its headers Origin and Host differ"
    message = (
        f"The request has a session cookie, but {problem}. Programs must send Authorization: Bearer sk-rft-... "
        "instead. Proxies must not change the browser's Host header."
    )
    raise ApiError(403, message, code="cross_origin", type="permission_error")
