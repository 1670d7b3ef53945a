"""No dead settings: every key of a job, its request, the operator's configuration and a list of nodes is read."""

from __future__ import annotations

import ast
import functools

import pytest

from agent_rft.spec.endpoints import StrictModel
from tests.support.settings import all_models
from tests.support.source import syntax_trees

ONLY_ACCEPTED = {"PythonGrader.image_tag"}
"""Keys of OpenAI's API without a meaning here, which its clients send."""


@functools.cache
def attributes_read() -> set[str]:
    """All attribute names that are read in our packages."""
    nodes = (node for tree in syntax_trees().values() for node in ast.walk(tree))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_every_setting_is_read(model: type[StrictModel]) -> None:
    dead = {f"{model.__name__}.{name}" for name in set(model.model_fields) - attributes_read()}
    assert dead <= ONLY_ACCEPTED
