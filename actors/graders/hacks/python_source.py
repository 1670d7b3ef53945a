"""Python code in an answer: extraction, bounded parsing and normalization. The code is never run."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARS = 50_000
"""Maximum length of an answer. Parsing takes 0.1 s at this length, and no solution of a code task is longer."""
MAX_DEPTH = 120
"""Maximum nesting of statements and expressions."""

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class CodeTooLarge(Exception):
    """The code or the reference exceeds a limit; the message names the limit."""


@dataclass(frozen=True, slots=True)
class PythonSource:
    """The Python code in an answer.

    `trees` are the syntax trees of the code blocks that are valid Python, in order. `text` is the code of all blocks,
    including invalid ones.
    """

    text: str
    trees: tuple[ast.Module, ...]

    @property
    def statements(self) -> list[ast.stmt]:
        return [statement for tree in self.trees for statement in tree.body]

    @property
    def functions(self) -> dict[str, FunctionNode]:
        """Top-level functions and methods by name. If two have the same name, the last one counts, as in Python."""
        return dict(_iterate_functions(self.statements))

    @property
    def is_parsed(self) -> bool:
        return bool(self.trees)


def parse_source(text: str) -> PythonSource:
    """Parse the code in the fenced blocks of a text, or the full text if it has no fenced blocks.

    Raises:
        CodeTooLarge: The text exceeds MAX_CHARS or MAX_DEPTH.
    """
    if len(text) > MAX_CHARS:
        raise CodeTooLarge(f"it has {len(text):,} characters, more than {MAX_CHARS:,}")
    blocks = _fenced_blocks(text) or [text]
    trees = [tree for block in blocks if (tree := _parse(textwrap.dedent(block))) is not None]
    return PythonSource("\n".join(blocks), tuple(trees))


def normalize_tree(node: ast.AST) -> str:
    """Return a string that is the same for syntax trees that differ only in names, comments or annotations.

    Whitespace, comments, docstrings and annotations are removed. Names that the code binds are replaced by numbered
    names; attributes and all other names stay unchanged.
    """
    bound = _bound_names(node)
    return ast.dump(_Renamer(bound).visit(ast.parse(ast.unparse(node))))


def count_nodes(node: ast.AST) -> int:
    """Return the number of nodes in a syntax tree, not counting Load, Store and Del."""
    return sum(not isinstance(child, ast.expr_context) for child in ast.walk(node))


def drop_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    has = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if has else body


def parameter_names(function: FunctionNode) -> list[str]:
    """Return the names of a function's parameters, without a method's `self` or `cls`."""
    args = function.args
    found = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    names = [argument.arg for argument in found]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def literal_value(node: ast.AST) -> object:
    """Return the value of a literal, which may be a container of literals.

    Raises:
        ValueError: The node is not a literal.
    """
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("not a literal") from None


def is_literal(node: ast.AST) -> bool:
    try:
        literal_value(node)
    except ValueError:
        return False
    return True


def _fenced_blocks(text: str) -> list[str]:
    """Return the code blocks between Markdown fences. A truncated answer may lack the last fence."""
    blocks: list[list[str]] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.rstrip())
        if fence and match and match[1].startswith(fence) and not match[2]:
            fence = ""
        elif fence:
            blocks[-1].append(line)
        elif match:
            fence = match[1]
            blocks.append([])
    return ["\n".join(block) for block in blocks]


def _parse(text: str) -> ast.Module | None:
    """Return the syntax tree of some code; None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes such as "\d" in the code
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError):
        raise CodeTooLarge("it is nested too deeply") from None
    nodes: list[tuple[ast.AST, int]] = [(tree, 0)]
    while nodes:
        node, depth = nodes.pop()
        if depth > MAX_DEPTH:
            raise CodeTooLarge(f"it is nested more than {MAX_DEPTH} levels deep")
        nodes += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    return tree


def _iterate_functions(body: list[ast.stmt]) -> Iterator[tuple[str, FunctionNode]]:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.name, statement
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                yield name, function
            case ast.ClassDef(body=inner):
                yield from _iterate_functions(inner)


def _bound_names(node: ast.AST) -> dict[str, str]:
    """Map the names that the code binds to `v0`, `v1`, ... in order of appearance."""
    names: dict[str, str] = {}
    for child in ast.walk(ast.parse(ast.unparse(node))):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.setdefault(name, f"v{len(names)}")
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                names.setdefault(name, f"v{len(names)}")
            case ast.alias(asname=str(name)):
                names.setdefault(name, f"v{len(names)}")
    return names


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST:
        """Rename bound names, and remove docstrings and annotations, in this node and all nodes below it."""
        for key in ("id", "name", "arg", "asname"):
            if isinstance(value := getattr(node, key, None), str) and not isinstance(node, ast.keyword):
                setattr(node, key, self._names.get(value, value))
        for key in ("annotation", "returns", "type_comment"):
            if getattr(node, key, None) is not None and not isinstance(node, ast.AnnAssign):
                setattr(node, key, None)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = drop_docstring(node.body) or [ast.Pass()]
        self.generic_visit(node)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return ast.Assign(targets=[node.target], value=node.value, lineno=0)
        return node
