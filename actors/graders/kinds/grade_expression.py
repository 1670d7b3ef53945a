"""Arithmetic expressions over grades, with `+ - * / ^`, parentheses, numbers and the functions in FUNCTIONS.

Expressions are validated when the job is checked, and evaluated with simpleeval. `^` is exponentiation, with the usual
precedence.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simpleeval import SimpleEval

from agent_rft.actors.graders.grader_protocol import check_finite_number
from agent_rft.errors import GraderFailed

MAX_CHARS = 2_000
MAX_DEPTH = 50
"""Maximum nesting: far more than a formula needs, and far below Python's recursion limit."""

FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,  # on floats: pow on ints could take forever
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression, created by `parse_expression`."""

    text: str
    tree: ast.expr

    def compute_value(self, scores: Mapping[str, float], where: str) -> float:
        """Return the expression's value for these scores, a finite number. `where` names the expression in errors.

        Raises:
            GraderFailed: The value is not finite or not defined (division by zero, overflow, square root of -1, ...).
        """
        evaluator = SimpleEval(operators=OPERATORS, functions=FUNCTIONS, names=dict(scores))
        inputs = ", ".join(f"{name} = {score:g}" for name, score in scores.items())
        where = f"{where}: {self.text!r} with {inputs}"
        try:
            value = evaluator.eval(self.text, previously_parsed=self.tree)
        except (ArithmeticError, ValueError) as error:
            raise GraderFailed(f"{where} has no value: {error}", code="formula_parse_error") from None
        return check_finite_number(value, where)


def parse_expression(text: str, names: Iterable[str]) -> Expression:
    """Parse an expression. `names` are the names of graders, which are the allowed variables.

    Raises:
        ValueError: The expression is invalid; the message lists all its problems.
    """
    problems = expression_problems(text, names)
    if problems:
        raise ValueError("; ".join(problems))
    return Expression(text, _parse_tree(text))


def expression_problems(text: str, names: Iterable[str]) -> list[str]:
    """Return the problems of an expression that can be found before grading; `names` are the allowed variables."""
    known = set(names)
    try:
        tree = _parse_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        return [f"the expression is invalid: {reason or 'nested too deeply'}"]
    problems: list[str] = []
    _collect_problems(tree, known, problems, depth=0)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}
    if not problems and not used & known:
        problems.append("the expression does not use any grader, so every sample would get the same reward")
    return problems or list(_find_part_without_value(tree))


def name_problem(name: str) -> str | None:
    """Return why a grader's name cannot be used in an expression; None if it can."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        return f"{name!r} cannot be used in an expression; use letters, digits and _, and start with a letter"
    return f"{name!r} is the name of a function; use another name" if name in FUNCTIONS else None


def _parse_tree(text: str) -> ast.expr:
    if len(text) > MAX_CHARS:
        raise ValueError(f"longer than {MAX_CHARS:,} characters")
    return ast.parse(" ".join(text.replace("^", "**").split()), mode="eval").body


def _collect_problems(node: ast.AST, known: set[str], problems: list[str], depth: int) -> None:
    """Append the problems of `node` and everything below it to `problems`."""
    if depth > MAX_DEPTH:
        problems.append(f"the expression is nested more than {MAX_DEPTH} levels deep")
        return
    operands: list[ast.expr] = []
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            operands = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            operands = [operand]
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]) if function in FUNCTIONS:
            operands = arguments
            expected = "at least one value" if function in {"min", "max"} else "one value"
            if not arguments or (len(arguments) > 1 and expected == "one value"):
                problems.append(f"{function} takes {expected}, not {len(arguments)}")
        case ast.Call(func=ast.Name(id=function)):
            problems.append(f"{function}(...) with these arguments is not supported; use {', '.join(FUNCTIONS)}")
        case ast.Name(id=name):
            if name not in known:
                problems.append(f"the grader {name!r} does not exist; use {', '.join(sorted(known))}")
        case ast.Constant(value=value):
            if not _is_finite(value):
                problems.append(f"{value!r:.50} is not a finite number")
        case _:
            problems.append(f"{ast.unparse(node)!r:.100} is not one of + - * / ^, a number, a grader or a function")
    for operand in operands:
        _collect_problems(operand, known, problems, depth + 1)


def _find_part_without_value(tree: ast.expr) -> Iterator[str]:
    """Yield a message if a part never has a finite value, such as a division by 0."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or any(isinstance(part, ast.Name) for part in _walk_operands(node)):
            continue
        try:
            value = Expression(ast.unparse(node), node).compute_value({}, "it")
        except GraderFailed:
            yield f"{ast.unparse(node)} has no finite value, whatever the grades are"
            return
        if value == 0 and any(isinstance(part, ast.BinOp) and part.right is node for part in _divisions(tree)):
            yield f"the expression divides by {ast.unparse(node)}, which is 0"
            return


def _walk_operands(node: ast.expr) -> Iterator[ast.AST]:
    """Return all parts of an expression except the names of functions."""
    called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    return (part for part in ast.walk(node) if id(part) not in called)


def _divisions(tree: ast.expr) -> Iterator[ast.BinOp]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))


def _is_finite(value: Any) -> bool:
    try:
        check_finite_number(value, "")
    except GraderFailed:
        return False
    return True
