"""Errors of calls to an endpoint. Each error names the endpoint, the endpoint's reason and the fix, but no secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_rft.actors.endpoints.http_response import (
    MAX_TEXT_BYTES,
    HttpResponse,
    format_status,
    to_one_line,
    truncate,
)
from agent_rft.actors.endpoints.network.endpoint_url_checks import scrub
from agent_rft.actors.endpoints.request_body import MAX_REQUEST_BYTES
from agent_rft.errors import DiscardError, EndpointRefused

EXCERPT_CHARS = 200
DEFAULT_KEYS_SETTING = "its `headers`"
NO_CREDIT = "the account has no credit"
TOO_LARGE_STATUSES = frozenset({413, 414, 431})
"""Statuses that a server or proxy returns if the body, URL or headers are too large."""
FAILURE_FIXES = {
    "busy": "give the endpoint more capacity, lower max_concurrency or raise timeout_s",
    "timeout": "make the endpoint faster, or raise attempt_timeout_s",
    "deadline": "make the endpoint faster, raise timeout_s, or raise max_concurrency if it can handle more calls",
    "server_error": "check the endpoint's own log",
    "connection": "check that the endpoint is running and that its URL is correct and reachable from the cluster",
    "response_limit": "let the endpoint send short headers, and its answer in one piece or in large chunks",
    "redirect": "set the final URL in the job: redirects are not followed",
}


class CallErrors:
    """Error factory for calls to one endpoint.

    `what` names the endpoint in messages ("tool 'search' (POST http://tools/search)"), and `url` is the endpoint's URL
    without secrets. `keys` names the setting that contains the endpoint's keys. `failure` is the error class for failed
    calls.
    """

    def __init__(self, what: str, url: str, secrets: Sequence[str], keys: str, failure: type[DiscardError]) -> None:
        self._what = what
        self._url = url
        self._secrets = secrets
        self._keys = keys
        self._failure = failure

    def scrub(self, text: str) -> str:
        """Return `text` with the secrets of the endpoint's headers and URL redacted, since some servers echo them."""
        return scrub(text, self._secrets)

    def excerpt(self, text: str) -> str:
        """Return the start of `text`, which the endpoint sent, as one line without secrets or escape sequences."""
        return truncate(self.scrub(to_one_line(text[:MAX_TEXT_BYTES])), EXCERPT_CHARS)

    def describe(self, answer: HttpResponse, asked: str = "") -> str:
        """Return text that describes an answer in an error message: the status and the reason.

        `asked` is inserted after the status, for example " with Retry-After: 5 s".
        """
        what = format_status(answer.status) + (f": {NO_CREDIT}" if answer.has_no_credit else asked)
        reason = self.excerpt(answer.reason)
        return f"{what} ({reason})" if reason else what

    def make_refused_error(self, kind: str, why: str, fix: str, retries: int) -> EndpointRefused:
        """Return the error that ends the job because the endpoint cannot be called at all."""
        problem = f"{self._what} {why}"
        details = {"problem": problem, "fix": fix, "endpoint": self._url, "kind": kind, "retries": retries}
        return EndpointRefused(f"{problem}: {fix}", **details)

    def make_key_refused_error(self, answer: HttpResponse, rejected: str) -> EndpointRefused:
        """Return the error for a 401 or 403; `rejected` names what was rejected, such as "the request"."""
        why = f"rejected {rejected} with {self.describe(answer)}"
        if answer.has_no_credit:
            return self.make_refused_error("no_credit", why, self._credit_fix, answer.retries)
        return self.make_refused_error("refused", why, f"check the keys in {self._keys}", answer.retries)

    def make_call_failed_error(
        self, kind: str, why: str, *, attempts: int, failures: int, elapsed_s: float
    ) -> DiscardError:
        """Return the error of a call that failed after `attempts` attempts.

        `failures` is the number of attempts that failed for reasons other than backpressure. Only these attempts are
        included in the error's number of retries.
        """
        fix = self._credit_fix if kind == "no_credit" else FAILURE_FIXES[kind]
        return self._discard(
            f"{self._what} failed: {why} ({attempts} attempt{'s' * (attempts != 1)}, {elapsed_s:.1f} s)",
            fix,
            kind=kind,
            attempts=attempts,
            retries=min(failures, attempts - 1),
        )

    def make_bad_answer_error(self, answer: HttpResponse, why: str, fix: str = "") -> DiscardError:
        """Return the error for an answer that the caller cannot use.

        `why` continues the message "it answered HTTP 200 OK, but ...". The error's `kind` is no_credit if the account
        has no credit, request_too_large if the request is too large, else bad_answer.
        """
        kind, detail = "bad_answer", f", but {why}"
        if answer.has_no_credit:
            kind, detail, fix = "no_credit", f": {NO_CREDIT}", self._credit_fix
        elif answer.status in TOO_LARGE_STATUSES:
            kind, detail = "request_too_large", f" to a body of {answer.sent_bytes:,} bytes"
            fix = _size_fix(answer)
        return self._discard(
            f"{self._what} failed: it answered {format_status(answer.status)}{detail}; "
            f"body: {self.excerpt(answer.reason) or '(empty)'}",
            fix,
            kind=kind,
            attempts=answer.retries + 1,
            retries=answer.retries,
        )

    @property
    def _credit_fix(self) -> str:
        return f"add credit to the account, or set another account's key in {self._keys}"

    def _discard(self, problem: str, fix: str, **details: Any) -> DiscardError:
        message = f"{problem}; {fix}" if fix else problem
        return self._failure(message, problem=problem, fix=fix, endpoint=self._url, **details)


def _size_fix(answer: HttpResponse) -> str:
    if answer.status == 414:
        return "shorten the endpoint's URL in the job"
    if answer.status == 431:
        return "shorten the endpoint's `headers` in the job, or let the server and its proxies accept longer headers"
    size = max(answer.sent_bytes, MAX_REQUEST_BYTES)
    limit = f"{size:,} bytes (nginx: client_max_body_size)"
    return f"let the server and its proxies accept requests of {limit}, or shorten the row"
