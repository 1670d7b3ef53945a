"""What a cluster of this machine changes around itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cluster.ray_cluster.loopback import LOOPBACK_ONLY, TOKEN_FILE, keep_token_private, on_the_loopback


def test_rays_token_is_readable_by_its_user_only(tmp_path: Path) -> None:
    keep_token_private(tmp_path)
    token = tmp_path / TOKEN_FILE
    text = token.read_text()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(text) == 64
    assert os.listdir(token.parent) == [token.name]
    token.chmod(0o644)  # as Ray makes it
    keep_token_private(tmp_path)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and token.read_text() == text


def test_a_home_without_room_for_a_token_is_left_to_ray(tmp_path: Path) -> None:
    (tmp_path / ".ray").write_text("a file")
    keep_token_private(tmp_path)
    assert (tmp_path / ".ray").read_text() == "a file"


def test_a_later_connection_to_another_cluster_is_not_affected() -> None:
    before = dict(os.environ)
    with on_the_loopback():
        assert before | LOOPBACK_ONLY == dict(os.environ) | LOOPBACK_ONLY
        assert all(name in os.environ for name in LOOPBACK_ONLY)
    assert dict(os.environ) == before
