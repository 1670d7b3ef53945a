"""The packages of trackers as fakes: they record what they get, and do not answer while `down` is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class Down(OSError):
    """The tracker's server does not answer."""


class FakePackage:
    """What all three record. `made` is how the run was made, `logged` has (step, numbers), `ended` how it ended.

    `asked` is called at each request.
    """

    def __init__(self, down: bool = False, asked: Callable[[], object] = lambda: None) -> None:
        self.down = down
        self._asked = asked
        self.made: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.ended: list[Any] = []

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log numbers; those of one step that come one after the other are together."""
        self.reached()
        if not self.logged or self.logged[-1][0] != step:
            self.logged.append((step, {}))
        self.logged[-1][1].update(numbers)

    def reached(self) -> None:
        self._asked()
        if self.down:
            raise Down("https://me:url-secret@tracker.example refused api-key-secret")


class FakeWandb(FakePackage):
    """The package wandb, and its run."""

    def Settings(self, **values: Any) -> dict[str, Any]:
        return values

    def init(self, **values: Any) -> FakeWandb:
        self.reached()
        self.made = values
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def log(self, values: dict[str, float]) -> None:
        self.add(int(values["step"]), {name: value for name, value in values.items() if name != "step"})

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


class FakeMlflow(FakePackage):
    """The package mlflow, and its client; `runs` has the id of each tag."""

    def __init__(self, down: bool = False, asked: Callable[[], object] = lambda: None) -> None:
        super().__init__(down, asked)
        self.runs: dict[str, str] = {}
        self.entities = SimpleNamespace(
            Metric=lambda key, value, timestamp, step: (step, {key: value}), Param=lambda key, value: {key: value}
        )

    def MlflowClient(self, tracking_uri: str) -> FakeMlflow:
        self.made["uri"] = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> None:
        self.reached()

    def create_experiment(self, name: str) -> str:
        self.made["experiment"] = name
        return "1"

    def search_runs(self, experiments: list[str], wanted: str, max_results: int) -> list[Any]:
        found = [id for tag, id in self.runs.items() if wanted == f"tags.`agent_rft.run` = '{tag}'"]
        return [SimpleNamespace(info=SimpleNamespace(run_id=id)) for id in found]

    def create_run(self, experiment: str, tags: Mapping[str, str], run_name: str) -> Any:
        self.runs[tags["agent_rft.run"]] = id = f"id-{len(self.runs)}"
        self.made["name"] = run_name
        return SimpleNamespace(info=SimpleNamespace(run_id=id))

    def update_run(self, id: str, status: str) -> None:
        self.made["again"] = (id, status)

    def log_batch(self, id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1_000 and len(params) <= 100
        for pair in params:
            self.made.setdefault("config", {}).update(pair)
        for step, number in metrics:
            self.add(step, number)

    def set_terminated(self, id: str, status: str) -> None:
        self.ended.append(status)


class FakeTensorboard(FakePackage):
    """The module tensorboard.summary, and its writer."""

    def Writer(self, folder: str) -> FakeTensorboard:
        self.made["folder"] = folder
        return self

    def add_scalar(self, name: str, value: float, step: int, wall_time: float) -> None:
        self.add(step, {name: value})

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.ended.append("closed")
