"""Optimizer state that is saved in one layout (ranks, ZeRO stage, dtype) and can be loaded into another.

DeepSpeed stores weights and Adam's moments in flat float32 tensors; each rank holds a part of them. This module splits
the parts into fragments. A fragment is a range of elements of one parameter. A rank's file has a tensor
`kind:start:name` for each fragment and, after the first update, Adam's update count `step`. Nothing is rounded, and
nothing is pickled.

DeepSpeed's universal checkpoints are not used, although they restore a run to the last bit in the same layout (0.19.8,
two CPU ranks, ZeRO stages 1 to 3):

- Stage 0 has none. A universal checkpoint of stage 1 does not load into stage 3, nor the reverse.
- They are pickled. A separate program must convert a checkpoint before it can be loaded, which needs its size again.
- With the default writer, training waits until they are written.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch import distributed as dist

from agent_rft.chat.model_files import ModelFiles
from agent_rft.errors import UserError
from agent_rft.trainer.learner.checkpoint_weights import CheckpointWeights, save_tensors
from agent_rft.trainer.learner.deepspeed_internals import (
    Fragment,
    begin_state_update,
    finish_state_update,
    get_adam_state,
    iterate_fragments,
    trained_sizes,
)
from agent_rft.trainer.learner.host_buffer import HostBuffer, LockPages
from agent_rft.trainer.learner.training_model import TrainingModel
from agent_rft.trainer.loop.checkpoint import TRAINING_STATE
from agent_rft.types import LayoutConversion, LearnerLayout

LEARNER_STATE_FILE = "learner.json"
WEIGHT, MOMENTS, STEP = "weight", ("exp_avg", "exp_avg_sq"), "step"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy of a rank's model and training state in host memory.

    `shards` are the model's shards (only on rank 0), `state` is the rank's optimizer state, and `progress` is the
    content of `learner.json`.
    """

    shards: list[dict[str, Tensor]]
    state: dict[str, Tensor]
    progress: dict[str, Any]


class SnapshotMemory:
    """Reused host memory for a rank's snapshots, which holds one snapshot at a time.

    `in_use` is a lock that is held while a snapshot is taken or written, because these happen in different threads.
    """

    def __init__(self, lock_pages: LockPages | None, in_use: AbstractContextManager[object] | None = None) -> None:
        self._shards, self._state = HostBuffer(lock_pages), HostBuffer(lock_pages)
        self._in_use = threading.Lock() if in_use is None else in_use
        self._snapshot: Snapshot | None = None

    def take(self, copy: Callable[[HostBuffer, HostBuffer], Snapshot]) -> None:
        """Replace the snapshot with the result of `copy`.

        `copy` is called with two buffers: the memory for the model's shards, and the memory for the optimizer state.
        Waits until the previous snapshot is no longer being written.
        """
        with self._in_use:
            self._snapshot = None
            self._snapshot = copy(self._shards, self._state)

    @contextmanager
    def lock_for_writing(self) -> Iterator[Snapshot]:
        """Context manager that yields the snapshot, and keeps it from being replaced while it is being written.

        The snapshot is dropped at the end.
        """
        with self._in_use:
            assert self._snapshot is not None
            yield self._snapshot
            self._snapshot = None


class RankState:
    """Takes snapshots of a rank, writes them to checkpoints and loads them.

    `engine` is the DeepSpeed engine of rank `rank` in a group with this `layout`. `files` are written in addition to
    the base model's files; None means no additional files.
    """

    def __init__(
        self,
        engine: Any,
        rank: int,
        layout: LearnerLayout,
        weights: CheckpointWeights,
        model: TrainingModel,
        files: ModelFiles | None,
        memory: SnapshotMemory,
    ) -> None:
        self._engine = engine
        self._rank = rank
        self._layout = layout
        self._weights = weights
        self._model = model
        self._files = files
        self._memory = memory

    def take_snapshot(self, step: int, skipped: int) -> None:
        """Take a snapshot after `step` steps. `skipped` counts the updates skipped since the last applied update."""
        progress = asdict(self._layout) | {
            "trained": self._model.trained_weights_description,
            "step": step,
            "skipped": skipped,
        }

        def copy(shards: HostBuffer, state: HostBuffer) -> Snapshot:
            weights = self._weights.copy_all(shards if self._rank == 0 else None)
            return Snapshot(weights, copy_state(self._engine, self._layout.zero_stage, state), progress)

        self._memory.take(copy)

    def write(self, folder: Path) -> None:
        """Write the snapshot into `folder`.

        Drops the snapshot once it is written. This method may run in a separate thread.

        Raises:
            OSError: The disk is full or read-only. The snapshot is kept, so it can be written again.
        """
        with self._memory.lock_for_writing() as snapshot:
            if snapshot.state:
                state = folder / TRAINING_STATE
                state.mkdir(exist_ok=True)
                save_tensors(snapshot.state, state / f"rank-{self._rank:05d}.safetensors")
            if self._rank == 0:
                self._model.write(self._engine.module, snapshot.shards, folder)
                if self._files is not None:
                    self._files.write(folder)
                (folder / LEARNER_STATE_FILE).write_text(json.dumps(snapshot.progress))

    def load(self, folder: Path) -> tuple[int, int, LayoutConversion | None]:
        """Restore weights and moments; return (step, skipped updates, layout conversion).

        The conversion is None if the folder was written with the same layout.

        Raises:
            UserError: The folder is incomplete, or its weights were trained with another `lora` setting.
        """
        progress: dict[str, Any] = json.loads((folder / LEARNER_STATE_FILE).read_text())
        trained, expected = progress["trained"], self._model.trained_weights_description
        if trained != expected:
            raise UserError(f"{folder} was trained with {trained}, not with {expected}; resume with the same `lora`")
        before = LearnerLayout(progress["ranks"], progress["zero_stage"], progress["dtype"])
        load_state(self._engine, self._layout.zero_stage, folder / TRAINING_STATE)
        return (
            progress["step"],
            progress["skipped"],
            None if before == self._layout else LayoutConversion(before, self._layout),
        )


def copy_state(engine: Any, stage: int, memory: HostBuffer) -> dict[str, Tensor]:
    """Copy this rank's fragments into `memory`. At stage 0, all ranks have the same state, so only rank 0 copies it."""
    if stage == 0 and dist.get_rank() > 0:
        return {}
    state: dict[str, Tensor] = {}
    adam = get_adam_state(engine)
    for fragment in iterate_fragments(engine, stage):
        moments = adam.get(fragment.storage, {})  # empty before the first update
        if moments:
            state[STEP] = moments[STEP]
        for kind, flat in {WEIGHT: fragment.storage, **{kind: moments[kind] for kind in MOMENTS if moments}}.items():
            state[f"{kind}:{fragment.start}:{fragment.name}"] = fragment.view_of(flat)
    return memory.copy_tensors(state)


def load_state(engine: Any, stage: int, folder: Path) -> None:
    """Restore weights and moments from the files of all ranks in `folder`.

    The files may be from a run with another number of ranks, ZeRO stage or dtype. All ranks must call this together.

    Raises:
        UserError: The files belong to another model, or a part is missing.
    """
    adam = get_adam_state(engine)
    with ExitStack() as files:
        saved = _SavedState(folder, files)
        saved.check(trained_sizes(engine))
        begin_state_update(engine, stage)
        adam.clear()
        for fragment in iterate_fragments(engine, stage):
            saved.read(WEIGHT, fragment, fragment.view_of(fragment.storage))
            if saved.step is None:
                continue
            moments = adam[fragment.storage]
            if not moments:
                moments[STEP] = saved.step.to(fragment.storage.device, copy=True)
                moments |= {kind: torch.zeros_like(fragment.storage, requires_grad=False) for kind in MOMENTS}
            for kind in MOMENTS:
                saved.read(kind, fragment, fragment.view_of(moments[kind]))
    finish_state_update(engine, stage)


class _SavedState:
    """Reader of the state files of all ranks. Reads only the requested fragments."""

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self._folder = folder
        self._pieces: dict[tuple[str, str], list[tuple[int, Any]]] = defaultdict(list)
        self.step: Tensor | None = None
        for path in sorted(folder.glob("*.safetensors")):
            file = files.enter_context(safe_open(path, "pt"))
            for key in file.keys():  # noqa: SIM118 - it is not a dictionary
                if key == STEP:
                    self.step = file.get_tensor(key)
                else:
                    kind, start, name = key.split(":", 2)
                    self._pieces[kind, name].append((int(start), file.get_slice(key)))

    def check(self, sizes: Mapping[str, int]) -> None:
        """Check that the files contain all elements of the parameters with these sizes. All ranks get the same result.

        Raises:
            UserError: A part of a parameter is missing.
        """
        for kind in (WEIGHT, *MOMENTS) if self.step is not None else (WEIGHT,):
            for name, size in sizes.items():
                if sum(piece.get_shape()[0] for _, piece in self._pieces[kind, name]) != size:
                    what = (
                        f"{self._folder} lacks a part of {name} ({kind}): the checkpoint is damaged, or belongs to "
                        "another model"
                    )
                    fix = "restore this checkpoint, or start a new run with `model` set to an earlier one"
                    raise UserError(f"{what}; {fix}")

    def read(self, kind: str, fragment: Fragment, into: Tensor) -> None:
        """Read a fragment from the saved pieces into the tensor `into`."""
        for start, piece in self._pieces[kind, fragment.name]:
            low = max(start, fragment.start)
            high = min(start + piece.get_shape()[0], fragment.start + fragment.size)
            if low < high:
                into[low - fragment.start : high - fragment.start].copy_(piece[low - start : high - start])
