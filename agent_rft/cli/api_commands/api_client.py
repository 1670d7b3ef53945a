"""HTTP client with which commands call a server's API: requests, paginated lists, and the server's error messages.

The server's URL and the API key are taken from the first of these sources that sets them:
- the command-line options
- AGENT_RFT_BASE_URL and AGENT_RFT_API_KEY
- OPENAI_BASE_URL and OPENAI_API_KEY
- a profile in `~/.config/agent-rft/profiles.yaml`, which has entries `NAME: {base_url: ..., api_key: ...}`

OPENAI_API_KEY is sent only to OPENAI_BASE_URL. AGENT_RFT_API_KEY and the keys of profiles are never sent to
OPENAI_BASE_URL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any

import httpx
import yaml

from agent_rft.actors.endpoints.network.blocking_client import (
    SourcedSetting,
    Unreachable,
    create_blocking_client,
    translate_errors,
)
from agent_rft.errors import RftError, UserError

TIMEOUT = httpx.Timeout(60.0, write=600.0)
PAGE = 100


class ServerUnavailable(RftError):
    """Temporary error: the server is unreachable, or its response is HTTP 5xx or HTTP 429 (too many requests)."""


def make_server_client(
    base_url: str | None,
    api_key: str | None,
    profile: str,
    environment: Mapping[str, str],
    profiles: Path,
    timeout: httpx.Timeout = TIMEOUT,
) -> httpx.Client:
    """Return an HTTP client for the configured server; `profiles` is the path of the profiles file.

    Raises:
        UserError: The profile does not exist, the URL or key is not configured, or the URL, key or proxy is invalid.
    """
    known = load_profiles(profiles)
    chosen = known.get(profile) or {}
    if profile != "default" and not chosen:
        raise UserError(f"{profiles} has no profile {profile!r}; existing profiles: {', '.join(known) or 'none'}")

    def first_not_none(*settings: SourcedSetting | None) -> SourcedSetting | None:
        return next((setting for setting in settings if setting is not None), None)

    def from_environment(name: str) -> SourcedSetting | None:
        return _non_empty_setting(environment.get(name), name)

    def from_profile(name: str) -> SourcedSetting | None:
        return _non_empty_setting(chosen.get(name), f"{name} of the profile {profile!r} in {profiles}")

    openai = from_environment("OPENAI_BASE_URL")
    url = first_not_none(
        _non_empty_setting(base_url, "--base-url"),
        from_environment("AGENT_RFT_BASE_URL"),
        openai,
        from_profile("base_url"),
    )
    if url is None:
        raise UserError(f"no server is configured: set --base-url, AGENT_RFT_BASE_URL, or base_url in {profiles}")
    name, other = ("OPENAI_API_KEY", None) if url is openai else ("AGENT_RFT_API_KEY", from_profile("api_key"))
    key = first_not_none(_non_empty_setting(api_key, "--api-key"), from_environment(name), other)
    if key is None:
        raise UserError(f"no API key is configured: set --api-key, {name}, or api_key in {profiles}")
    return create_blocking_client(url, key, environment, timeout)


def _non_empty_setting(value: object, source: str) -> SourcedSetting | None:
    """Return `value`, without surrounding white space, as a setting from `source`; None if the value is empty."""
    text = "" if value is None else str(value).strip()
    return SourcedSetting(text, source) if text else None


def profiles_file() -> Path:
    """Return the path of the profiles file.

    If the user has no home directory, the path begins with `~` and the file does not exist.
    """
    return Path(expanduser("~/.config/agent-rft/profiles.yaml"))


def load_profiles(path: Path) -> dict[str, dict[str, Any]]:
    """Return the profiles in a file, by name.

    The result is empty if the file does not exist or this user may not read it.

    Raises:
        UserError: The file is not a valid profiles file.
    """
    try:
        known = yaml.safe_load(path.read_text())
    except OSError:
        return {}
    except (ValueError, yaml.YAMLError):
        known = "unreadable"
    if known is not None and not (isinstance(known, dict) and all(isinstance(v, dict) for v in known.values())):
        raise UserError(f"{path} is not a valid profiles file; write NAME: {{base_url: ..., api_key: ...}}")
    return known or {}


def send_request(client: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Send a request and return the JSON body of its response.

    Raises:
        ServerUnavailable: The server is unreachable, or its response is HTTP 5xx or HTTP 429.
        UserError: The server refused the request, or its response is not JSON.
    """
    try:
        with translate_errors(client):
            response = client.request(method, path, **options)
    except Unreachable as error:
        raise ServerUnavailable(f"the server at {error.why}") from None
    raise_for_status(response)
    try:
        body: dict[str, Any] = response.json()
    except ValueError:
        raise UserError(f"HTTP {response.status_code}: {_wrong_server_hint(response)}") from None
    return body


def raise_for_status(response: httpx.Response) -> None:
    """Raise an error with the server's message if the request failed.

    Raises:
        ServerUnavailable: The response is HTTP 5xx or HTTP 429, so the request may succeed later.
        UserError: The server refused the request.
    """
    if response.is_success:
        return
    response.read()
    try:
        error = response.json()["error"]
        place = f"{error['param']}: " if error.get("param") else ""
        text = f"{place}{error['message']}" + (f" [{error['code']}]" if error.get("code") else "")
    except (ValueError, KeyError, TypeError):
        text = f"{response.reason_phrase}: {_wrong_server_hint(response)}"
    later = response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS
    raise (ServerUnavailable if later else UserError)(f"HTTP {response.status_code}: {text}")


def _wrong_server_hint(response: httpx.Response) -> str:
    where = response.request.url.copy_with(query=None, username=None, password=None)
    return f"the response from {where} is not in the format of this API; check the base URL, which must end with /v1"


def download(client: httpx.Client, path: str, out: Path) -> None:
    """Download `path` of the API to the file `out`; an existing file is replaced.

    Raises:
        ServerUnavailable: The server is unreachable, or its response is HTTP 5xx or HTTP 429.
        UserError: The server refused the request, or the file cannot be written.
    """
    try:
        with translate_errors(client), client.stream("GET", path) as response:
            raise_for_status(response)
            with out.open("wb") as file:
                for chunk in response.iter_bytes():
                    file.write(chunk)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    except Unreachable as error:
        raise ServerUnavailable(f"the server at {error.why}") from None


def iter_pages(
    client: httpx.Client, path: str, limit: int, query: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Request a list page by page, and yield its first `limit` entries; `query` is sent with each request."""
    cursor: dict[str, Any] = {}
    while limit > 0:
        page = send_request(client, "GET", path, params={"limit": min(limit, PAGE), **(query or {}), **cursor})
        yield from page["data"]
        limit -= len(page["data"])
        if not page["has_more"] or page["last_id"] is None:
            return
        cursor = {"after": page["last_id"]}


def upload(client: httpx.Client, path: Path, purpose: str) -> dict[str, Any]:
    """Upload a file and return the API's JSON object for the uploaded file.

    Raises:
        ServerUnavailable: The server is unreachable, or its response is HTTP 5xx or HTTP 429.
        UserError: The file cannot be read, or the server refused the upload.
    """
    try:
        with path.open("rb") as file:
            return send_request(client, "POST", "/files", data={"purpose": purpose}, files={"file": (path.name, file)})
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
