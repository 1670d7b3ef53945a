"""Trackers that a job names: what they get, and that none of them can disturb a run."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.records.redaction import public_job
from agent_rft.cluster.run.sinks.event_stream import EventStream
from agent_rft.cluster.run.sinks.plugin_sinks import MAX_WAITING, RunInfo
from agent_rft.cluster.run.sinks.tracker_sinks import TrackerPluginSink, load_trackers
from agent_rft.events import Evaluated, JobEnded, LossEvaluated, Notice, StepDone, TrackerFailed
from agent_rft.spec.trackers import TrackerAccess
from agent_rft.types import Evaluation
from tests.support.builders import job
from tests.support.events import Recording
from tests.support.trackers import FakeMlflow, FakePackage, FakeTensorboard, FakeWandb

SECRETS = ("api-key-secret", "url-secret", "token-secret")
ACCESS = TrackerAccess.model_validate(
    {
        "wandb": {"api_key": "api-key-secret", "base_url": "https://tracker.example"},
        "mlflow": {"tracking_uri": "https://me:url-secret@tracker.example", "token": "token-secret"},
    }
)
NAMED: dict[str, dict[str, Any]] = {
    "wandb": {"type": "wandb", "wandb": {"project": "agents", "tags": ["a"]}},
    "mlflow": {"type": "mlflow"},
    "tensorboard": {"type": "tensorboard"},
}
FAKES: dict[str, type[FakePackage]] = {"wandb": FakeWandb, "mlflow": FakeMlflow, "tensorboard": FakeTensorboard}
TOOL = {"name": "search", "server_url": "https://tools.example/search", "headers": {"Authorization": "token-secret"}}
EVALUATION = Evaluation(4, 4, 0, 0.5, 0.1, 0.4, 0.5, 0.5, 1, 2.0, 3.0, 0.0, 20.0, 60.0, 1.5)


def step(number: int, **numbers: float) -> StepDone:
    return StepDone(step=number, total_steps=9, metrics={"step": float(number), "train_mean_reward": 0.25, **numbers})


class Tracked:
    """A stream with the tracker `kind`, whose package is `package`."""

    def __init__(
        self, kind: str, folder: Path, package: FakePackage | None, access: TrackerAccess = ACCESS, id: str = "id-1"
    ) -> None:
        def load(name: str) -> Any:
            assert name.partition(".")[0] == kind
            if package is None:
                raise ImportError(f"No module named {name!r}")
            return package

        self.job = job({"tools": [TOOL]}, integrations=[NAMED[kind]], model="/models/small")
        info = RunInfo(folder.name, folder, public_job(self.job), id)
        self.sink = Recording()
        self.plugins = load_trackers(self.job.integrations, access, info, load)
        self.stream = EventStream(folder.name, [self.sink], plugins=self.plugins)

    def end(self) -> list[TrackerFailed]:
        """End the run; what was reported."""
        self.stream.emit(JobEnded(outcome="done"))
        self.stream.close()
        return [event.event for event in self.sink.events if isinstance(event.event, TrackerFailed)]


def test_a_job_without_integrations_imports_nothing(tmp_path: Path) -> None:
    def load(name: str) -> Any:
        raise AssertionError(name)

    assert load_trackers(job().integrations, ACCESS, RunInfo("run", tmp_path, public_job(job()), "id"), load) == []


@pytest.mark.parametrize("kind", NAMED)
def test_a_tracker_gets_the_finite_numbers_of_steps_and_evaluations(kind: str, tmp_path: Path) -> None:
    package = FAKES[kind]()
    tracked = Tracked(kind, tmp_path, package)
    tracked.stream.emit(step(1, entropy=math.nan))
    tracked.stream.emit(Notice(text="a text of a row"))
    tracked.stream.emit(Evaluated(step=2, name="validation", evaluation=EVALUATION))
    tracked.stream.emit(LossEvaluated(step=3, loss=1.5, num_rows=4))
    assert tracked.end() == []
    (first, trained), (_, graded), (_, loss) = package.logged
    assert (first, trained["train_mean_reward"], "entropy" in trained) == (1, 0.25, False)
    assert (graded["validation/grade"], graded["validation/tool_calls"]) == (0.5, 2.0)
    assert not any("reasoning_tokens" in name or "intervals" in name for name in graded), "NaN, and no number"
    assert loss == {"validation/loss": 1.5}
    assert package.ended == [{"wandb": 0, "mlflow": "FINISHED", "tensorboard": "closed"}[kind]]


def test_wandb_gets_hyperparameters_and_the_key_and_no_text_address_or_path(tmp_path: Path) -> None:
    package = FakeWandb()
    Tracked("wandb", tmp_path, package).end()
    made = package.made
    assert (made["project"], made["name"], made["tags"]) == ("agents", tmp_path.name, ("a",))
    assert (made["id"], made["resume"], made["mode"], made["dir"]) == ("id-1", "allow", "online", str(tmp_path))
    assert (made["settings"]["api_key"], made["settings"]["base_url"]) == (SECRETS[0], "https://tracker.example")
    config = made["config"]
    assert (config["model"], config["hyperparameters.n_epochs"], config["cluster.engines"]) == ("small", "auto", "auto")
    assert not any(text in str(config) for text in ("example", "/models", "secret", "search"))


def test_a_resumed_run_goes_on_with_its_run_in_mlflow(tmp_path: Path) -> None:
    package = FakeMlflow()
    for number in (1, 2):
        tracked = Tracked("mlflow", tmp_path, package)
        tracked.stream.emit(step(number, **{"tool_calls/a&b": 1.0}))
        assert tracked.end() == []
    assert package.made["again"] == ("id-0", "RUNNING") and len(package.runs) == 1
    assert [number for number, _ in package.logged] == [1, 2]
    assert package.logged[0][1]["tool_calls/a_b"] == 1.0, "MLflow refuses other characters"
    assert package.made["config"]["hyperparameters.n_epochs"] == "auto"


def test_two_runs_with_the_same_folder_name_have_two_runs_in_each_tracker(tmp_path: Path) -> None:
    mlflow, wandb = FakeMlflow(), FakeWandb()
    made = []
    for cluster in ("a", "b"):
        folder = tmp_path / cluster / "job"
        folder.mkdir(parents=True)
        assert Tracked("mlflow", folder, mlflow, id=f"id-{cluster}").end() == []
        assert Tracked("wandb", folder, wandb, id=f"id-{cluster}").end() == []
        made.append((wandb.made["id"], wandb.made["name"], mlflow.made["name"]))
    assert made == [("id-a", "job", "job"), ("id-b", "job", "job")]
    assert mlflow.runs == {"id-a": "id-0", "id-b": "id-1"}


@pytest.mark.parametrize("kind", NAMED)
def test_a_package_that_is_missing_is_reported_once_with_the_fix(kind: str, tmp_path: Path) -> None:
    tracked = Tracked(kind, tmp_path, None)
    for number in range(5):
        tracked.stream.emit(step(number))
    (failed,) = tracked.end()
    assert (failed.tracker, failed.cause) == (kind, "not_installed")
    assert f"pip install 'agent-rft[{kind}]'" in failed.reason
    start = f"{kind} gets no more metrics of this run: its package is not installed: "
    assert any(event.message.startswith(start) for event in tracked.sink.events)


@pytest.mark.parametrize(("kind", "field"), [("wandb", "api_key"), ("mlflow", "tracking_uri")])
def test_a_tracker_that_the_operator_has_not_set_up_is_reported(kind: str, field: str, tmp_path: Path) -> None:
    for access in (TrackerAccess(), TrackerAccess.model_validate({"wandb": {}})):
        (failed,) = Tracked(kind, tmp_path, FAKES[kind](), access).end()
        assert (failed.cause, failed.reason) == (
            "not_allowed",
            f"set trackers.{kind}.{field} in the operator's configuration",
        )


def test_wandb_offline_needs_no_key(tmp_path: Path) -> None:
    package = FakeWandb()
    access = TrackerAccess.model_validate({"wandb": {"offline": True}})
    assert Tracked("wandb", tmp_path, package, access).end() == []
    assert package.made["mode"] == "offline" and "api_key" not in package.made["settings"]


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
def test_a_server_that_does_not_answer_at_the_start_is_reported_without_secrets(kind: str, tmp_path: Path) -> None:
    tracked = Tracked(kind, tmp_path, FAKES[kind](down=True))
    (failed,) = tracked.end()
    assert failed.cause == "failed" and "Down" in failed.reason
    assert not any(secret in str(tracked.sink.events) for secret in SECRETS)


def test_numbers_of_a_lost_connection_come_later_in_order(tmp_path: Path) -> None:
    heard = threading.Semaphore(0)
    package = FakeMlflow(asked=heard.release)
    tracked = Tracked("mlflow", tmp_path, package)
    assert heard.acquire(timeout=10), "its start"
    package.down = True
    for number in (1, 2):
        tracked.stream.emit(step(number))
        assert heard.acquire(timeout=10)
    package.down = False
    tracked.stream.emit(step(3))
    assert tracked.end() == []
    assert [number for number, _ in package.logged] == [1, 2, 3]


def test_a_tracker_whose_server_stays_away_is_given_up_and_reported_once(tmp_path: Path) -> None:
    package = FakeTensorboard(down=True)
    tracked = Tracked("tensorboard", tmp_path, package)
    for number in range(20):
        tracked.stream.emit(step(number))
    (failed,) = tracked.end()
    assert failed.cause == "failed" and package.ended == []


def test_a_tracker_that_hangs_never_holds_up_the_run(tmp_path: Path) -> None:
    released = threading.Event()
    sink = TrackerPluginSink("wandb", lambda: released.wait() and Recording())  # type: ignore[arg-type, return-value]
    stream = EventStream("run", [seen := Recording()], plugins=[sink])
    for number in range(MAX_WAITING + 2):
        stream.emit(step(number))
    released.set()
    (failed,) = (event.event for event in seen.events if isinstance(event.event, TrackerFailed))
    assert failed == TrackerFailed(
        step=failed.step, tracker="wandb", cause="failed", reason=f"it is {MAX_WAITING} events behind"
    )
