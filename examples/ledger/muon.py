"""Muon: momentum with orthogonalized updates of matrices (K. Jordan, kellerjordan.github.io/posts/muon).

Everything is float32. `torch.optim.Muon` is not used, because it computes in bfloat16, which is slow or unsafe on many
CPUs, and updates matrices one by one. Here, matrices of the same or transposed shape are updated together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS: Final = 5
EPSILON: Final = 1e-7


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return an approximation of U V^T for each matrix U S V^T, by a quintic Newton-Schulz iteration.

    `matrices` are [N, rows, columns] with rows <= columns.
    """
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Optimizer for the matrices between embedding and output. Updates are scaled by sqrt(max(1, rows / columns))."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do one update. Every matrix must have a gradient; closures are not supported."""
        if closure is not None:
            raise ValueError("closures are not supported")
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                rows, columns = matrix.shape
                shapes[min(rows, columns), max(rows, columns)].append(matrix)
            for same_shape in shapes.values():
                self._step_together(same_shape, group["lr"], group["momentum"])

    def _step_together(self, matrices: list[Tensor], lr: float, momentum: float) -> None:
        directions = []
        for matrix in matrices:
            assert matrix.grad is not None
            buffer = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
            buffer.mul_(momentum).add_(matrix.grad)
            directions.append(_wide(matrix.grad + momentum * buffer))
        for matrix, update in zip(matrices, orthogonalize(torch.stack(directions)), strict=True):
            rows, columns = matrix.shape
            update = update.T if rows > columns else update
            matrix.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def _wide(matrix: Tensor) -> Tensor:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
