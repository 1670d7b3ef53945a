"""Docstrings as plain text, those of fields too: a string literal below each, which Python itself discards."""

from __future__ import annotations

import ast
import inspect
import textwrap


def text_of(documented: object) -> str:
    """The docstring of a class or function, with each paragraph on one line."""
    return _joined(inspect.getdoc(documented) or "")


def field_texts(cls: type) -> dict[str, str]:
    """The texts of the fields of a class and its bases, those of the class first."""
    found: dict[str, str] = {}
    for owner in cls.__mro__[:-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for part, after in zip(tree.body, tree.body[1:], strict=False):
            match part, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(name, _joined(inspect.cleandoc(text)))
    return found


def sentence(text: str) -> str:
    """A phrase with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
