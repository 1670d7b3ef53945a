"""Kinds of learner state that can be offloaded from a GPU to the memory of its node.

This module does not import pydantic, because GPU nodes may not have it.
"""

from __future__ import annotations

from typing import Literal

Offload = Literal["none", "optimizer", "optimizer_and_activations"]
