"""All uses of undocumented parts of DeepSpeed.

Each docstring names the upstream object that is used, the reason, and the change in DeepSpeed that would make the
function unnecessary. This module does not import DeepSpeed, because a rank must set its device before the import, and
because some benchmarks run without DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

# -- import ------------------------------------------------------------------------------------------------------------


def log_errors_only(deepspeed: Any) -> None:
    """Make DeepSpeed log errors only. Its warnings are about skipped updates, which StepReport already contains.

    Uses: `deepspeed.utils.set_log_level_from_string`.
    Why: DeepSpeed's logger has a separate level and handler.
    Remove when: DeepSpeed documents how to set the level.
    """
    deepspeed.utils.set_log_level_from_string("error")


def disable_operation_builds(deepspeed: Any) -> None:
    """Keep DeepSpeed from compiling operations, and from searching for compilers.

    Uses: `deepspeed.ops.__compatible_ops__`, the table of operations that DeepSpeed may build.
    Why: on CPUs, DeepSpeed would compile a shared-memory all-reduce with g++ at first use, although gloo does not need
    it. The compilation takes 30 s, and fails without a compiler. DeepSpeed also searches for compilers to fill the
    table.
    Remove when: a setting or an environment variable turns the compilation off.
    """
    deepspeed.ops.__compatible_ops__ = {}


# -- parameters --------------------------------------------------------------------------------------------------------


def full_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the full shape of a parameter, even if DeepSpeed has partitioned the parameter.

    Uses: `ds_shape` of a parameter.
    Why: under ZeRO-3 a parameter is empty between its uses.
    Remove when: DeepSpeed documents how to read the shape without gathering the parameter.
    """
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def full_size(parameter: Tensor) -> int:
    """Return the full number of elements of a parameter, even if DeepSpeed has partitioned the parameter.

    Uses: `ds_numel` of a parameter.
    Why: under ZeRO-3 a parameter is empty between its uses.
    Remove when: DeepSpeed documents how to read the size without gathering the parameter.
    """
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def partition_parameter(init: Any, parameter: Any, device: torch.device) -> None:
    """Partition a parameter that all ranks have in full, so that this rank keeps only its own part.

    Does nothing if the parameter is already partitioned. `init` is a `deepspeed.zero.Init`. DeepSpeed stores the part
    separately, so the parameter itself is empty afterwards. DeepSpeed later gathers the parameter on `device`.

    Uses: `Init._convert_to_deepspeed_param`, and `ds_id` and `partition` of a parameter.
    Why: the documented way copies each parameter to the device and broadcasts it, although all ranks have it.
    Remove when: Init partitions a parameter when the parameter is registered in its module.
    """
    if hasattr(parameter, "ds_id"):
        return
    init._convert_to_deepspeed_param(parameter)
    parameter.partition()
    parameter.data = parameter.data.to(device)


# -- optimizer ---------------------------------------------------------------------------------------------------------


class ClippedAdamW(torch.optim.AdamW):
    """AdamW for ZeRO stage 0 that clips gradients to `max_norm` and skips steps with a non-finite gradient.

    Uses: `overflow` and `_global_grad_norm`, which DeepSpeed's engine reads from its optimizer.
    Why: DeepSpeed's own optimizers clip and skip only at ZeRO stages 1 to 3.
    Remove when: DeepSpeed also clips and skips at stage 0 in float32.
    """

    overflow = False
    _global_grad_norm = 0.0

    def __init__(self, parameters: list[nn.Parameter], max_norm: float, **options: Any) -> None:
        super().__init__(parameters, **options)
        self._max_norm = max_norm

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_norm)
        self._global_grad_norm = float(norm)
        self.overflow = not bool(norm.isfinite())
        if not self.overflow:
            super().step()


@dataclass(frozen=True, slots=True)
class Fragment:
    """Range of a parameter's elements, with `size` elements starting at `start`.

    The elements are stored in the flat tensor `storage`, starting at `offset`.
    """

    name: str
    start: int
    size: int
    storage: Tensor
    offset: int

    def view_of(self, flat: Tensor) -> Tensor:
        """Return the fragment's part of `flat` as a view of shape [size].

        `flat` is `storage`, or an Adam moment of `storage`.
        """
        return flat.detach().view(-1).narrow(0, self.offset, self.size)


def iterate_fragments(engine: Any, stage: int) -> Iterator[Fragment]:
    """Yield the fragments of all trained parameters that this rank updates.

    Uses: a parameter's `_hp_mapping` (stages 1 and 2); the optimizer's `grad_position`, `get_param_id` and
    `fp32_partitioned_groups_flat` (stage 3).
    Why: we write our own checkpoints, for the reasons in `optimizer_state`.
    Remove when: DeepSpeed documents where the state of a parameter is, for every stage.
    """
    optimizer = engine.optimizer
    for name, parameter in _trained(engine):
        if stage == 0:
            yield Fragment(name, 0, parameter.numel(), parameter, 0)
        elif stage == 3:
            group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start = dist.get_rank() * size
            size = min(size, full_size(parameter) - start)  # the rest is padding
            if size > 0:
                yield Fragment(name, start, size, optimizer.fp32_partitioned_groups_flat[group], offset)
        elif (mapping := parameter._hp_mapping) is not None:
            held = optimizer.param_groups[mapping.param_group_index]["params"][0]
            start, at = mapping.lp_fragment_address.start, mapping.hp_fragment_address
            yield Fragment(name, start, at.numel, held, at.start)


def trained_sizes(engine: Any) -> dict[str, int]:
    """Return the full number of elements of each trained parameter, by name.

    Uses: `ds_numel` of a parameter, for the same reason as `full_size`.
    Remove when: `full_size` can be removed.
    """
    return {name: full_size(parameter) for name, parameter in _trained(engine)}


def _trained(engine: Any) -> Iterator[tuple[str, Any]]:
    return ((name, p) for name, p in engine.module.named_parameters() if p.requires_grad)


def get_adam_state(engine: Any) -> Any:
    """Return Adam's state: a dictionary from `Fragment.storage` to the moments of this tensor.

    Uses: `DeepSpeedEngine.basic_optimizer`.
    Why: ZeRO's optimizers wrap ours, and do not expose all of its state.
    Remove when: `iterate_fragments` is unnecessary.
    """
    return engine.basic_optimizer.state


def begin_state_update(engine: Any, stage: int) -> None:
    """Prepare the optimizer for writing new values to its fragments.

    Uses: `checkpoint_event_prologue` of the optimizer at stage 3.
    Why: between training steps, each rank holds small parameters in full. They must be partitioned before new values
    are written, but DeepSpeed partitions them only during a training step.
    Remove when: `iterate_fragments` is unnecessary.
    """
    if stage == 3:
        engine.optimizer.checkpoint_event_prologue()


def finish_state_update(engine: Any, stage: int) -> None:
    """Copy the new values of the fragments into the model's own weights, which the model computes with.

    Uses: `update_lp_params` of the optimizer at stages 1 and 2; `fp16_partitioned_groups_flat`,
    `fp32_partitioned_groups_flat` and `checkpoint_event_epilogue` at stage 3.
    Why: DeepSpeed makes this copy only at the end of a training step, but loading a checkpoint involves no step.
    Remove when: `iterate_fragments` is unnecessary.
    """
    optimizer = engine.optimizer
    if stage in (1, 2):
        optimizer.update_lp_params()
    elif stage == 3:
        flat = zip(optimizer.fp16_partitioned_groups_flat, optimizer.fp32_partitioned_groups_flat, strict=True)
        for model, held in flat:
            model.data.copy_(held.data)
        optimizer.checkpoint_event_epilogue()
