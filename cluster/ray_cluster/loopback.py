"""A cluster of this machine keeps to itself: its processes listen on the loopback address, and its token is private."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os.path import expanduser
from pathlib import Path

from agent_rft.cluster.ray_cluster.ray_internals import loopback_allowed
from agent_rft.errors import UserError

TOKEN_FILE = Path(".ray") / "auth_token"
"""Where Ray looks for its token, below the user's home."""
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
"""The first makes 127.0.0.1 Ray's address of this node, as it always is on macOS; then Ray listens only there. It would
replace a 127.0.0.1 that it is given by another address. The second does the same for torch's process groups."""
LOOPBACK = "127.0.0.1,localhost"


def loopback_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which processes listen on the loopback address only, and reach it without a proxy.

    Ray's job client uses the proxy of the environment even for the cluster of this machine.
    """
    names = ("no_proxy", "NO_PROXY")  # the first is read instead of the second
    name = next((name for name in names if environment.get(name)), names[-1])
    direct = environment.get(name, "")
    if direct.strip() != "*":  # which means all only if it stands alone
        direct = f"{direct},{LOOPBACK}" if direct else LOOPBACK
    return {variable: environment.get(variable, value) for variable, value in LOOPBACK_ONLY.items()} | {name: direct}


@contextmanager
def on_the_loopback() -> Iterator[None]:
    """Within the block, what this process and its child processes start listens on the loopback address only."""
    environment = dict(os.environ)
    variables = loopback_variables(environment)
    os.environ |= variables
    try:
        with loopback_allowed():
            yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ |= {name: environment[name] for name in variables.keys() & environment.keys()}


def keep_token_private(home: str | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Make sure that only the user reads Ray's token: a local run would make one that everybody may read.

    Raises:
        UserError: The token is to be in the user's home, and there is none, or it cannot be written.
    """
    if environment.get("RAY_AUTH_MODE") == "disabled" or "RAY_AUTH_TOKEN" in environment:
        return
    home = expanduser("~") if home is None else home
    path = Path(home) / TOKEN_FILE
    remedy = "set HOME to a folder that you can write, for the files of Ray and vLLM"
    if not path.is_absolute():
        raise UserError(f"this user has no home folder: {remedy}")
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
        raise UserError(f"Ray's token {path} cannot be kept: {error.strerror}; {remedy}") from None
