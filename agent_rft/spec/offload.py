"""Learner state that can be offloaded from a GPU to its node's memory. Needs no pydantic, which GPU nodes may lack."""

from __future__ import annotations

from typing import Literal

Offload = Literal["none", "optimizer", "optimizer_and_activations"]
