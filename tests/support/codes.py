"""Finds the problem codes that the packages use, in their syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.source import syntax_trees

CODE = re.compile(r"[a-z<][a-z0-9_<>]*")
ANY = "<>"
"""The part of a code that is computed."""


def used_codes() -> dict[str, list[str]]:
    """The codes with the places that use them.

    A code is what a parameter or field named `code` is given, or a variable named `code` or `codes`: a literal, one of
    several, or the name of a constant.
    """
    nodes = [(path, node) for path, tree in syntax_trees().items() for node in ast.walk(tree)]
    constants = {key: value for _, node in nodes for key, value in _constants(node)}
    positions = {key: place for path, node in nodes for key, place in _position(path, node)}
    codes: dict[str, list[str]] = {}
    for path, node in nodes:
        for value in _given(path, node, positions):
            for code in _texts(value, constants):
                if CODE.fullmatch(code):
                    codes.setdefault(code, []).append(f"{path.relative_to(ROOT)}:{value.lineno}")
    return codes


def _scope(path: Path, name: str) -> tuple[Path | None, str]:
    """What identifies a function: private names differ between files."""
    return (path if name.startswith("_") else None), name


def _position(path: Path, node: ast.AST) -> Iterator[tuple[tuple[Path | None, str], int]]:
    """A function or class and the position of its argument `code`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        if "code" in names:
            yield _scope(path, node.name), names.index("code") - (names[0] in ("self", "cls"))
    if isinstance(node, ast.ClassDef):
        fields = [
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
        if "code" in fields:
            yield _scope(path, node.name), fields.index("code")


def _given(path: Path, node: ast.AST, positions: dict[tuple[Path | None, str], int]) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        place = positions.get(_scope(path, name), len(node.args))
        if place < len(node.args):
            yield node.args[place]
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.lower() in ("code", "codes")
    ):
        yield node.value


def _texts(value: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield from [constants[name]] if name in constants else []
        case ast.IfExp(body=body, orelse=other):
            yield from (*_texts(body, constants), *_texts(other, constants))
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else ANY for part in parts)
        case ast.Dict(values=values):
            yield from (text for part in values for text in _texts(part, constants))
        case ast.Call(func=ast.Attribute(value=ast.Dict() as table, attr="get")):
            yield from _texts(table, constants)


def _constants(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Module constants with a text, by name."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if name.isupper():
            yield name, text
