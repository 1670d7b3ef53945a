"""Token of a local Ray cluster. Importing this module does not import Ray."""

from __future__ import annotations

import os
import secrets
import sys


def set_local_token() -> None:
    """Set a new token for this process's local cluster, unless the environment already has a token.

    Call this function before Ray is imported.

    Raises:
        RuntimeError: Ray has already been imported.
    """
    if "ray" in sys.modules:
        raise RuntimeError("the token of a local cluster must be set before Ray is imported")
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
