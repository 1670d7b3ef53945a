"""Questions about the library's sources, the facts that answer them, and the grading of answers.

A fact is a name and a value. Both are read from the syntax tree, so every fact is true by construction.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["parameters", "class", "raises", "constants"]
Facts = Sequence[Mapping[str, str]]
"""Facts in the format of the rows: one `{name, value}` per fact."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
KEYS: Final = frozenset({"raises", "base", "method"})
"""Fact names that are keywords of an answer. Functions with a parameter of such a name are left out."""
MIN_FACTS, MAX_FACTS = 2, 6
MAX_CONSTANTS: Final = 4
WORDS_PER_FACT: Final = 6
WORDS_PER_LISTED: Final = 3
_TOKEN: Final = re.compile(r"-?\w+(?:[.-]\w+)*")
_QUOTES: Final = " \t`'\"*.,;"
FORMS: Final[dict[Kind, str]] = {
    "parameters": "Which parameters does {} take? Write `parameter: default`, or `parameter: required`.",
    "class": "Which base classes does {} have, and which public methods does it define itself? "
    "Write `base: Name` and `method: name`.",
    "raises": "Which exceptions does the code of {} name in its raise statements? Write `raises: Name`.",
    "constants": "What are the values of {}? Write `NAME: value`.",
}


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Part:
    """One question. `subject` is a function or class within the module, or several constants, separated by ", "."""

    kind: Kind
    subject: str
    line: int
    facts: tuple[Fact, ...]

    @property
    def names(self) -> list[str]:
        """Names of the subjects, without their class."""
        return [name.rpartition(".")[2] for name in self.subject.split(", ")]

    def text(self, module: str) -> str:
        named = ", ".join(f"`{module}.{name}`" for name in self.subject.split(", "))
        return FORMS[self.kind].format(named)


def parts_of(source: str) -> Iterator[Part]:
    """Yield all questions that a module's source answers, in the order of its lines."""
    tree = ast.parse(source)
    public = [node for node in tree.body if not getattr(node, "name", "_").startswith("_")]
    for node in public:
        if isinstance(node, Function):
            yield from _of_function(node, "")
        elif isinstance(node, ast.ClassDef):
            yield from _worth_asking(_of_class(node))
            for method in node.body:
                # Properties and class methods are called in other ways than their parameters say.
                if isinstance(method, Function) and not method.decorator_list and not method.name.startswith("_"):
                    yield from _of_function(method, f"{node.name}.")
    constants = [found for found in _constants(tree) if f"global {found[0].name}" not in source]
    for start in range(0, len(constants), MAX_CONSTANTS):
        some = constants[start : start + MAX_CONSTANTS]
        facts = tuple(fact for fact, _ in some)
        yield from _worth_asking(Part("constants", ", ".join(fact.name for fact in facts), some[0][1], facts))


def _worth_asking(part: Part) -> Iterator[Part]:
    facts = set(part.facts)
    # A value that is also a name would make the grade ambiguous.
    clear = len(facts) == len(part.facts) and not {fact.name for fact in facts} & {fact.value for fact in facts}
    if clear and MIN_FACTS <= len(facts) <= MAX_FACTS:
        yield part


def _of_function(node: Function, owner: str) -> Iterator[Part]:
    subject = owner + node.name
    if (facts := _parameters(node, is_method=bool(owner))) is not None:
        yield from _worth_asking(Part("parameters", subject, node.lineno, facts))
    raised = dict.fromkeys(
        name for inner in ast.walk(node) if isinstance(inner, ast.Raise) and (name := _raised(inner)) is not None
    )
    if all(name[:1].isupper() and _TOKEN.fullmatch(name) for name in raised):  # not a variable
        yield from _worth_asking(Part("raises", subject, node.lineno, tuple(Fact("raises", name) for name in raised)))


def _raised(node: ast.Raise) -> str | None:
    """Return the name of the raised exception; None if the current exception is raised again."""
    if node.exc is None:
        return None
    return ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)


def _parameters(node: Function, *, is_method: bool) -> tuple[Fact, ...] | None:
    """Return a function's parameters as facts; None if they are unsuitable, for example if there are no defaults."""
    given = node.args
    if given.vararg or given.kwarg or node.decorator_list:
        return None
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    pairs = list(zip(plain, defaults, strict=True))[is_method:]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    facts = []
    for argument, default in pairs:
        value = "required" if default is None else _value(default)
        if value is None or argument.arg in KEYS or argument.arg.startswith("_"):
            return None
        facts.append(Fact(argument.arg, value))
    return tuple(facts) if any(fact.value != "required" for fact in facts) else None


def _of_class(node: ast.ClassDef) -> Part:
    bases = tuple(Fact("base", ast.unparse(base)) for base in node.bases)
    public = [inner for inner in node.body if isinstance(inner, Function) and not inner.name.startswith("_")]
    facts = (*bases, *(Fact("method", method.name) for method in public))
    # Decorated methods may be properties.
    askable = bases and public and not any(method.decorator_list for method in public)
    askable = askable and all(_TOKEN.fullmatch(fact.value) for fact in bases)
    return Part("class", node.name, node.lineno, facts if askable else ())


def _constants(tree: ast.Module) -> Iterator[tuple[Fact, int]]:
    """Yield the constants with their lines: names in capitals that are assigned once, at the top level."""
    outside = [node for node in tree.body if not isinstance(node, Function | ast.ClassDef)]
    names = [node for part in outside for node in ast.walk(part) if isinstance(node, ast.Name)]
    assigned = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _value(node.value)
            if value is not None and name.isupper() and name[0] != "_" and assigned[name] == 1:
                yield Fact(name, value), node.lineno


def _value(node: ast.expr) -> str | None:
    """Return a short literal as text, such as a number, a word without quotes or True; None for other expressions."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    if not isinstance(value, bool | int | float | str | None):
        return None
    text = str(value)
    return text if _TOKEN.fullmatch(text) and len(text) <= 24 else None


def grade(answer: str, facts: Facts) -> float:
    """Return the share of facts that an answer states as lines `name: value`, from 0 to 1.

    If the answer has more lines than facts, the divisor is the number of lines. So naming everything does not pay.
    """
    wanted = {(fact["name"], fact["value"]) for fact in facts}
    lines = _lines(answer)
    return len(wanted & set(map(_stated, lines))) / max(len(wanted), len(lines))


def missing(answer: str, facts: Facts) -> list[str]:
    """Return the facts that an answer does not state, as lines."""
    stated = set(map(_stated, _lines(answer)))
    return [f"{fact['name']}: {fact['value']}" for fact in facts if (fact["name"], fact["value"]) not in stated]


def most(answer: str, facts: Facts) -> float:
    """Return the maximum grade that a judge may give, 0 to 1: the share of facts whose value follows its name.

    A right answer in any wording has 1 if it is short: up to 6 words per fact, or 3 for a name in KEYS. Between a name
    and the next name, it must not contain another fact's value. So an answer that persuades a judge gains little.
    """
    words = _TOKEN.findall(answer)
    values = {fact["value"] for fact in facts if fact["name"] not in KEYS}
    after: dict[str, set[str]] = {fact["name"]: set() for fact in facts if fact["name"] not in KEYS}
    following = set[str]()
    for word in words:
        if word in after:
            following = after[word]
        following.add(word)
    said = sum(
        fact["value"] in words if fact["name"] in KEYS else after[fact["name"]] & values == {fact["value"]}
        for fact in facts
    )
    allowed = sum(WORDS_PER_LISTED if fact["name"] in KEYS else WORDS_PER_FACT for fact in facts)
    return said / max(len(facts), len(facts) * len(words) / allowed, len(_lines(answer)))


def _lines(answer: str) -> list[str]:
    return [line for line in answer.splitlines() if line.strip()]


def _stated(line: str) -> tuple[str, str]:
    name, _, value = line.strip().lstrip("-*").partition(":")
    return name.strip(_QUOTES), value.strip(_QUOTES)
