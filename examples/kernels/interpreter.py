"""Interpreter that runs a kernel in a small subset of Python and numpy, and counts its work.

The subset has numbers, lists, arrays, loops, conditions and the functions below. It has no imports, no classes, no
clock, and only the listed attributes. So a kernel cannot fake the count, which does not depend on the host or its load.
Too much work raises an error. A Python step costs 1, about 40 ns; an array operation costs 20, plus 1 per 64 elements.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

MAX_CHARS: Final = 1_000
MAX_WORK: Final = 50_000
MAX_ELEMENTS: Final = 20_000
MAX_INTEGER: Final = 2**53
CALL_WORK, ELEMENTS_A_STEP = 20, 64

Kernel = ast.FunctionDef
Number = bool | int | float
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda a, b: (float(a) if isinstance(a, int) else a) ** b,  # a power of integers may need all memory
}
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ELEMENTWISE: Final = {
    name: getattr(np, name) for name in ("exp", "log", "sqrt", "tanh", "abs", "square", "maximum", "minimum", "where")
}
_ARITY: Final = {"maximum": 2, "minimum": 2, "where": 3}
_REDUCTIONS: Final = {name: getattr(np, name) for name in ("sum", "mean", "max", "min")}
_MATH: Final[dict[str, Callable[..., float]]] = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "abs": abs,
    "float": float,
}


class Refused(Exception):
    """The kernel is outside the language, fails, or does too much work. The message is for the model."""


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def read(text: str, name: str = "kernel") -> Kernel:
    """Return the only function in a text, which may be in a code block.

    Raises:
        Refused: The text is not one function with this name and plain arguments.
    """
    code = text.strip().removeprefix("```python").removeprefix("```").removesuffix("```")
    if len(code) > MAX_CHARS:
        raise Refused(f"more than {MAX_CHARS} characters")
    try:
        body = ast.parse(code).body
    except SyntaxError as error:
        raise Refused(f"not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise Refused("not valid Python") from None
    match body:
        case [ast.FunctionDef(name=found, args=arguments, decorator_list=[]) as function] if found == name:
            if _are_plain(arguments):
                return function
    raise Refused(f"not one function {name} with plain arguments")


def _are_plain(arguments: ast.arguments) -> bool:
    more = (arguments.posonlyargs, arguments.vararg, arguments.kwonlyargs, arguments.kw_defaults, arguments.kwarg)
    return not any((*more, arguments.defaults)) and all(one.annotation is None for one in arguments.args)


def is_flat(items: Sequence[object]) -> bool:
    """Return whether a list contains only numbers. The list of a zip contains tuples."""
    return all(isinstance(item, Number) for item in items)


def run(kernel: Kernel, inputs: Sequence[np.ndarray]) -> tuple[Any, int]:
    """Return the kernel's result for copies of the inputs, and the work that it did.

    Raises:
        Refused: The kernel is outside the language, fails, or exceeds a limit.
    """
    names = [argument.arg for argument in kernel.args.args]
    if len(names) != len(inputs):
        raise Refused(f"takes {len(names)} arguments, not {len(inputs)}")
    machine = _Machine(dict(zip(names, (values.copy() for values in inputs), strict=True)))
    try:
        with np.errstate(all="ignore"):
            machine.do(kernel.body)
    except _Return as ended:
        return ended.value, machine.work
    except (ArithmeticError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused(f"{type(error).__name__}: {str(error)[:60]}") from None
    raise Refused("returns nothing")


class _Machine:
    """State of one run: the variables, and the work so far."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self.work = 0

    def do(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._spend(1)
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[name] = self._value(value)
                case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                    self._names[name] = self._binary(op, self._name(name), self._value(value))
                case ast.For(target=target, iter=iterable, body=body, orelse=[]):
                    for item in self._items(self._value(iterable)):
                        self._bind(target, item)
                        self.do(body)
                case ast.If(test=test, body=body, orelse=orelse):
                    self.do(body if self._truth(test) else orelse)
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name), "append"), [value], [])):
                    self._list(name).append(self._number(self._value(value)))
                case ast.Return(value=value) if value is not None:
                    raise _Return(self._value(value))
                case _:
                    raise Refused(f"{type(statement).__name__} is not allowed")

    def _value(self, node: ast.expr) -> Any:
        self._spend(1)
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return self._checked(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._binary(ast.Sub(), 0, self._value(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return self._applied(_COMPARED[type(op)], self._value(left), self._value(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._truth(test) else orelse)
            case ast.Subscript(value=value, slice=index):
                return self._element(self._value(value), self._value(index))
            case ast.List(elts=elements):
                return [self._number(self._value(element)) for element in elements]
            case (
                ast.ListComp(elt=element, generators=[generator])
                | ast.GeneratorExp(elt=element, generators=[generator])
            ):
                return list(self._comprehended(element, generator))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._plain_call(name, [self._value(argument) for argument in arguments])
            case ast.Call(func=ast.Attribute(ast.Name(id="np"), name), args=arguments, keywords=keywords):
                return self._array_call(name, [self._value(argument) for argument in arguments], keywords)
            case ast.Call(func=ast.Attribute(value, name), args=arguments, keywords=keywords) if name in _REDUCTIONS:
                given = [self._value(value), *(self._value(argument) for argument in arguments)]
                return self._array_call(name, given, keywords)
        raise Refused(f"{ast.unparse(node)[:40]} is not allowed")

    # Parts of a value

    def _comprehended(self, element: ast.expr, generator: ast.comprehension) -> Iterator[Any]:
        if generator.ifs:
            raise Refused("a condition in a comprehension is not allowed")
        for item in self._items(self._value(generator.iter)):
            self._bind(generator.target, item)
            yield self._number(self._value(element))

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) not in _BINARY:
            raise Refused(f"{type(op).__name__} is not allowed")
        return self._applied(_BINARY[type(op)], left, right)

    def _applied(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Apply a function to numbers and arrays, and count work for the elements of their common shape."""
        if not all(isinstance(operand, Number | np.ndarray) for operand in operands):
            raise Refused("an operation on lists is not allowed: use arrays")
        if any(isinstance(operand, np.ndarray) for operand in operands):
            self._spend_on(math.prod(np.broadcast_shapes(*(np.shape(operand) for operand in operands))))
        return self._checked(function(*operands))

    def _plain_call(self, name: str, arguments: list[Any]) -> Any:
        match name, arguments:
            case "len", [list() | range() | np.ndarray() as value]:
                return len(value)
            case "range", [int() as stop]:
                return range(stop)
            case "zip", [_, *_]:
                return list(zip(*map(self._untupled, arguments), strict=False))
            case "sum", [value]:
                total: Any = 0
                for item in self._items(value):
                    total = self._binary(ast.Add(), total, item)
                return total
            case "max" | "min", [bool() | int() | float(), *_] if all(isinstance(one, Number) for one in arguments):
                return max(arguments) if name == "max" else min(arguments)
            case _ if name in _MATH and len(arguments) == 1 and isinstance(arguments[0], Number):
                return _MATH[name](arguments[0])
        raise Refused(f"{name} of this is not allowed")

    def _array_call(self, name: str, arguments: list[Any], keywords: list[ast.keyword]) -> Any:
        if name in _ELEMENTWISE and len(arguments) == _ARITY.get(name, 1) and not keywords:
            return self._applied(_ELEMENTWISE[name], *arguments)
        match name, arguments, keywords:
            case "array", [list() as items], [] if is_flat(items):
                self._spend_on(len(items))
                return np.array(items)
            case _, [np.ndarray() as values, *axis], _ if name in _REDUCTIONS and len(axis) + len(keywords) <= 1:
                axis += [self._value(keyword.value) for keyword in keywords if keyword.arg == "axis"]
                self._spend_on(values.size)
                return self._checked(_REDUCTIONS[name](values, *map(self._index, axis)))
        raise Refused(f"np.{name} of this is not allowed")

    def _element(self, value: Any, index: Any) -> Any:
        if not isinstance(value, list | np.ndarray):
            raise Refused("an index into a number")
        return self._checked(value[self._index(index)])

    def _items(self, value: Any) -> Iterator[Any]:
        if not isinstance(value, list | range | np.ndarray):
            raise Refused("a loop over a number")
        for item in value:
            self._spend(1)
            yield item if isinstance(item, tuple) else self._checked(item)

    def _untupled(self, value: Any) -> Iterator[Any]:
        """Yield the items to zip, but no tuples: a zip of zips could be larger than memory."""
        for item in self._items(value):
            if isinstance(item, tuple):
                raise Refused("a zip of a zip is not allowed")
            yield item

    def _bind(self, target: ast.expr, item: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._names[name] = item
            case ast.Tuple(elts=parts) if isinstance(item, tuple) and len(item) == len(parts):
                for part, value in zip(parts, item, strict=True):
                    self._bind(part, value)
            case _:
                raise Refused("a loop over this is not allowed")

    def _truth(self, test: ast.expr) -> bool:
        value = self._value(test)
        if not isinstance(value, Number):
            raise Refused("a condition on an array: use np.where")
        return bool(value)

    def _name(self, name: str) -> Any:
        if name not in self._names:
            raise Refused(f"{name[:20]} is not defined")
        return self._names[name]

    def _list(self, name: str) -> list[Any]:
        value = self._name(name)
        if not isinstance(value, list):
            raise Refused("append to what is not a list")
        return value

    @staticmethod
    def _index(value: Any) -> int:
        if type(value) is not int:
            raise Refused("an index is a whole number")
        return value

    @staticmethod
    def _number(value: Any) -> Number:
        """Return the value if it is a number. Lists of lists are refused because they could be larger than memory."""
        if not isinstance(value, Number):
            raise Refused("a list of numbers is needed")
        return value

    @staticmethod
    def _checked(value: Any) -> Any:
        """Return the value, converted from numpy to Python; raise Refused if it is complex or too large."""
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, complex) or (isinstance(value, int) and abs(value) > MAX_INTEGER):
            raise Refused("a number that is too large or complex")
        return value

    # Bounds

    def _spend_on(self, elements: int) -> None:
        if elements > MAX_ELEMENTS:
            raise Refused(f"an array of more than {MAX_ELEMENTS:,} elements")
        self._spend(CALL_WORK + elements // ELEMENTS_A_STEP)

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise Refused("takes too long")
