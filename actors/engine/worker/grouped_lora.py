"""LoRA operations on CPUs, with one multiplication for all rows of a batch that use the same adapter.

vLLM's own operations on CPUs copy the adapter's matrices for each token, which takes gigabytes for a long prompt. They
also apply the last slot's adapter to rows without an adapter.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from agent_rft.actors.engine.vllm_internals import cpu_lora_operations

Groups = list[tuple[int, Tensor | slice]]
"""(adapter slot, rows of the batch that use the slot's adapter), for each slot that a row uses."""


def group_rows_by_slot(slots: Tensor) -> Groups:
    """Return each slot with the rows that use it. `slots` contains each row's slot, or -1 if the row has no adapter.

    The rows are a slice if all rows use one slot, otherwise a tensor of row numbers.
    """
    found = sorted(set(slots.tolist()))
    if len(found) == 1:
        return [(slot, slice(len(slots))) for slot in found if slot >= 0]
    return [(slot, (slots == slot).nonzero()[:, 0]) for slot in found if slot >= 0]


class GroupedLora(cpu_lora_operations()):  # type: ignore[misc] # vLLM has no types
    """Replacement for vLLM's LoRA operations on CPUs.

    The parameter `scale` is ignored, because it is always 1: vLLM includes an adapter's scale in the matrix B.
    """

    _token_groups: Groups
    _sample_groups: Groups

    def update_metadata(self, *arguments: Any, **named: Any) -> None:
        super().update_metadata(*arguments, **named)
        self._token_groups, self._sample_groups = (
            group_rows_by_slot(self.token_lora_indices),
            group_rows_by_slot(self.sampler_indices),
        )

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        """Add the product x A B to `y` in place. For each row, A and B are the matrices of the row's adapter.

        `x` is [T, in], and `y` is [T, out]. Each slice of the columns of `y` has its own A and B.
        """
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        for slot, rows in self._token_groups:
            inputs, column = x[rows], 0
            for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                _add_product(y[:, column : column + size], rows, inputs @ a[slot, 0].T, b[slot, 0])
                column += size

    def add_lora_logits(
        self, y: Tensor, x: Tensor, lora_a_stacked: Tensor, lora_b_stacked: Tensor, scale: float, **_: Any
    ) -> None:
        for slot, rows in self._sample_groups:
            _add_product(y, rows, x[rows] @ lora_a_stacked[slot, 0].T, lora_b_stacked[slot, 0])

    def add_lora_embedding(
        self, y: Tensor, x: Tensor, lora_b_stacked: Tensor, add_inputs: bool = True, **_: Any
    ) -> None:
        for slot, rows in self._token_groups:
            _add_product(y, rows, x[rows], lora_b_stacked[slot, 0])


def _add_product(y: Tensor, rows: Tensor | slice, inputs: Tensor, b: Tensor) -> None:
    """Add the product of `inputs` and B to rows of `y`. The last columns of `y` may be padding."""
    if isinstance(rows, slice):
        y[rows, : len(b)].addmm_(inputs.to(y.dtype), b.T.to(y.dtype))
    else:
        y[:, : len(b)].index_add_(0, rows, (inputs @ b.T).to(y.dtype))
