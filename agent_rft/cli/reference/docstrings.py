"""Docstrings of classes, functions and fields as plain text.

The docstring of a field is the string literal below the field. Python itself discards this string.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise


def docstring_text(documented: object) -> str:
    """Return the docstring of a class or function, with each paragraph on one line."""
    return _join_lines(inspect.getdoc(documented) or "")


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings of a class's fields by name: first its own fields, then inherited ones."""
    found: dict[str, str] = {}
    for owner in cls.__mro__[:-1]:
        for part, after in pairwise(_parse_classes(owner.__module__)[owner.__qualname__].body):
            match part, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(name, _join_lines(inspect.cleandoc(text)))
    return found


@cache
def _parse_classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the parsed classes of an imported module by qualified name.

    The result is cached, because parsing is slow.
    """
    return dict(_classes_below(ast.parse(inspect.getsource(sys.modules[module])), ""))


def _classes_below(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            inner = f"{prefix}{child.name}."
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}.<locals>."
        yield from _classes_below(child, inner)


def to_sentence(text: str) -> str:
    """Return a phrase as a sentence that begins with a capital letter and ends with a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _join_lines(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
