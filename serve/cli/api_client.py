"""A client of a server's API for the command line: single requests, paginated lists, and errors in the server's words.

The server and the key come from options, else from the environment (AGENT_RFT_BASE_URL and AGENT_RFT_API_KEY, else
OPENAI_BASE_URL and OPENAI_API_KEY), else from a profile: `~/.config/agent-rft/profiles.yaml`, `NAME: {base_url: ...,
api_key: ...}`. OPENAI_API_KEY goes to OPENAI_BASE_URL only, and no other key of the environment goes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from trainer.errors import RftError, UserError

PROFILES = Path("~/.config/agent-rft/profiles.yaml")
TIMEOUT = httpx.Timeout(60.0, write=600.0)
PAGE = 100


class NoAnswer(RftError):
    """The server is unreachable, failed or is rate limiting: the same request may succeed later."""


def client_of(
    base_url: str | None,
    api_key: str | None,
    profile: str,
    environment: Mapping[str, str],
    profiles: Path,
    timeout: httpx.Timeout = TIMEOUT,
) -> httpx.Client:
    """Returns a client of the configured server.

    Raises:
        UserError: no server or no key is configured.
    """
    known = profiles_of(profiles)
    chosen = known.get(profile) or {}
    if profile != "default" and not chosen:
        raise UserError(f"no profile {profile!r} in {profiles}; existing profiles: {', '.join(known) or 'none'}")

    ours = {name: environment.get(f"AGENT_RFT_{name.upper()}") or chosen.get(name) for name in ("base_url", "api_key")}
    theirs = environment.get("OPENAI_BASE_URL"), environment.get("OPENAI_API_KEY")
    url, key = base_url or environment.get("AGENT_RFT_BASE_URL"), ours["api_key"]
    if not url and theirs[0]:
        url, key = theirs
    url, key = url or ours["base_url"], api_key or key
    if not url:
        raise UserError(f"no server is configured: give --base-url, AGENT_RFT_BASE_URL, or base_url in {profiles}")
    if not key:
        variable = "OPENAI_API_KEY" if url == theirs[0] else "AGENT_RFT_API_KEY"
        raise UserError(f"no API key is configured: give --api-key, {variable}, or api_key in {profiles}")
    return httpx.Client(base_url=str(url), headers={"Authorization": f"Bearer {key}"}, timeout=timeout)


def profiles_of(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the profiles of a file by name; none if the file does not exist.

    Raises:
        UserError: the file is not a valid profiles file.
    """
    try:
        known = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError):
        known = "unreadable"
    if known is not None and not (isinstance(known, dict) and all(isinstance(v, dict) for v in known.values())):
        raise UserError(f"{path} is not a valid profiles file; write NAME: {{base_url: ..., api_key: ...}}")
    return known or {}


def ask(client: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Sends a request and returns the JSON body of its response.

    Raises:
        NoAnswer: the server is unreachable, failed or is rate limiting.
        UserError: the request was refused.
    """
    try:
        answer = client.request(method, path, **options)
    except httpx.TransportError as error:
        raise NoAnswer(f"the server at {client.base_url} does not answer: {error}") from None
    check(answer)
    body: dict[str, Any] = answer.json()
    return body


def check(answer: httpx.Response) -> None:
    """Checks that a request succeeded.

    Raises:
        NoAnswer: the same request may succeed later.
        UserError: the request was refused; its text is the server's.
    """
    if answer.is_success:
        return
    answer.read()
    try:
        error = answer.json()["error"]
        place = f"{error['param']}: " if error.get("param") else ""
        text = f"{place}{error['message']}" + (f" [{error['code']}]" if error.get("code") else "")
    except (ValueError, KeyError, TypeError):
        where = answer.request.url.copy_with(query=None)
        text = (
            f"{answer.reason_phrase}: {where} does not answer as this API does; check the base URL, which ends with /v1"
        )
    later = answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS
    raise (NoAnswer if later else UserError)(f"HTTP {answer.status_code}: {text}")


def pages(
    client: httpx.Client, path: str, limit: int, query: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the first `limit` entries of a paginated list."""
    after: dict[str, Any] = {}
    while limit > 0:
        page = ask(client, "GET", path, params={"limit": min(limit, PAGE), **(query or {}), **after})
        yield from page["data"]
        limit -= len(page["data"])
        if not page["has_more"] or page["last_id"] is None:
            return
        after = {"after": page["last_id"]}


def upload(client: httpx.Client, path: Path, purpose: str) -> dict[str, Any]:
    """Uploads a file and returns its file object.

    Raises:
        NoAnswer: the server is unreachable, failed or is rate limiting.
        UserError: the file cannot be read, or the upload was refused.
    """
    try:
        with path.open("rb") as file:
            return ask(client, "POST", "/files", data={"purpose": purpose}, files={"file": (path.name, file)})
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
