"""Sends the events of a small run to the real packages of all trackers, and prints what they hold afterwards.

It runs in a process whose path has the packages: `python -m tests.support.tracked_run FOLDER [again | unreachable]`.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.redaction import public_job
from agent_rft.cluster.run.sinks.event_stream import EventStream
from agent_rft.cluster.run.sinks.plugin_sinks import RunInfo
from agent_rft.cluster.run.sinks.tracker_sinks import load_trackers
from agent_rft.events import JobEnded, StepDone, TrackerFailed
from agent_rft.spec.trackers import TrackerAccess
from tests.support.builders import job
from tests.support.events import Recording

EXPERIMENT = "agents"
TRACKERS = [
    {"type": "wandb", "wandb": {"project": "agents", "tags": ["nightly"]}},
    {"type": "mlflow", "mlflow": {"experiment": EXPERIMENT}},
    {"type": "tensorboard"},
]
NOBODY = "http://127.0.0.1:9"
"""No server listens there."""


def main(folder: Path, how: str) -> None:
    database = f"sqlite:///{folder}/mlflow.db"
    access: dict[str, Any] = {"wandb": {"offline": True}, "mlflow": {"tracking_uri": database}}
    if how == "unreachable":
        access = {"wandb": {"api_key": "0" * 40, "base_url": NOBODY}, "mlflow": {"tracking_uri": NOBODY}}
    tracked = job(integrations=TRACKERS)
    sink = Recording()
    info = RunInfo("run-1", folder, public_job(tracked), "id-1")
    plugins = load_trackers(tracked.integrations, TrackerAccess.model_validate(access), info, close_timeout_s=240)
    stream = EventStream("run-1", [sink], plugins=plugins)
    for step in range(4, 7) if how == "again" else range(1, 4):
        stream.emit(StepDone(step=step, total_steps=6, metrics={"step": float(step), "train_mean_reward": step / 10}))
    stream.emit(JobEnded(outcome="done"))
    stream.close()
    failed = {e.event.tracker: e.event.reason for e in sink.events if isinstance(e.event, TrackerFailed)}
    found = {"failed": failed, "tensorboard": _scalars(folder)}
    if how != "unreachable":
        found |= {"mlflow": _metrics(database), "wandb": _history(folder)}
    print(json.dumps(found))


def _scalars(folder: Path) -> list[list[float]]:
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    tensors = import_module("tensorboard.util.tensor_util")
    return [[e.step, float(tensors.make_ndarray(e.tensor_proto))] for e in accumulator.Tensors("train_mean_reward")]


def _metrics(database: str) -> list[list[float]]:
    client = import_module("mlflow").MlflowClient(tracking_uri=database)
    (run,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["method"] == "reinforcement", run
    return [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, "train_mean_reward")]


def _history(folder: Path) -> list[list[float]]:
    """What the offline files of Weights & Biases have, in the order of their runs."""
    records, found = import_module("wandb.proto.wandb_internal_pb2"), []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in _logged(path.read_bytes()):
            record = records.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                found.append([values["step"], values["train_mean_reward"]])
    return found


def _logged(log: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, in which records are in one or several parts."""
    block, at, parts = 1 << 15, 7, b""
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", log, at + 4)
        parts += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
