"""The cookie of the console's session, and the check that a change made with it comes from the console's own page.

The cookie's name has the port: browsers share cookies among the ports of a host, and several servers may run on one.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from agent_rft.wire.errors import ApiError

PATH = "/v1"
"""Only the API gets the cookie."""


def name_of(headers: Headers) -> str:
    port = headers.get("host", "").rpartition(":")[2]
    return f"agent_rft_session_{port}" if port.isascii() and port.isdecimal() else "agent_rft_session"


def session_of(headers: Headers) -> str:
    """Returns the session's token, empty without one."""
    return cookie_parser(headers.get("cookie", "")).get(name_of(headers), "")


def set_session(response: Response, headers: Headers, token: str, max_age_s: int) -> None:
    """Gives a browser the session: no script can read it, and no other site's page sends it."""
    secure = headers.get("origin", "").startswith("https:")  # as the browser sees it, also behind a proxy with TLS
    response.set_cookie(name_of(headers), token, max_age_s, path=PATH, secure=secure, httponly=True, samesite="strict")


def delete_session(response: Response, headers: Headers) -> None:
    response.delete_cookie(name_of(headers), path=PATH)


def check_origin(headers: Headers) -> None:
    """Checks that a browser sent a request from a page of this server; a cookie alone does not show that.

    Raises:
        ApiError: 403.
    """
    origin = urlsplit(headers.get("origin", ""))
    if not origin.netloc or origin.netloc != headers.get("host", ""):
        message = (
            "A change with a session's cookie must come from the console's own page: Origin and Host differ. "
            "Programs send Authorization: Bearer sk-rft-...; a proxy must pass on the Host that the browser sent."
        )
        raise ApiError(403, message, code="foreign_origin", type="permission_error")
