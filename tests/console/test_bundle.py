"""The bundle that is checked in is what its source builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent_rft.serve.console.console_files import BUNDLE
from tests.support.paths import ROOT


@pytest.mark.nightly
def test_the_bundle_is_built_of_its_source(tmp_path: Path) -> None:
    subprocess.run(["make", "console", f"BUNDLE={tmp_path}"], cwd=ROOT, check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in BUNDLE.iterdir()}, "run make console and commit it"
