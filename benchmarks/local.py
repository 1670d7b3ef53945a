"""The operator's settings of all benchmarks that call servers."""

from __future__ import annotations

from trainer.spec.operator import Operator

LOCAL = Operator(allowed_networks=["127.0.0.0/8"])
"""Allows servers on this machine."""
