"""Messages are for people: a run whose every message is only its kind leaves the same behind and shows the same."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.events import Event, JobEnded, JobStarted, PhaseStarted
from agent_rft.serve.jobs.processes.store_sink import StoreSink
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from tests.support.events import stream_of
from tests.support.jobs import NEW_JOB, StoredJobs, database_with_tables
from tests.support.synthetic import Synthetic


async def nothing(folder: Path) -> None: ...


def left_by_a_run(folder: Path, describe: Callable[[Event], str]) -> dict[str, Any]:
    """All that readers of a run go by, and the messages of its events."""
    folder.mkdir()
    jobs, run = StoredJobs(database_with_tables(folder)), RunFolder(folder / "run")
    job = jobs.store.create(NEW_JOB)[0].id
    for status in ("queued", "running"):
        jobs.store.move(job, status)  # type: ignore[arg-type]
    jobs.store.next_attempt(job, 0, "handle", failures=0)
    registry = ModelRegistry(jobs.database, {})
    checkpoints = Checkpoints(run.checkpoints)
    for step in (4, 8, 12):
        metrics = {"step": float(step), "total_steps": 12.0, "full_valid_mean_reward": step / 12}
        asyncio.run(checkpoints.save(LoopState(step, step, 0, [], step, step / 12, metrics), nothing))
    store = StoreSink(jobs.store, registry, job, 1, "gpt-5", "key-1", run.path, lambda step: f"ft:{step}", {})
    view = LiveView(12, Console(file=io.StringIO(), width=100), clock=lambda: 0.0)
    stream = stream_of(run, view, store, group_sinks=[run], describe=describe)
    stream.emit(JobStarted(method="reinforcement", total_steps=12))
    stream.emit(PhaseStarted(phase="actors", detail="engines and learner"))
    Synthetic().play(stream, run)
    stream.emit(JobEnded(outcome="done"))
    run.close()
    store.close()
    view.stop()  # its spinner goes by the real time
    page = Console(file=io.StringIO(), width=100)
    page.print(view.render())
    events = jobs.store.events(job, limit=100)[0]
    kept = [(e.kind, e.version, e.step, repr(e.event)) for e in run.events()]
    return {
        "events": kept,
        "validations": str(run.validations()),
        "evaluations": str(run.evaluations()),
        "metrics": run.metrics(),
        "checkpoints": [(c.step, c.model, c.metrics) for c in jobs.store.checkpoints(job)[0]],
        "models": sorted(model.id for model in registry.list()),
        "api": [(e.type, e.level, e.data) for e in events],
        "job": {k: v for k, v in asdict(jobs.store.get(job)).items() if k in ("trained_tokens", "failures")},
        "live view": page.file.getvalue(),  # type: ignore[attr-defined]
        "messages": [e.message for e in events if e.type == "message"],
    }


def test_a_run_without_sentences_is_the_same_run(tmp_path: Path) -> None:
    spoken, silent = left_by_a_run(tmp_path / "a", str), left_by_a_run(tmp_path / "b", lambda event: event.kind)
    assert spoken.pop("messages") != silent.pop("messages")
    assert {step for step, _, _ in spoken["checkpoints"]} == {4, 8, 12}
    assert all("full_valid_mean_reward" in metrics for _, _, metrics in spoken["checkpoints"])
    assert spoken.keys() == silent.keys()
    for name, value in spoken.items():
        assert value == silent[name], name
