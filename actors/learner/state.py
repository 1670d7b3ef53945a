"""The optimizer's state by parameter, so that a snapshot of any layout (ranks, ZeRO stage, dtype) loads into any other.

DeepSpeed keeps weights and Adam's moments in float32 in flat tensors, of which each rank holds a part. Here they are
fragments: a range of the elements of one parameter. A rank's file has a tensor `kind:start:name` for each fragment, and
`step`, Adam's count of updates, once there was one. Nothing is rounded, and nothing is pickled.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch import distributed as dist

from agent_rft.actors.weights.host_buffer import HostBuffer, LockPages
from agent_rft.errors import UserError

WEIGHT, MOMENTS, STEP = "weight", ("exp_avg", "exp_avg_sq"), "step"


@dataclass(frozen=True, slots=True)
class Fragment:
    """`size` elements of a parameter from `start` on, which are at `offset` of `held`, a tensor that Adam updates."""

    name: str
    start: int
    size: int
    held: Tensor
    offset: int

    def of(self, flat: Tensor) -> Tensor:
        """This fragment of `held` or of one of its moments: [size]."""
        return flat.detach().view(-1).narrow(0, self.offset, self.size)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's copies in host memory: the model's shards (on rank 0), the state, and what `learner.json` says."""

    shards: list[dict[str, Tensor]]
    state: dict[str, Tensor]
    progress: dict[str, Any]


class SnapshotMemory:
    """The host memory of a rank's snapshot. It is kept, and holds one snapshot at a time.

    `in_use` is held while a snapshot is taken or written, which different threads do.
    """

    def __init__(self, lock_pages: LockPages | None, in_use: AbstractContextManager[object] | None = None) -> None:
        self._shards, self._state = HostBuffer(lock_pages), HostBuffer(lock_pages)
        self._in_use = threading.Lock() if in_use is None else in_use
        self._snapshot: Snapshot | None = None

    def take(self, copy: Callable[[HostBuffer, HostBuffer], Snapshot]) -> None:
        """Replace the snapshot by the one that `copy` makes in the memory for shards and for the state.

        Waits until the snapshot before is no longer written.
        """
        with self._in_use:
            self._snapshot = None
            self._snapshot = copy(self._shards, self._state)

    @contextmanager
    def writing(self) -> Iterator[Snapshot]:
        """Context manager that protects the snapshot while it is written; one that was written cannot be used again."""
        with self._in_use:
            assert self._snapshot is not None
            yield self._snapshot
            self._snapshot = None


def copy_state(engine: Any, stage: int, memory: HostBuffer) -> dict[str, Tensor]:
    """Copies of this rank's fragments in `memory`; of a state that all ranks have, rank 0 makes the copies."""
    if stage == 0 and dist.get_rank() > 0:
        return {}
    state: dict[str, Tensor] = {}
    for fragment in _fragments(engine, stage):
        moments = engine.basic_optimizer.state.get(fragment.held, {})  # none before the first update
        if moments:
            state[STEP] = moments[STEP]
        for kind, flat in {WEIGHT: fragment.held, **{kind: moments[kind] for kind in MOMENTS if moments}}.items():
            state[f"{kind}:{fragment.start}:{fragment.name}"] = fragment.of(flat)
    return memory.copies(state)


def load_state(engine: Any, stage: int, folder: Path) -> None:
    """Restore weights and moments from the files of all ranks in `folder`, whatever the layout that wrote them.

    All ranks must call this together.

    Raises:
        UserError: The files are of another model, or one is missing.
    """
    adam = engine.basic_optimizer.state
    with ExitStack() as files:
        saved = _Saved(folder, files)
        saved.check({name: getattr(p, "ds_numel", p.numel()) for name, p in _trained(engine)})
        if stage == 3:
            engine.optimizer.checkpoint_event_prologue()  # small parameters are whole on all ranks between updates
        adam.clear()
        for fragment in _fragments(engine, stage):
            saved.read(WEIGHT, fragment, fragment.of(fragment.held))
            if saved.step is None:
                continue
            moments = adam[fragment.held]
            if not moments:
                moments[STEP] = saved.step.to(fragment.held.device, copy=True)
                moments |= {kind: torch.zeros_like(fragment.held, requires_grad=False) for kind in MOMENTS}
            for kind in MOMENTS:
                saved.read(kind, fragment, fragment.of(moments[kind]))
    _update_model(engine.optimizer, stage)


def _fragments(engine: Any, stage: int) -> Iterator[Fragment]:
    """The fragments that this rank updates."""
    optimizer = engine.optimizer
    for name, parameter in _trained(engine):
        if stage == 0:
            yield Fragment(name, 0, parameter.numel(), parameter, 0)
        elif stage == 3:
            group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start = dist.get_rank() * size
            size = min(size, parameter.ds_numel - start)  # the rest is padding
            if size > 0:
                yield Fragment(name, start, size, optimizer.fp32_partitioned_groups_flat[group], offset)
        elif (mapping := parameter._hp_mapping) is not None:
            held = optimizer.param_groups[mapping.param_group_index]["params"][0]
            start, at = mapping.lp_fragment_address.start, mapping.hp_fragment_address
            yield Fragment(name, start, at.numel, held, at.start)


def _trained(engine: Any) -> Iterator[tuple[str, Any]]:
    return ((name, p) for name, p in engine.module.named_parameters() if p.requires_grad)


def _update_model(optimizer: Any, stage: int) -> None:
    """Copy the optimizer's weights to those that the model computes with, as DeepSpeed does after an update."""
    if stage in (1, 2):
        optimizer.update_lp_params()
    elif stage == 3:
        flat = zip(optimizer.fp16_partitioned_groups_flat, optimizer.fp32_partitioned_groups_flat, strict=True)
        for model, held in flat:
            model.data.copy_(held.data)
        optimizer.checkpoint_event_epilogue()


class _Saved:
    """The files of all ranks. Only what is asked for is read."""

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
        """Raise UserError if not all of the parameters with these sizes is there; the same on all ranks."""
        for kind in (WEIGHT, *MOMENTS) if self.step is not None else (WEIGHT,):
            for name, size in sizes.items():
                if sum(piece.get_shape()[0] for _, piece in self._pieces[kind, name]) != size:
                    what = f"{self._folder} lacks a part of {name} ({kind}): it is damaged, or of another model"
                    raise UserError(f"{what}; delete this checkpoint to continue from the one before it")

    def read(self, kind: str, fragment: Fragment, into: Tensor) -> None:
        """Fill `into` with a fragment, from all pieces that overlap with it."""
        for start, piece in self._pieces[kind, fragment.name]:
            low = max(start, fragment.start)
            high = min(start + piece.get_shape()[0], fragment.start + fragment.size)
            if low < high:
                into[low - fragment.start : high - fragment.start].copy_(piece[low - start : high - start])
