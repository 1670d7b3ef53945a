"""The settings of LoRA: which weights get an adapter, and of what size."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent_rft.spec.endpoints import Strict

ModuleName = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*$", max_length=200)]


class LoraSpec(Strict):
    """LoRA (Hu et al. 2021): the model's weights stay, and small matrices beside them are trained.

    A weight W becomes W + alpha / rank x B A, where A has `rank` rows and B, `rank` columns, begins at 0.
    """

    rank: Annotated[int, Field(ge=1, le=512)] = 32
    """Rows of A: how much an adapter can learn, and its size in proportion. Reinforcement needs little, 8 to 32; raise
    it for supervised training on many rows."""
    alpha: Annotated[float, Field(gt=0, le=65_536)] = 32.0
    """Scale of what is learned. At the default the best learning rate hardly depends on the rank, so leave it."""
    targets: Literal["all-linear"] | Annotated[tuple[ModuleName, ...], Field(min_length=1, max_length=64)] = (
        "all-linear"
    )
    """Which weights are adapted: all-linear (each linear layer but the output head) or a list of names of layers, such
    as `q_proj` or `layers.0.mlp.up_proj`. Attention alone learns less (Schulman et al. 2025)."""

    def __str__(self) -> str:
        return f"rank {self.rank}, alpha {self.alpha:g}, targets {', '.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.targets,) if isinstance(self.targets, str) else self.targets
