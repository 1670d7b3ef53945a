"""Isolation of a local cluster: its processes listen only on the loopback address, and its token is private."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os.path import expanduser
from pathlib import Path

from agent_rft.cluster.ray_cluster.ray_internals import allow_loopback
from agent_rft.errors import UserError

TOKEN_FILE = Path(".ray") / "auth_token"
"""Path of Ray's token file in the user's home folder."""
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
"""Environment variables that make Ray and torch's process groups listen only on 127.0.0.1.

Without the first variable, Ray replaces the address 127.0.0.1 with another address, except on macOS.
"""
LOOPBACK = "127.0.0.1,localhost"


def loopback_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make processes listen only on the loopback address.

    The variables also disable proxies for connections to this address. Otherwise, Ray's job client would use the
    environment's proxy even for a local cluster.
    """
    names = ("no_proxy", "NO_PROXY")  # the first takes precedence
    name = next((name for name in names if environment.get(name)), names[-1])
    direct = environment.get(name, "")
    if direct.strip() != "*":  # "*" means all hosts, but only without other entries
        direct = f"{direct},{LOOPBACK}" if direct else LOOPBACK
    return {variable: environment.get(variable, value) for variable, value in LOOPBACK_ONLY.items()} | {name: direct}


@contextmanager
def use_loopback() -> Iterator[None]:
    """Context manager that makes processes listen only on the loopback address if they are started within it."""
    environment = dict(os.environ)
    variables = loopback_variables(environment)
    os.environ |= variables
    try:
        with allow_loopback():
            yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ |= {name: environment[name] for name in variables.keys() & environment.keys()}


def protect_token(home: str | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Ensure that only the user can read Ray's token. Ray itself would create a token that everybody can read.

    Raises:
        UserError: The user has no home folder for the token, or the token cannot be written.
    """
    if environment.get("RAY_AUTH_MODE") == "disabled" or "RAY_AUTH_TOKEN" in environment:
        return
    home = expanduser("~") if home is None else home
    path = Path(home) / TOKEN_FILE
    fix = "set HOME to a folder in which Ray and vLLM can write files"
    if not path.is_absolute():
        raise UserError(f"this user has no home folder: {fix}")
    try:
        if path.exists():
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="auth_token.") as file:  # with mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # another command was faster
                os.link(file.name, path)
    except OSError as error:
        raise UserError(f"Ray's token {path} cannot be stored: {error.strerror}; {fix}") from None
