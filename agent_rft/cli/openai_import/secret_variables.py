"""Replacement of secrets in imported jobs: header values and credentials in URLs become `${NAME}`.

OpenAI's API never returns header values, so the user must set them. The names of the variables begin with KEY_, so that
an imported job cannot read an existing variable with another purpose.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from yarl import URL

from agent_rft.actors.endpoints.network.endpoint_url_checks import find_length_problem

DOLLAR = "DOLLAR"
_REFERENCE = re.compile(r"\$(?=\{[A-Za-z_])")


class SecretVariables:
    """Environment variables that an imported job file needs; `purposes` maps each variable's name to its purpose."""

    def __init__(self) -> None:
        """Create a collection without variables."""
        self.purposes: dict[str, str] = {}
        self.without_headers: list[str] = []
        """Endpoints for which the job has no headers."""

    def add_variable(self, owner: str, name: str, purpose: str) -> str:
        """Add a variable for the secret `name` of `owner`, such as a host, and return a reference to the variable."""
        words = re.findall(r"[A-Za-z0-9]+", f"{owner} {name}")
        variable = "_".join(["KEY", *words]).upper()
        self.purposes.setdefault(variable, purpose)
        return f"${{{variable}}}"

    def escape(self, value: Any) -> Any:
        """Return the value with each `${NAME}` in its strings escaped, so that the job's reader does not replace it."""
        if isinstance(value, dict):
            return {key: self.escape(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.escape(item) for item in value]
        if not isinstance(value, str) or not _REFERENCE.search(value):
            return value
        self.purposes.setdefault(DOLLAR, "keep this value: in job.yaml, ${DOLLAR} stands for a literal $")
        return _REFERENCE.sub(f"${{{DOLLAR}}}", value)

    def replace_secrets(self, spec: Any, place: str, *url_keys: str) -> Any:
        """Return a copy of the endpoint `spec` in which variables replace the secrets in headers and URLs.

        `place` is the endpoint's path in the job's method; `url_keys` are the keys of `spec` whose values are URLs.
        """
        if not isinstance(spec, dict):
            return spec
        urls = {key: spec[key] for key in url_keys if isinstance(spec.get(key), str)}
        found = spec | {key: self._replace_credentials(url) for key, url in urls.items()}
        headers = spec.get("headers")
        if not headers:
            self.without_headers.append(place)
        elif isinstance(headers, dict):
            owner = next((_host(url) for url in urls.values()), "")
            purpose = f"the full value of this header for {owner}, such as `Bearer ...`"
            found["headers"] = {name: self.add_variable(owner, str(name), f"{name}: {purpose}") for name in headers}
        return found

    def _replace_credentials(self, url: str) -> str:
        """Return the URL with variables for its user, password and query values."""
        if find_length_problem(url) is not None:
            return url  # too long, which the check of the job reports
        try:
            parsed = URL(url)
        except ValueError:
            return url  # invalid, which the check of the job reports
        if parsed.user is None and parsed.password is None and not parsed.query:
            return url
        host = _host(url)
        purpose = f"this part of the URL of {host}; percent-encode the value"
        before = ""
        if parsed.user is not None or parsed.password is not None:
            user, password = (self.add_variable(host, name, f"{name}: {purpose}") for name in ("user", "password"))
            before = f"{user}:{password}@"
        query = "&".join(f"{quote(key)}={self.add_variable(host, key, f'{key}: {purpose}')}" for key in parsed.query)
        return f"{parsed.scheme}://{before}{host}{parsed.raw_path}" + (f"?{query}" if query else "")


def _host(url: str) -> str:
    """Return the host and port of a URL; empty if the URL is invalid, too long or has no host."""
    if find_length_problem(url) is not None:
        return ""
    try:
        return URL(url).raw_authority.rpartition("@")[2]
    except ValueError:
        return ""
