"""An endpoint's URL and headers: validation, and how they are shown without their secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from yarl import URL

if TYPE_CHECKING:
    from agent_rft.spec.endpoints import (
        Headers,  # imports pydantic, which commands that call a server do not need
    )

OUR_HEADERS = frozenset({"content-length", "transfer-encoding", "idempotency-key"})
MIN_SECRET_CHARS = 6
"""Shorter parts of header values (a scheme, a version number) are not redacted: they are not secrets."""


def endpoint_mistake(url: str, headers: Headers, name: str = "URL") -> str | None:
    """What is wrong with this URL (called `name`) or these headers, without showing a secret; None if nothing is."""
    if (mistake := url_mistake(url)) is not None:
        return f"its {name} {mistake}"
    parsed = URL(url)
    names = {name.lower() for name in headers}
    if names & OUR_HEADERS:
        return f"these headers are set by agent-rft; remove them: {', '.join(sorted(names & OUR_HEADERS))}"
    if "authorization" in names and parsed.user is not None:
        return f"its {name} contains a user and its headers an Authorization; only one of them can be sent"
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            return f"the header name {name!r} contains characters that are not allowed in header names"
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value.get_secret_value()):
            return f"the value of the header {name!r} contains control characters (perhaps a line break at its end)"
        if name.lower() == "authorization" and not value.get_secret_value().isascii():
            return f"the value of the header {name!r} contains characters that no key has, such as curly quotes"
    return None


def url_mistake(url: str) -> str | None:
    """What is wrong with this URL, as the rest of a sentence about it; None if nothing is."""
    try:
        parsed = URL(url)
        (parsed.host or "").encode("idna")
    except ValueError:
        return "is invalid; give one such as http://host:8000/path"
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        return "must start with http:// or https:// and name a host"
    if re.search(r"\s", parsed.host):
        return "contains white space in its host"
    return None


def base_url_mistake(url: str) -> str | None:
    """Like `url_mistake`, for a URL to which paths are added: it contains no white space at all."""
    return "contains white space" if re.search(r"[\s\x00-\x1f\x7f]", url) else url_mistake(url)


def safe_url(url: str) -> str:
    """The URL without user, password, query and fragment, for messages."""
    return str(URL(url).with_user(None).with_query(None).with_fragment(None))


def secrets_of(url: str, header_values: Iterable[str]) -> list[str]:
    """Texts to redact in messages, longest first: header values and their words, password, query values."""
    parsed = URL(url)
    texts = {parsed.password or "", *parsed.query.values()}
    for value in header_values:
        texts |= {value, *value.split()}
    return sorted((text for text in texts if len(text) >= MIN_SECRET_CHARS), key=len, reverse=True)


def scrub(text: str, secrets: Sequence[str]) -> str:
    """`text` without the secrets, which some servers echo."""
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    return text
