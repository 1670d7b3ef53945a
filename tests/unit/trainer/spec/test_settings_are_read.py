"""No dead settings: every key of the operator's configuration is read somewhere."""

from __future__ import annotations

import ast
import functools

import pytest

from tests.support.paths import ROOT
from trainer.spec.endpoints import Strict
from trainer.spec.operator import EngineLimits, JobLimits, ModelEndpoint, Operator, ServerLimits


@functools.cache
def attributes_read() -> set[str]:
    """All attribute names read in our packages, except where settings are declared."""
    packages = ("trainer", "actors", "cluster", "serve")
    files = [path for name in packages for path in (ROOT / name).rglob("*.py") if path.name != "operator.py"]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("settings", [Operator, ModelEndpoint, ServerLimits, EngineLimits, JobLimits])
def test_every_setting_is_read(settings: type[Strict]) -> None:
    dead = set(settings.model_fields) - attributes_read()
    assert not dead
