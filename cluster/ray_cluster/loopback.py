"""A cluster of this machine keeps to itself: its processes listen on the loopback address, and its token is private."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ray._private import ray_constants

TOKEN_FILE = Path(".ray") / "auth_token"
"""Where Ray looks for its token, below the user's home."""
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
"""The first makes 127.0.0.1 Ray's address of this node, as it always is on macOS; then Ray listens only there. It would
replace a 127.0.0.1 that it is given by another address. The second does the same for torch's process groups."""


@contextmanager
def on_the_loopback() -> Iterator[None]:
    """Within the block, what this process and its child processes start listens on the loopback address only."""
    environment, clusters = dict(os.environ), ray_constants.ENABLE_RAY_CLUSTER
    os.environ |= {name: value for name, value in LOOPBACK_ONLY.items() if name not in environment}
    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the variable when Ray was imported
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name in LOOPBACK_ONLY.keys() - environment.keys():
            os.environ.pop(name, None)


def keep_token_private(home: Path | None = None) -> None:
    """Make sure that only the user reads Ray's token: a local run would make one that everybody may read.

    What is not possible is left to Ray, whose error says which file it could not write.
    """
    path = (home or Path.home()) / TOKEN_FILE
    with suppress(OSError):
        if path.exists():
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="auth_token.") as file:  # with mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)
