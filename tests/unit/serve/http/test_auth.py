"""Authentication, without an app."""

from __future__ import annotations

import pytest

from agent_rft.serve.http.auth import KEY_CACHE_S, Authenticator, KeyRateLimit
from agent_rft.wire.api_errors import ApiError
from tests.support.api import TOKEN, FakeKeys


async def test_a_revoked_key_is_refused_within_a_second() -> None:
    now, keys = [100.0], FakeKeys()
    authenticator = Authenticator(keys, KeyRateLimit(6000), clock=lambda: now[0])
    key = await authenticator.authenticate(f"Bearer {TOKEN}")
    del keys.keys[TOKEN]
    now[0] += KEY_CACHE_S - 0.01
    assert await authenticator.authenticate(f"Bearer {TOKEN}") == key, "not every request queries the database"
    now[0] += 0.01
    with pytest.raises(ApiError, match="revoked") as raised:
        await authenticator.authenticate(f"Bearer {TOKEN}")
    assert raised.value.status == 401
    keys.keys[TOKEN] = key
    assert await authenticator.authenticate(f"Bearer {TOKEN}") == key
