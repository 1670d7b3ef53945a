"""The text of a URL that the user gave: bounded in size and time, redirects not followed.

Unlike a job's endpoints, this URL was typed by the person whose machine this is, so private networks are allowed; what
gives out credentials or reaches many machines (metadata, link-local and multicast addresses) is not.
"""

from __future__ import annotations

import asyncio

import aiohttp
from yarl import URL

from actors.endpoints.address_guard import ForbiddenAddress, Guard
from actors.endpoints.answer import status_text
from actors.endpoints.transport import describe
from actors.endpoints.url import endpoint_mistake, safe_url
from trainer.errors import UserError
from trainer.spec.operator.allowed import parse_allowed

TIMEOUT_S = 30.0
OWN_NETWORKS = ("127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
INSTEAD = "or save the file yourself and give its path"


def fetched(url: str, max_bytes: int) -> bytes:
    """The body of a successful answer.

    Raises:
        UserError: There is none, or it is too large.
    """
    if (mistake := endpoint_mistake(url, {})) is not None:
        raise UserError(f"--from: {mistake}")
    return asyncio.run(_get(url, max_bytes))


async def _get(url: str, max_bytes: int) -> bytes:
    shown = safe_url(url)
    guard = Guard([parse_allowed(network) for network in OWN_NETWORKS])
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=guard.connector(URL(url)), timeout=timeout) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "application/json, */*"}) as answer,
        ):
            if answer.status != 200:
                where = "; give the URL that it redirects to" if 300 <= answer.status < 400 else "; check the URL"
                raise UserError(f"{shown} answers {status_text(answer.status)}{where}, {INSTEAD}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise UserError(f"{shown} is larger than {max_bytes:,} bytes, the most that is read")
            return bytes(body)
    except TimeoutError:
        raise UserError(f"{shown} did not answer within {TIMEOUT_S:g} s; try again, {INSTEAD}") from None
    except (aiohttp.ClientError, OSError) as error:
        why = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
        if isinstance(why, ForbiddenAddress):
            raise UserError(f"{shown} points to {why.address}, {why.why}, which is not read; {INSTEAD[3:]}") from None
        raise UserError(f"{shown} cannot be read: {describe(error)}; check the URL, {INSTEAD}") from None
