"""Served models as applications of a real Ray Serve, with fake engines."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray import serve as ray_serve

from agent_rft.actors.engine.chat.chat_engine import ServedModel
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.ray_cluster.cluster_usage import read_usage
from agent_rft.cluster.ray_cluster.ray_session import is_local_address
from agent_rft.cluster.ray_cluster.reservations import Reservations
from agent_rft.errors import RftError, UserError
from agent_rft.serve.inference.model_apps import EngineResources, RayServeModels, ServedEngine
from agent_rft.serve.inference.model_server import ServedModels
from agent_rft.serve.stores.model_registry import ModelRecord
from agent_rft.spec.operator.operator_config import EngineLimits
from agent_rft.wire.api_errors import ApiError
from tests.support.fakes_http import until
from tests.support.sockets import listening

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

TWO_CORES = Placement(
    1, 1, 0, 1, 1, 0, "float32", max_num_seqs=64, zero_stage=0, offload="none", micro_batch_tokens=8192
)
"""A job with an engine and a learner rank, each with a core."""


class FakeEngine:
    """Logs its life in the model's file; a stream waits after each chunk until it has been received."""

    def __init__(self, record: ModelRecord, resources: EngineResources) -> None:
        self._log = Path(record.folder)
        self.has_died = False

    def _note(self, text: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{text}\n")

    async def start(self) -> RftError | None:
        if "broken" in self._log.name:
            return UserError("is not a readable model")
        self._note("started")
        return None

    async def chat(self, body: Mapping[str, Any], model: ServedModel | None = None) -> dict[str, Any]:
        if body.get("die"):
            os._exit(1)
        if body.get("fail"):
            self.has_died = True
        await asyncio.sleep(body.get("takes_s", 0.0))
        return {"pid": os.getpid(), "settings": asdict(model.settings) if model else None}

    async def stream(self, body: Mapping[str, Any], model: ServedModel | None = None) -> AsyncIterator[dict[str, Any]]:
        try:
            for i in itertools.count():
                yield {"i": i}
                await until(received(self._log, i).exists, within_s=120)
        except asyncio.CancelledError:
            self._note("cancelled")
            raise

    async def shutdown(self) -> None:
        self._note("stopped")


def received(log: Path, chunk: int) -> Path:
    return log.with_name(f"{log.name}-{chunk}")


def fake_engine(record: ModelRecord, resources: EngineResources) -> ServedEngine:
    return FakeEngine(record, resources)


class Folder:
    """Models by name, each a file to which its engines write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def resolve(self, model_id: str) -> ModelRecord:
        return ModelRecord(model_id, str(self._folder / model_id), "base", None, 0, ServeSettings())

    def said(self, model_id: str) -> list[str]:
        path = self._folder / model_id
        return path.read_text().split() if path.exists() else []


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray_serve.start(proxy_location="Disabled")
    yield
    ray_serve.shutdown()
    ray.shutdown()


@pytest.fixture
def models(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest_asyncio.fixture(loop_scope="module")
async def served(models: Folder) -> AsyncIterator[ServedModels]:
    limits = EngineLimits(max_models=1, idle_s=3.0, max_start_wait_s=240.0)
    hosting = RayServeModels(limits, EngineResources.from_limits(limits, {}), fake_engine)
    served = ServedModels(models, hosting, limits)
    yield served
    for name in await hosting.states():
        await hosting.remove(name)
    await until_gone(hosting)


async def until_gone(hosting: RayServeModels) -> None:
    for _ in range(1200):
        if not await hosting.states():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("models are still there")


async def until_said(models: Folder, model: str, *words: str) -> None:
    await until(lambda: models.said(model) == list(words), within_s=120)


async def test_chunks_arrive_one_by_one_and_a_client_that_disconnects_ends_its_request(
    served: ServedModels, models: Folder
) -> None:
    chunks: Any = await served.stream({"model": "a"})
    for i in range(5):
        assert (await anext(chunks))["i"] == i
        received(Path(models.resolve("a").folder), i).touch()
    await anext(chunks)
    await chunks.aclose()
    await until_said(models, "a", "started", "cancelled")
    served_now = await served.chat({"model": "a"})
    assert served_now["pid"] != os.getpid()
    assert served_now["settings"] == asdict(models.resolve("a").settings)


async def test_a_second_model_waits_for_the_first_one_s_answers_and_then_replaces_it(
    served: ServedModels, models: Folder
) -> None:
    await served.chat({"model": "a"})
    busy = asyncio.create_task(served.chat({"model": "a", "takes_s": 3.0}))
    await asyncio.sleep(0.5)
    other = await served.chat({"model": "b"})
    assert busy.done() and (await busy)["pid"] != other["pid"]
    assert models.said("a") == ["started", "stopped"]


async def test_on_a_cluster_with_other_machines_they_can_reach_a_replica(served: ServedModels) -> None:
    replica = listening((await served.chat({"model": "a"}))["pid"])
    is_local = is_local_address(ray.get_runtime_context().gcs_address)  # only on a machine without a network
    assert len(replica) >= 2 and {socket.is_local for socket in replica} == {is_local}


@pytest.mark.nightly
async def test_an_engine_that_fails_or_dies_is_replaced(served: ServedModels, models: Folder) -> None:
    first = (await served.chat({"model": "a"}))["pid"]
    with pytest.raises(ApiError) as died:
        await served.chat({"model": "a", "die": True})
    assert died.value.status == 503
    second = (await served.chat({"model": "a"}))["pid"]
    assert second != first
    await served.chat({"model": "a", "fail": True})
    await until(lambda: models.said("a") == ["started", "started", "stopped", "started"], within_s=120)
    assert (await served.chat({"model": "a"}))["pid"] not in (first, second)


async def test_a_model_that_cannot_start_is_an_error_at_once_and_is_removed(served: ServedModels) -> None:
    with pytest.raises(ApiError) as raised:
        await served.chat({"model": "broken"})
    assert raised.value.status == 503 and "did not start" in raised.value.message
    await until_gone(served.hosting)  # type: ignore[arg-type]


async def test_idle_model_gives_its_core_to_a_job_that_waits(served: ServedModels, models: Folder) -> None:
    served.release_idle_s = 1.0
    await served.chat({"model": "a"})
    seats, news = Reservations(TWO_CORES, "ftjob-1"), list[str]()
    placed = asyncio.create_task(seats.wait(news.append, timeout_s=120))
    await until(lambda: bool(news), within_s=60)
    assert news[0].endswith("not placed: learner rank 0; in use by the served model a")
    serving = asyncio.create_task(served.run())
    assert await placed == [0]
    assert models.said("a") == ["started", "stopped"]
    with pytest.raises(ApiError) as refused:
        await served.chat({"model": "a"})
    assert refused.value.status == 503 and "jobs use the needed resources: ftjob-1." in refused.value.message
    seats.release()
    await until_free()
    assert (await served.chat({"model": "a"}))["pid"]
    serving.cancel()


async def until_free() -> None:
    """Wait until Ray counts no run's resources any more."""
    await until(lambda: not read_usage().running, within_s=60)


async def test_an_idle_model_is_unloaded_and_loaded_again_on_demand(served: ServedModels, models: Folder) -> None:
    await served.chat({"model": "a"})
    looking = asyncio.create_task(served.run())
    await until_said(models, "a", "started", "stopped")
    await served.chat({"model": "a"})
    assert models.said("a") == ["started", "stopped", "started"]
    looking.cancel()
