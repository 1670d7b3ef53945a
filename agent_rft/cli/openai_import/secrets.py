"""Keeps secrets out of what is written: header values and credentials in URLs become `${NAME}`.

OpenAI's API never gives the values of headers, so the user has to set them in any case. The names begin with KEY_, so
that no job can name a variable that is there for something else.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from yarl import URL

DOLLAR = "DOLLAR"
_REFERENCE = re.compile(r"\$(?=\{[A-Za-z_])")


class Secrets:
    """The environment variables that a job file needs: `needed` says by name what each is for."""

    def __init__(self) -> None:
        """Begins without any."""
        self.needed: dict[str, str] = {}
        self.without_headers: list[str] = []
        """The endpoints for which the job shows no headers."""

    def variable(self, owner: str, name: str, purpose: str) -> str:
        """A reference to a variable for the secret `name` of `owner`, such as a host."""
        words = re.findall(r"[A-Za-z0-9]+", f"{owner} {name}")
        variable = "_".join(["KEY", *words]).upper()
        self.needed.setdefault(variable, purpose)
        return f"${{{variable}}}"

    def literal(self, value: Any) -> Any:
        """The value with each `${NAME}` in its texts written so that the job file means these very characters."""
        if isinstance(value, dict):
            return {key: self.literal(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.literal(item) for item in value]
        if not isinstance(value, str) or not _REFERENCE.search(value):
            return value
        self.needed.setdefault(DOLLAR, "the character $ itself, since a text of the job has ${...}")
        return _REFERENCE.sub(f"${{{DOLLAR}}}", value)

    def endpoint(self, spec: Any, place: str, *url_keys: str) -> Any:
        """The mapping at `place` in the method, which has `headers` and URLs, without their secrets."""
        if not isinstance(spec, dict):
            return spec
        urls = {key: spec[key] for key in url_keys if isinstance(spec.get(key), str)}
        found = spec | {key: self._url(url) for key, url in urls.items()}
        headers = spec.get("headers")
        if not headers:
            self.without_headers.append(place)
        elif isinstance(headers, dict):
            owner = next((_host(url) for url in urls.values()), "")
            purpose = f"the whole value of this header for {owner}, such as `Bearer ...`"
            found["headers"] = {name: self.variable(owner, str(name), f"{name}: {purpose}") for name in headers}
        return found

    def _url(self, url: str) -> str:
        """The URL with variables for user, password and the values of its query."""
        try:
            parsed = URL(url)
        except ValueError:
            return url  # which no job may have: the form check refuses it
        if parsed.user is None and parsed.password is None and not parsed.query:
            return url
        host = _host(url)
        purpose = f"a part of the URL of {host}, percent-encoded"
        before = ""
        if parsed.user is not None or parsed.password is not None:
            user, password = (self.variable(host, name, f"{name}: {purpose}") for name in ("user", "password"))
            before = f"{user}:{password}@"
        query = "&".join(f"{quote(key)}={self.variable(host, key, f'{key}: {purpose}')}" for key in parsed.query)
        return f"{parsed.scheme}://{before}{host}{parsed.raw_path}" + (f"?{query}" if query else "")


def _host(url: str) -> str:
    """Host and port of a URL; empty if it has none."""
    try:
        return URL(url).raw_authority.rpartition("@")[2]
    except ValueError:
        return ""
