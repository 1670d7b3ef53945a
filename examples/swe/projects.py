"""The small projects in `sources/`: their files, and their tests as expressions with expected results.

Each project is a text file with its package, its visible tests, and tests that the model never sees (`held_out.py`).
Each test step is `assertEqual(expression, literal)`, or an expression in `with assertRaises(error)`. Only the
expressions are sent to the sandbox of the model's code; the expected results stay in this process.
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
"""Projects for the test file. All other projects are for training."""


@dataclass(frozen=True, slots=True)
class Check:
    """Expression in a test, and its expected result: the `repr` of its value, or `raises` and the error's name."""

    test: str
    expression: str
    result: str


@dataclass(frozen=True)
class Project:
    """Correct package, without a bug, and its tests; `name` is the package's name."""

    name: str
    files: Mapping[str, str]
    """Contents of the files that the model sees, by path. A task's bug is added later."""
    held_out: str

    def is_source(self, path: str) -> bool:
        """Return whether a file belongs to the package. A fix may change only such files."""
        return path.startswith(f"{self.name}/") and path.endswith(".py")

    @property
    def tests(self) -> str:
        """Name of the module with the visible tests."""
        return f"tests.test_{self.name}"

    @cached_property
    def setup(self) -> str:
        """Code that the tests' expressions need: the imports and functions of the test module."""
        tree = ast.parse(self.files[f"tests/test_{self.name}.py"])
        kept = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.FunctionDef)]
        return "\n".join(ast.unparse(node) for node in kept)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """All checks: first of the visible tests, then of the held-out tests."""
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
    """Load a project by name.

    Raises:
        KeyError: The project does not exist.
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
