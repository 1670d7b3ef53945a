"""What a learner rank on a GPU can keep in its node's memory. Without pydantic, which a machine with a GPU may lack."""

from __future__ import annotations

from typing import Literal

Offload = Literal["none", "optimizer", "optimizer_and_activations"]
