"""HTTP client of a server's API for the command line: requests, paginated lists, and errors with the server's messages.

The server and the key are looked up in this order:
- the options
- AGENT_RFT_BASE_URL and AGENT_RFT_API_KEY
- OPENAI_BASE_URL and OPENAI_API_KEY
- a profile in `~/.config/agent-rft/profiles.yaml`, which has entries `NAME: {base_url: ..., api_key: ...}`

OPENAI_API_KEY is sent only to OPENAI_BASE_URL, and AGENT_RFT_API_KEY is never sent there.
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
    """Temporary error: the server is unreachable, failed or is rate limiting."""


def make_server_client(
    base_url: str | None,
    api_key: str | None,
    profile: str,
    environment: Mapping[str, str],
    profiles: Path,
    timeout: httpx.Timeout = TIMEOUT,
) -> httpx.Client:
    """Return a client of the configured server.

    Raises:
        UserError: The server or key is not configured, or the server, key or proxy is invalid.
    """
    known = load_profiles(profiles)
    chosen = known.get(profile) or {}
    if profile != "default" and not chosen:
        raise UserError(f"no profile {profile!r} in {profiles}; existing profiles: {', '.join(known) or 'none'}")

    def first_set(*found: SourcedSetting | None) -> SourcedSetting | None:
        return next((setting for setting in found if setting is not None), None)

    def variable(name: str) -> SourcedSetting | None:
        return _setting(environment.get(name), name)

    def chosen_setting(name: str) -> SourcedSetting | None:
        return _setting(chosen.get(name), f"{name} of the profile {profile!r} in {profiles}")

    openai = variable("OPENAI_BASE_URL")
    url = first_set(
        _setting(base_url, "--base-url"), variable("AGENT_RFT_BASE_URL"), openai, chosen_setting("base_url")
    )
    if url is None:
        raise UserError(f"no server is configured: give --base-url, AGENT_RFT_BASE_URL, or base_url in {profiles}")
    name, other = ("OPENAI_API_KEY", None) if url is openai else ("AGENT_RFT_API_KEY", chosen_setting("api_key"))
    key = first_set(_setting(api_key, "--api-key"), variable(name), other)
    if key is None:
        raise UserError(f"no API key is configured: give --api-key, {name}, or api_key in {profiles}")
    return create_blocking_client(url, key, environment, timeout)


def _setting(value: object, source: str) -> SourcedSetting | None:
    """Return the value without surrounding white space; None if it is empty."""
    text = "" if value is None else str(value).strip()
    return SourcedSetting(text, source) if text else None


def profiles_file() -> Path:
    """Return the path of the profiles file. If the user has no home, it begins with a tilde and does not exist."""
    return Path(expanduser("~/.config/agent-rft/profiles.yaml"))


def load_profiles(path: Path) -> dict[str, dict[str, Any]]:
    """Return the profiles of a file by name; empty if the file cannot be read, such as one in another user's home.

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
        NoAnswer: The server is unreachable, failed or is rate limiting.
        UserError: The request was refused.
    """
    try:
        with translate_errors(client):
            answer = client.request(method, path, **options)
    except Unreachable as error:
        raise ServerUnavailable(f"the server at {error.why}") from None
    raise_for_status(answer)
    try:
        body: dict[str, Any] = answer.json()
    except ValueError:
        raise UserError(f"HTTP {answer.status_code}: {_wrong_server_hint(answer)}") from None
    return body


def raise_for_status(answer: httpx.Response) -> None:
    """Check that a request succeeded.

    Raises:
        NoAnswer: The request failed, but may succeed later.
        UserError: The request was refused; the message is the server's.
    """
    if answer.is_success:
        return
    answer.read()
    try:
        error = answer.json()["error"]
        place = f"{error['param']}: " if error.get("param") else ""
        text = f"{place}{error['message']}" + (f" [{error['code']}]" if error.get("code") else "")
    except (ValueError, KeyError, TypeError):
        text = f"{answer.reason_phrase}: {_wrong_server_hint(answer)}"
    later = answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS
    raise (ServerUnavailable if later else UserError)(f"HTTP {answer.status_code}: {text}")


def _wrong_server_hint(answer: httpx.Response) -> str:
    where = answer.request.url.copy_with(query=None, username=None, password=None)
    return f"{where} does not answer as this API does; check the base URL, which ends with /v1"


def download(client: httpx.Client, path: str, out: Path) -> None:
    """Write the body of a successful response to the file `out`, replacing it.

    Raises:
        NoAnswer: The server is unreachable, failed or is rate limiting.
        UserError: The request was refused, or the file cannot be written.
    """
    try:
        with translate_errors(client), client.stream("GET", path) as answer:
            raise_for_status(answer)
            with out.open("wb") as file:
                for chunk in answer.iter_bytes():
                    file.write(chunk)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    except Unreachable as error:
        raise ServerUnavailable(f"the server at {error.why}") from None


def iter_pages(
    client: httpx.Client, path: str, limit: int, query: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the first `limit` entries of a paginated list."""
    after: dict[str, Any] = {}
    while limit > 0:
        page = send_request(client, "GET", path, params={"limit": min(limit, PAGE), **(query or {}), **after})
        yield from page["data"]
        limit -= len(page["data"])
        if not page["has_more"] or page["last_id"] is None:
            return
        after = {"after": page["last_id"]}


def upload(client: httpx.Client, path: Path, purpose: str) -> dict[str, Any]:
    """Upload a file and return its file object.

    Raises:
        NoAnswer: The server is unreachable, failed or is rate limiting.
        UserError: The file cannot be read, or the upload was refused.
    """
    try:
        with path.open("rb") as file:
            return send_request(client, "POST", "/files", data={"purpose": purpose}, files={"file": (path.name, file)})
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
