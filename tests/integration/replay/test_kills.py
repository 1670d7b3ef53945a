"""Killed in each phase, a run ends with the weights of one that was never disturbed, to the last bit."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest

from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.trainer.loop.checkpoint import Checkpoints
from tests.support.builders import job
from tests.support.recorded_run import BATCH, STEPS, Phase, live
from tests.support.tiny_model import write_tiny_model
from tests.support.version_folders import KILLED_AFTER_UPDATES, RUN, unpack

TWENTY = {"write-ahead": 4, "update": 4, "sync": 3, "snapshot": 2, "write": 2, "rename": 3, "sample": 2}
"""Kills by phase."""
SEVEN = dict.fromkeys(TWENTY, 1)
OFTEN = {"write-ahead", "update", "sync", "sample"}
"""Phases of every step: a life is killed in the first, second or third."""
WARM = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    WARM.set_forkserver_preload(["tests.support.recorded_run", "deepspeed"])


class Life:
    """One process of the run."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._reports, reports = WARM.Pipe(duplex=False)
        self._process = WARM.Process(target=live, args=(folder, model, reports))
        self._process.start()
        reports.close()

    def durations(self) -> dict[str, list[float]]:
        """Let it live to its end; how long each phase took."""
        entered: dict[str, float] = {}
        found: dict[str, list[float]] = defaultdict(list)
        while (report := self._reports.recv()) is not None:
            phase, enters = report
            if enters:
                entered[phase] = time.monotonic()
            else:
                found[phase].append(time.monotonic() - entered[phase])
        self._process.join()
        assert self._process.exitcode == 0
        return found

    def killed_in(self, phase: str, occurrence: int, after_s: float) -> bool:
        """Kill it so long after it entered a phase that often; False if it ended before."""
        try:
            while True:
                report = self._reports.recv()
                if report is None:
                    self._process.join()
                    return False
                occurrence -= report == (phase, True)
                if not occurrence:
                    break
        except EOFError:
            raise AssertionError(f"it failed with {self._process.exitcode}") from None
        time.sleep(after_s)
        assert self._process.pid is not None
        self._process.kill()
        self._process.join()
        return self._process.exitcode == -signal.SIGKILL


class Run:
    """One run in a folder, through all its lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._known: set[int] = set()

    def check_life(self, num_samples: int, why: str) -> None:
        """No group that was finished in an earlier life was sampled again; `num_samples` were sampled before."""
        sampled = [sample["index"] for sample in self.did("sample")[num_samples:]]
        assert not self._known & set(sampled), f"finished groups were sampled again after a kill in {why}"
        self._known |= {int(path.name[6:14]) for path in (self.folder / "journal").glob("group-*.zst")}

    def did(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "did.jsonl"
        lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return [line for line in lines if line["kind"] == kind]

    def updates(self) -> dict[int, tuple[str, str, str]]:
        """What each version was trained on, its loss and its gradient; the same in each replay."""
        found: dict[int, set[tuple[str, str, str]]] = defaultdict(set)
        for update in self.did("update"):
            found[update["version"]].add((update["trained"], update["loss"], update["norm"]))
        assert all(len(seen) == 1 for seen in found.values()), "a replayed update differs"
        return {version: seen.pop() for version, seen in found.items()}

    def weights(self) -> dict[int, str]:
        """The digests of the weights of each version, as they were published, also again after a kill."""
        published = {(one["version"], one["weights"]) for one in self.did("publish")}
        assert len(published) == len(dict(published)), "a version was published with two sets of weights"
        return dict(published)

    def steps(self) -> list[tuple[float, float, float]]:
        """What the run folder says of each step."""
        metrics = RunFolder(self.folder).metrics()
        return [(step["step"], step["loss"], step["groups_trained"]) for step in metrics]


@pytest.mark.parametrize(
    "times", [pytest.param(SEVEN, id="seven"), pytest.param(TWENTY, id="twenty", marks=pytest.mark.nightly)]
)
def test_kills_change_no_bit(tmp_path: Path, times: dict[str, int]) -> None:
    model = write_tiny_model(tmp_path / "model")
    calm = Run(tmp_path / "calm")
    durations = Life(calm.folder, model).durations()
    assert durations.keys() == times.keys() == set(get_args(Phase))

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown if the test fails
    draw = random.Random(seed)
    moments = [phase for phase, kills in times.items() for _ in range(kills)]
    draw.shuffle(moments)
    runs = [Run(tmp_path / "killed-0")]
    while moments:
        run, before = runs[-1], len(runs[-1].did("sample"))
        often = draw.randint(1, 3) if moments[-1] in OFTEN else 1
        killed = Life(run.folder, model).killed_in(moments[-1], often, draw.uniform(0, max(durations[moments[-1]])))
        run.check_life(before, moments[-1])
        if killed:
            moments.pop()
        else:
            runs.append(Run(tmp_path / f"killed-{len(runs)}"))
    Life(runs[-1].folder, model).durations()
    for run in runs:
        assert run.updates() == calm.updates()
        assert run.weights() == calm.weights()
        assert run.steps() == calm.steps()
        assert run.did("end")[-1] == calm.did("end")[-1]
        assert not list(run.folder.rglob("*.tmp"))


def test_a_killed_run_of_version_0_2_0_is_resumed_to_its_end(tmp_path: Path) -> None:
    folder = unpack(RUN, tmp_path)
    run, files = Run(folder), RunFolder(folder)
    run.check_life(0, "the fixture")
    recorded = RecordedRun.load(files)
    assert recorded.job.model_dump(exclude={"model"}) == job().model_dump(exclude={"model"})
    (before,) = [state.step for _, state in Checkpoints(files.checkpoints).list_all()]
    done = len(files.metrics())
    assert before == 3 < done <= KILLED_AFTER_UPDATES, "the journal has updates since the checkpoint"
    groups = [group for name in files.rollout_names() for group in files.read_groups(name)]
    assert len(groups) >= BATCH * done and len(files.events()) > done
    sampled = len(run.did("sample"))
    Life(folder, folder / "model").durations()
    run.check_life(sampled, "the fixture")
    assert [step for step, *_ in run.steps()] == list(range(1, STEPS + 1))
    assert run.did("end")[-1]["step"] == STEPS
