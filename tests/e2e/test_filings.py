"""The filings' example on its real small model, nightly: the whole way, with a gain by the held-out grader reported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from examples.filings.results import paired_gain
from tests.e2e.command import processes_left
from tests.support.paths import ROOT

MODEL = "build/smollm2-135m-instruct"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_real_model_goes_the_whole_way(seed: int) -> None:
    subprocess.run(["make", MODEL], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "examples.filings.real_model", MODEL, "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((ROOT / "build" / "filings" / f"rubric-{seed}" / "summary.json").read_text())
    untrained, warm, tuned = summary["stages"]
    assert untrained["grade"] < 0.1
    assert len(tuned["held_out"]) >= 100
    gain, half = paired_gain(warm["held_out"], tuned["held_out"])
    assert gain + half > 0, "reinforcement made the held-out grade worse"
    assert processes_left() == []
