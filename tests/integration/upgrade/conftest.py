"""What version 0289249 left behind, unpacked for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.old_version import OldVersion, old_version


@pytest.fixture
def old(tmp_path: Path) -> OldVersion:
    return old_version(tmp_path / "old")
