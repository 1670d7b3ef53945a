"""URL and headers of an endpoint: validation, and redaction of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from yarl import URL

if TYPE_CHECKING:
    from agent_rft.spec.endpoints import (
        Headers,  # imports pydantic, which makes commands that call a server slow
    )

RESERVED_HEADERS = frozenset({"content-length", "transfer-encoding", "idempotency-key"})
MAX_URL_BYTES = 8_192
MAX_HOST_CHARS = 253
"""Maximum length of a host name in DNS."""
MIN_SECRET_CHARS = 6
"""Minimum length of a secret; shorter parts of header values, such as a scheme or a version, are not redacted."""


def find_endpoint_problem(url: str, headers: Headers, name: str = "URL") -> str | None:
    """Return the problem with an endpoint's URL or headers, without secrets; None if both are valid.

    `name` is the word for the URL in the message, such as "base_url".
    """
    if (problem := find_url_problem(url)) is not None:
        return f"its {name} {problem}"
    parsed = URL(url)
    names = {name.lower() for name in headers}
    if names & RESERVED_HEADERS:
        return f"these headers are set by agent-rft; remove them: {', '.join(sorted(names & RESERVED_HEADERS))}"
    if "authorization" in names and parsed.user is not None:
        return f"the {name} contains a user name and the headers contain Authorization; remove one of them"
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            return f"the header name {name!r} contains characters that are not allowed in header names"
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value.get_secret_value()):
            return f"the value of the header {name!r} contains control characters (perhaps a line break at its end)"
        if name.lower() == "authorization" and not value.get_secret_value().isascii():
            return f"the header {name!r} contains characters that are invalid in a key, such as curly quotes"
    return None


def find_url_problem(url: str) -> str | None:
    """Return the problem with a URL as a predicate ("is invalid; ..."); None if the URL is valid."""
    if (problem := find_length_problem(url)) is not None:
        return problem
    try:
        parsed = URL(url)
        (parsed.host or "").encode("idna")
    except ValueError:
        return "is invalid; use a URL such as http://host:8000/path"
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        return "must start with http:// or https:// and name a host"
    if re.search(r"\s", parsed.host):
        return "contains white space in its host"
    return None


def find_length_problem(url: str) -> str | None:
    """Return the problem with a URL's length as `find_url_problem` does, without parsing the URL.

    A parser may take seconds to convert a long host name with non-ASCII letters.
    """
    if len(url) > MAX_URL_BYTES or len(url.encode(errors="replace")) > MAX_URL_BYTES:
        return f"is longer than {MAX_URL_BYTES:,} bytes; send long values in a header"
    authority = re.split(r"[/?#\\]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    if len(re.sub(r":\d*$", "", authority)) > MAX_HOST_CHARS:
        return f"has a host with more than {MAX_HOST_CHARS} characters; use a name that DNS supports"
    return None


def find_base_url_problem(url: str) -> str | None:
    """Return the problem with a base URL, as `find_url_problem` does. A base URL cannot contain white space."""
    return "contains white space" if re.search(r"[\s\x00-\x1f\x7f]", url) else find_url_problem(url)


def redact_url(url: str) -> str:
    """Return the URL without user, password, query and fragment, for messages."""
    return str(URL(url).with_user(None).with_query(None).with_fragment(None))


def list_secrets(url: str, header_values: Iterable[str]) -> list[str]:
    """Return the strings to redact, longest first.

    These are the header values, each word of a header value, and the URL's password and query values.
    """
    parsed = URL(url)
    texts = {parsed.password or "", *parsed.query.values()}
    for value in header_values:
        texts |= {value, *value.split()}
    return sorted((text for text in texts if len(text) >= MIN_SECRET_CHARS), key=len, reverse=True)


def scrub(text: str, secrets: Sequence[str]) -> str:
    """Replace the secrets in `text` with "[redacted]", since some servers echo the secrets of a request."""
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    return text
