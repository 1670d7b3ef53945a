"""Generator of bugs for the projects. Each bug changes one expression or statement in the syntax tree of a file."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
PAIRS: Final = {"min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Bug:
    """Bug in one line of a file: the correct line `old` is replaced by the line `new`."""

    kind: str
    path: str
    line: int
    old: str
    new: str

    def in_files(self, files: dict[str, str]) -> dict[str, str]:
        """Return a copy of the files that contains the bug.

        Raises:
            ValueError: The line to replace differs from `old`, so the bug belongs to other files.
        """
        lines = files[self.path].split("\n")
        if lines[self.line - 1] != self.old:
            raise ValueError(f"{self.path}, line {self.line}, is not {self.old!r}: write the rows again")
        lines[self.line - 1] = self.new
        return {**files, self.path: "\n".join(lines)}

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def bugs(path: str, source: str) -> Iterator[Bug]:
    """Yield all possible bugs that change a single line of a file, without duplicates."""
    lines = source.split("\n")
    seen = set[tuple[int, str]]()
    for node in ast.walk(ast.parse(source)):
        for kind, target, changed in _changes(node):
            if target.lineno != target.end_lineno or target.end_col_offset is None:
                continue
            old = lines[target.lineno - 1]
            new = old[: target.col_offset] + changed + old[target.end_col_offset :]
            if new != old and (target.lineno, new) not in seen:
                seen.add((target.lineno, new))
                yield Bug(kind, path, target.lineno, old, new)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield the possible changes of a syntax node: kind of bug, node to replace, and replacement code."""
    if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.AugAssign):
        yield from _with_another_operator(node)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", node, str(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "no return", node, ast.unparse(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in PAIRS:
            yield "wrong function", node.func, PAIRS[node.func.id]
        if len(node.args) == 2 and not node.keywords and node.func.id not in PAIRS:
            swapped = copy.deepcopy(node)
            swapped.args.reverse()
            yield "arguments swapped", node, ast.unparse(swapped)
    elif isinstance(node, ast.FunctionDef):
        for default in node.args.defaults:
            if isinstance(default, ast.Constant) and isinstance(default.value, int):
                wrong = not default.value if default.value is True or default.value is False else default.value * 2
                yield "wrong default", default, repr(wrong)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not left out", node, ast.unparse(node.operand)


def _with_another_operator(
    node: ast.Compare | ast.BinOp | ast.BoolOp | ast.AugAssign,
) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    operator = node.ops[0] if isinstance(node, ast.Compare) else node.op
    if type(operator) in SWAPS:
        changed: Any = copy.deepcopy(node)
        other = SWAPS[type(operator)]()
        if isinstance(node, ast.Compare):
            changed.ops[0] = other
        else:
            changed.op = other
        text = ast.unparse(changed)
        # Brackets keep the precedence inside a larger expression.
        yield "wrong operator", node, text if isinstance(node, ast.stmt | ast.Compare) else f"({text})"
