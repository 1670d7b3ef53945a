"""Source that reads a job from OpenAI's API with the user's own key. The size of each response is limited.

Requests that fail with HTTP 429, HTTP 5xx or a lost connection are repeated. The delay is the time in `Retry-After`; if
this header is missing, the delay grows exponentially. The key is sent only to the base URL, because redirects are not
followed. No message contains the key.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import httpx
from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception_type, stop_after_attempt

from agent_rft.actors.endpoints.http_response import format_status, parse_retry_after_s, truncate
from agent_rft.actors.endpoints.network.blocking_client import (
    SourcedSetting,
    Unreachable,
    create_blocking_client,
    translate_errors,
)
from agent_rft.actors.endpoints.network.endpoint_url_checks import redact_url, scrub
from agent_rft.cli.openai_import.export_source import (
    MAX_BODY_BYTES,
    MAX_CHECKPOINTS,
    MAX_EVENTS,
    MAX_FILE_BYTES,
    parse_object,
)
from agent_rft.cli.openai_import.openai_objects import (
    OpenAICheckpoint,
    OpenAIEvent,
    OpenAIJob,
    OpenAIListEntry,
    OpenAIPage,
)
from agent_rft.errors import RftError, UserError
from agent_rft.rows.strict_json import parse_untrusted_json
from agent_rft.spec.api_keys import read_variable

OPENAI = "https://api.openai.com/v1"
TIMEOUT = httpx.Timeout(60.0)
MAX_ATTEMPTS = 6
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 60.0
PAGE = 100
MAX_ERROR_BYTES = 1 << 20
EXCERPT_CHARS = 200
ACCOUNT_HEADERS = {"OPENAI_ORG_ID": "OpenAI-Organization", "OPENAI_PROJECT_ID": "OpenAI-Project"}

L = TypeVar("L", bound=OpenAIListEntry)


class OpenAIRefused(UserError):
    """Permanent error: the API refused a request. `details["status"]` is the HTTP status."""


class OpenAIUnavailable(RftError):
    """Temporary error: the API is unreachable, or its response is HTTP 5xx or HTTP 429 (too many requests)."""

    def __init__(self, message: str, after_s: float | None = None, **details: Any) -> None:
        """Create the error; `after_s` is the delay in seconds that the API requested before the next attempt."""
        super().__init__(message, **details)
        self.retry_after_s = after_s


class ApiSource:
    """Source that reads a job from an account at OpenAI, or from a server with the same API."""

    is_export = False

    def __init__(
        self,
        client: httpx.Client,
        key: str,
        job_id: str,
        sleep: Callable[[float], None] = time.sleep,
        max_file_bytes: int = MAX_FILE_BYTES,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Create the source with a client from `make_openai_client`.

        `notify` is called before each repeated request, with a message that contains the reason and the delay.
        """
        self._max_file_bytes = max_file_bytes
        self._client = client
        self._key = key
        self._job_id = job_id
        self._path = f"/fine_tuning/jobs/{quote(job_id, safe='')}"
        self._sleep = sleep
        self._notify = notify
        self._where = redact_url(str(client.base_url))

    def read_job(self) -> OpenAIJob:
        """Request the job."""
        return parse_object(OpenAIJob, self._fetch_json(self._path), f"the answer for {self._job_id}")

    def read_events(self) -> list[OpenAIEvent]:
        """Request at most MAX_EVENTS events of the job, newest first."""
        return self._fetch_list(OpenAIPage[OpenAIEvent], "events", MAX_EVENTS)

    def read_checkpoints(self) -> list[OpenAICheckpoint]:
        """Request at most MAX_CHECKPOINTS checkpoints of the job."""
        return self._fetch_list(OpenAIPage[OpenAICheckpoint], "checkpoints", MAX_CHECKPOINTS)

    def fetch_rows(self, field: str, file_id: str, scratch: Path) -> Path | None:
        """Download the file `file_id` into the folder `scratch` and return its path; None if it no longer exists."""
        path = scratch / f"{field}.download"
        try:
            with path.open("wb") as file:
                self._fetch(f"/files/{quote(file_id, safe='')}/content", {}, file, self._max_file_bytes)
        except OpenAIRefused as error:
            if error.details["status"] in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
                return None
            raise
        return path

    def _fetch_list(self, page_type: type[OpenAIPage[L]], name: str, limit: int) -> list[L]:
        found: list[L] = []
        cursor: dict[str, str] = {}
        while len(found) < limit:
            page = parse_object(
                page_type, self._fetch_json(f"{self._path}/{name}", {"limit": PAGE, **cursor}), f"the job's {name}"
            )
            found += page.data
            if not page.has_more or not page.data:
                break
            cursor = {"after": page.data[-1].id}
        return found[:limit]

    # -- requests --------------------------------------------------------------------------------------------------

    def _fetch_json(self, path: str, params: Mapping[str, str | int] | None = None) -> bytes:
        body = io.BytesIO()
        self._fetch(path, params or {}, body, MAX_BODY_BYTES)
        return body.getvalue()

    def _fetch(self, path: str, params: Mapping[str, str | int], out: BinaryIO, max_bytes: int) -> None:
        """Write the body of a successful response to `out`, with up to MAX_ATTEMPTS attempts."""
        retrying = Retrying(
            retry=retry_if_exception_type(OpenAIUnavailable),
            stop=stop_after_attempt(MAX_ATTEMPTS),
            wait=_retry_delay_s,
            sleep=self._sleep,
            before_sleep=self._report_delay,
        )
        try:
            retrying(self._fetch_once, path, params, out, max_bytes)
        except RetryError as error:
            last = error.last_attempt.exception()
            raise OpenAIUnavailable(
                f"{last} ({MAX_ATTEMPTS} attempts); check the base URL, or try again later"
            ) from None

    def _report_delay(self, state: RetryCallState) -> None:
        self._notify(f"{state.outcome and state.outcome.exception()}; next attempt in {state.upcoming_sleep:.1f} s")

    def _fetch_once(self, path: str, params: Mapping[str, str | int], out: BinaryIO, max_bytes: int) -> None:
        out.seek(0)
        out.truncate()
        with self._open_response(path, params) as response:
            self._raise_for_status(response, path)
            for chunk in response.iter_bytes():
                out.write(chunk)
                if out.tell() > max_bytes:
                    raise UserError(f"{path} is larger than the limit of {max_bytes:,} bytes")

    @contextmanager
    def _open_response(self, path: str, params: Mapping[str, str | int]) -> Iterator[httpx.Response]:
        try:
            with translate_errors(self._client), self._client.stream("GET", path, params=dict(params)) as response:
                yield response
        except Unreachable as error:
            raise OpenAIUnavailable(error.why) from None

    def _raise_for_status(self, response: httpx.Response, path: str) -> None:
        if response.is_success:
            return
        reason = f"{format_status(response.status_code)}{self._error_text(response)}"
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error:
            header = response.headers.get("Retry-After")
            after_s = None if header is None else parse_retry_after_s(header, time.time())
            raise OpenAIUnavailable(f"GET {path} failed: {reason}", after_s)
        raise OpenAIRefused(f"GET {path} was refused: {reason}; {self._hint(response)}", status=response.status_code)

    def _error_text(self, response: httpx.Response) -> str:
        """Return the API's error message on one line, without the key; empty if the response has no message."""
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_ERROR_BYTES:
                return ""
        try:
            text = str(parse_untrusted_json(bytes(body)).value["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return ""
        return f" ({truncate(to_one_line(scrub(text, [self._key])), EXCERPT_CHARS)})"

    def _hint(self, response: httpx.Response) -> str:
        match response.status_code:
            case httpx.codes.UNAUTHORIZED:
                return f"set OPENAI_API_KEY to a key that {self._where} accepts"
            case httpx.codes.FORBIDDEN:
                return "use a key of the job's project that can read jobs and files, or import an export (--from)"
            case httpx.codes.NOT_FOUND:
                return "check the job's id, and that the key (or OPENAI_PROJECT_ID) belongs to the job's project"
        if response.is_redirect:
            return "give the final base URL with --base-url: redirects are not followed, to protect the key"
        return "import an export of the job instead (--from), with your own copy of its rows (--training-file)"


def make_openai_client(base_url: str | None, environment: Mapping[str, str]) -> tuple[httpx.Client, str]:
    """Return (HTTP client, API key), configured by the environment variables of OpenAI's SDK.

    If `base_url` is None, the URL is OPENAI_BASE_URL or, if this variable is not set, OpenAI's URL.

    Raises:
        UserError: The key is missing, or the key, the URL, an account header or the proxy is invalid.
    """
    key = read_variable(environment, "OPENAI_API_KEY")
    if key is None:
        raise UserError(
            "OPENAI_API_KEY is not set: export OPENAI_API_KEY=... with a key of the account that owns the job"
        )
    names = {header: (read_variable(environment, name), name) for name, header in ACCOUNT_HEADERS.items()}
    headers = {header: SourcedSetting(value, name) for header, (value, name) in names.items() if value is not None}
    found = read_variable(environment, "OPENAI_BASE_URL")
    url = SourcedSetting(OPENAI, "the default URL") if found is None else SourcedSetting(found, "OPENAI_BASE_URL")
    if base_url is not None:
        url = SourcedSetting(base_url.strip(), "--base-url")
    return create_blocking_client(url, SourcedSetting(key, "OPENAI_API_KEY"), environment, TIMEOUT, headers), key


def to_one_line(text: str) -> str:
    """Return the text on one line and without control characters, which could manipulate the output of a terminal."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def _retry_delay_s(state: RetryCallState) -> float:
    error = state.outcome and state.outcome.exception()
    requested = error.retry_after_s if isinstance(error, OpenAIUnavailable) else None
    backoff = FIRST_WAIT_S * 2 ** (state.attempt_number - 1)
    return min(MAX_WAIT_S, backoff if requested is None else requested) * random.uniform(1, 1.1)
