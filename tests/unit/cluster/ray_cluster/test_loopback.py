"""What a cluster of this machine changes around itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from requests.utils import get_environ_proxies  # as Ray's client

from agent_rft.cluster.ray_cluster.loopback import (
    LOOPBACK_ONLY,
    TOKEN_FILE,
    loopback_variables,
    protect_token,
    use_loopback,
)
from agent_rft.errors import UserError


def test_rays_token_is_readable_by_its_user_only(tmp_path: Path) -> None:
    protect_token(str(tmp_path), {})
    token = tmp_path / TOKEN_FILE
    text = token.read_text()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(text) == 64
    assert os.listdir(token.parent) == [token.name]
    token.chmod(0o644)  # as Ray makes it
    protect_token(str(tmp_path), {})
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and token.read_text() == text


def test_a_home_in_which_no_token_can_be_kept_is_refused_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / ".ray").write_text("a file")
    with pytest.raises(UserError, match=r"\.ray/auth_token cannot be stored: .*; set HOME to a folder"):
        protect_token(str(tmp_path), {})
    assert (tmp_path / ".ray").read_text() == "a file"


def test_a_user_without_a_home_is_told_to_set_one() -> None:
    """`expanduser` leaves the tilde as it is: no HOME, and no entry of the user, as in a container."""
    with pytest.raises(UserError, match="this user has no home folder: set HOME"):
        protect_token("~", {})


@pytest.mark.parametrize("environment", [{"RAY_AUTH_TOKEN": "t"}, {"RAY_AUTH_MODE": "disabled"}])
def test_a_home_is_not_needed_where_the_token_is_elsewhere(environment: dict[str, str]) -> None:
    protect_token("~", environment)


def test_a_later_connection_to_another_cluster_is_not_affected() -> None:
    before = dict(os.environ)
    with use_loopback():
        assert dict(os.environ) == before | loopback_variables(before)
        assert all(name in os.environ for name in LOOPBACK_ONLY)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("environment", "through"),
    [
        ({}, True),
        ({"NO_PROXY": "a.example, 10.0.0.0/8"}, True),
        ({"no_proxy": "a.example", "NO_PROXY": "b.example"}, True),
        ({"no_proxy": "", "NO_PROXY": "b.example"}, True),
        ({"NO_PROXY": "*"}, False),
    ],
)
def test_rays_job_client_reaches_the_cluster_of_this_machine_without_the_proxy(
    environment: dict[str, str], through: bool
) -> None:
    before = dict(os.environ)
    for name in ("no_proxy", "NO_PROXY", "http_proxy"):
        os.environ.pop(name, None)
    os.environ |= {"HTTP_PROXY": "http://proxy:3128"} | environment
    try:
        with use_loopback():
            assert get_environ_proxies("http://127.0.0.1:8265/api/jobs/") == {}
            assert bool(get_environ_proxies("http://other.example:8265/")) == through
            assert get_environ_proxies("http://a.example/") == {} or "a.example" not in str(environment)
    finally:
        os.environ.clear()
        os.environ.update(before)
