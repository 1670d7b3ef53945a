"""Calls of actors and other processes name methods that exist. mypy cannot check untyped handles and strings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.support.paths import ROOT

PACKAGES = ("actors", "cluster", "serve", "trainer")
RAYS = {"__ray_call__", "__ray_ready__"}
BY_NAME = {"collective_rpc", "call", "_call_all", "_call_rank_0", "_call_with_devices"}
"""Functions whose first argument is the name of a method of a worker, of the other end of a channel, or of a rank."""


def trees(*packages: str) -> dict[str, ast.Module]:
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def methods(tree: ast.Module) -> Iterator[str]:
    """Names of the methods of all classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))


def remote_calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each method that is called as `handle.method.remote(...)`, with or without options.

    `make_class(...).remote(...)` and `Class.options(...).remote(...)` create an actor.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote":
            target = node.func.value
            if (
                isinstance(target, ast.Call)
                and isinstance(target.func, ast.Attribute)
                and target.func.attr == "options"
            ):
                target = target.func.value
            if isinstance(target, ast.Attribute):
                yield node.lineno, target.attr


def calls_by_name(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each method that is called by its name, as a string."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr=attr), [ast.Constant(str(name)), *_]) if attr in BY_NAME:
                yield node.lineno, name


@pytest.mark.parametrize(("find", "least"), [(remote_calls, 30), (calls_by_name, 15)])
def test_each_method_that_is_called_on_an_actor_exists(
    find: Callable[[ast.Module], Iterator[tuple[int, str]]], least: int
) -> None:
    found = trees(*PACKAGES)
    known = {name for tree in found.values() for name in methods(tree)} | RAYS
    calls = [(file, line, name) for file, tree in found.items() for line, name in find(tree)]
    assert len(calls) > least
    assert [call for call in calls if call[2] not in known] == []


def test_each_method_that_benchmarks_and_tests_call_on_an_actor_exists() -> None:
    """Actors are defined by the product, by benchmarks and by tests."""
    found = trees("actors", "benchmarks", "tests")
    known = {name for tree in found.values() for name in methods(tree)} | RAYS
    functions = {node.name for tree in found.values() for node in tree.body if isinstance(node, ast.FunctionDef)}
    calls = [(file, line, name) for file, tree in found.items() for line, name in remote_calls(tree)]
    assert [call for call in calls if call[2] not in known | functions] == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("await handle.heartbeat.remote()", ["heartbeat"]),
        ("handle.address.options(max_task_retries=-1).remote()", ["address"]),
        ("worker_class.options(name='a').remote(config)", []),
        ("ray.remote(Rank).remote()", []),
    ],
)
def test_the_method_of_a_call_is_found(source: str, names: list[str]) -> None:
    assert [name for _, name in remote_calls(ast.parse(source))] == names
