"""The token of a local Ray cluster. Importing this module does not import Ray."""

from __future__ import annotations

import os
import secrets
import sys


def restart_with_token() -> None:
    """Restart this program with a new token for its local cluster, unless it has one already.

    Setting the variables in this process would be too late, because Ray reads them on import.
    """
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.execv(sys.executable, sys.orig_argv)
