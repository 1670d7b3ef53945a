"""The token of a local Ray cluster. Importing this module does not import Ray."""

from __future__ import annotations

import os
import secrets
import sys


def has_token() -> bool:
    """Whether this process has a token for its local cluster."""
    return "RAY_AUTH_TOKEN" in os.environ


def restart_with_token() -> None:
    """Restart this program with a new token for its local cluster, unless it has one already.

    Setting the variables in this process would be too late, because Ray reads them on import.
    """
    if not has_token():
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.execv(sys.executable, sys.orig_argv)
