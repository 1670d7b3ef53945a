"""The small projects in `sources/`: their files, and their tests as questions with answers.

Each is one text: its package, the tests that the model sees, and tests that it never sees (`held_out.py`). All tests
have one form, `assertEqual(expression, literal)` or `assertRaises(error)` around an expression. So they can be taken
apart: the expressions are run where the model's code runs, and the answers stay here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "sources"
HELD_OUT: Final = "held_out.py"
TEST_PROJECTS: Final = ("dates", "stock", "versions")
"""The others are for training."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question of a test: an expression, and what Python prints for its value, or the name of its error."""

    test: str
    expression: str
    result: str


@dataclass(frozen=True)
class Project:
    """A package with the same name, without bugs."""

    name: str
    files: Mapping[str, str]
    """By path; what the model is given, apart from the bug."""
    held_out: str

    def is_source(self, path: str) -> bool:
        """Whether a file is of the package: all that a fix may change."""
        return path.startswith(f"{self.name}/") and path.endswith(".py")

    @property
    def tests(self) -> str:
        """The module of the tests that the model sees."""
        return f"tests.test_{self.name}"

    @cached_property
    def setup(self) -> str:
        """What the tests' expressions need: the imports and functions of the tests."""
        tree = ast.parse(self.files[f"tests/test_{self.name}.py"])
        kept = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.FunctionDef)]
        return "\n".join(ast.unparse(node) for node in kept)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """All questions: those of the tests that the model sees, then those of the others."""
        return (*_checks(self.files[f"tests/test_{self.name}.py"], self.tests), *_checks(self.held_out, "held_out"))


def _checks(source: str, module: str) -> Iterator[Check]:
    for case in ast.parse(source).body:
        for test in case.body if isinstance(case, ast.ClassDef) else []:
            assert isinstance(case, ast.ClassDef) and isinstance(test, ast.FunctionDef), module
            for step in test.body:
                yield Check(f"{module}.{case.name}.{test.name}", *_question(step))


def _question(step: ast.stmt) -> tuple[str, str]:
    match step:
        case ast.Expr(ast.Call(ast.Attribute(attr="assertEqual"), [expression, answer])):
            return ast.unparse(expression), repr(ast.literal_eval(answer))
        case ast.With([ast.withitem(ast.Call(args=[ast.Name(error)]))], [ast.Expr(expression)]):
            return ast.unparse(expression), f"raises {error}"
    raise ValueError(f"not a test of this form: {ast.unparse(step)}")


@cache
def project(name: str) -> Project:
    """The project with this name.

    Raises:
        KeyError: there is none.
    """
    if name not in names():
        raise KeyError(name)
    files: dict[str, str] = {}
    for part in (FOLDER / f"{name}.txt").read_text("utf-8").split("=== ")[1:]:
        path, _, text = part.partition("\n")
        files[path] = text
    held_out = files.pop(HELD_OUT)
    return Project(name, files, held_out)


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))
