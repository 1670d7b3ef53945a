"""Python files whose functions become tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rft.cli.projects.python_tools import ToolModule, read_module
from agent_rft.errors import InvalidJob, UserError

SHOP = '''
import enum
import sys
from typing import Annotated

from pydantic import BaseModel, Field

import prices

__all__ = ["total", "find", "wait"]
print("what a module prints", file=sys.stderr)


class Currency(enum.Enum):
    EUR = "eur"
    USD = "usd"


class Place(BaseModel):
    city: str
    zip: int | None = None


def find(customer: str, place: Place | None = None, *, most: Annotated[int, Field(ge=1, description="how many")] = 5):
    """Lists the numbers of a customer's orders."""
    raise SystemExit("was called")


async def total(order: int, currency: Currency = Currency.EUR) -> float:
    """The total of an order."""
    return 1.0


def wait() -> None:
    pass


def helper(anything, *more):
    return prices.PRICE
'''


def test_public_functions_become_tools_by_their_hints_and_none_is_called(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name, text in (("__init__", ""), ("tools", SHOP.replace("import prices", "from shop import prices"))):
        (tmp_path / "shop" / f"{name}.py").write_text(text)
    (tmp_path / "shop" / "prices.py").write_text("PRICE = 1")
    module = read_module(tmp_path / "shop" / "tools.py")
    assert (module.root, module.name) == (tmp_path, "shop.tools"), "a package is imported as one"
    assert module.undocumented == ("wait",)
    find, total, wait = module.tools
    assert (find.name, find.description) == ("find", "Lists the numbers of a customer's orders.")
    assert find.parameters["required"] == ["customer"] and find.parameters["additionalProperties"] is False
    place = {"type": "object", "required": ["city"]}
    place["properties"] = {"city": {"type": "string"}, "zip": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    (shown, nothing) = find.parameters["properties"]["place"]["anyOf"]
    shown["properties"]["zip"].pop("default")
    assert (shown, nothing) == (place, {"type": "null"}), "no references and no titles"
    most = find.parameters["properties"]["most"]
    assert most == {"type": "integer", "minimum": 1, "default": 5, "description": "how many"}
    assert total.parameters["properties"]["currency"] == {"type": "string", "enum": ["eur", "usd"], "default": "eur"}
    assert wait.parameters["properties"] == {}


def read(folder: Path, text: str, *wanted: str, name: str = "shop.py") -> ToolModule:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_module(path, wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "\ndef add(a: int,\n        b) -> int: ...",
            r"add\(b\) \(.*shop.py:3\): has no type hint .*\n.*for example b: str",
        ),
        (
            "def add(*numbers: int): ...",
            r"add\(\*numbers\) \(.*shop.py:1\): .*cannot describe \*args or .*\n.*name each argument",
        ),
        ("def add(**numbers: int): ...", r"cannot describe \*args or \*\*kwargs"),
        ("def add(a: int, /): ...", r"add\(a\) .*by name.*\n.*remove the /"),
        (
            "def add(): ...\n\ndef add(): ...",
            r"add \(.*shop.py:3\): is already defined at line 1.*\n.*or rename it",
        ),
        ("def prüfe(): ...", r"prüfe .*1 to 64 characters.*\n.*rename the function"),
        (f"def {'a' * 65}(): ...", r"1 to 64 characters"),
        (
            "def add():\n    '\\ud800'",
            r"add \(.*shop.py:1\): its docstring contains a lone .*\n.*write complete characters",
        ),
    ],
)
def test_what_a_model_cannot_call_is_named_with_line_and_fix(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "shop.py",
            "import json\n_x = 1\ndef _private(a): ...",
            "no public function: define the tools at the top level",
        ),
        ("shop.py", "\ndef add(a: int:\n", r"shop.py:2 is not valid Python 3.11"),
        ("shop.py", "x = " + "(" * 5_000, r"is not valid Python"),
        ("shop.py", "\0", r"is not valid Python"),
        ("shop.py", "#" * (1 << 20) + "\n", r"larger than 1,048,576 bytes"),
        ("my-shop.py", "def add(): ...", r"cannot import a module with the name 'my-shop'; use letters"),
        (
            "class.py",
            "def add(): ...",
            r"cannot import a module with the name 'class'; use letters.* and avoid keywords",
        ),
        ("json.py", "def add(): ...", r"Python already has a module 'json'; rename the file to my_json.py"),
        ("server.py", "def add(): ...", r"the project already has a module 'server'"),
        ("shop.py", "\n".join(f"def add{i}(): ..." for i in range(65)), r"has 65 functions.*with --tool"),
    ],
)
def test_a_file_that_cannot_be_tools_is_refused_before_it_runs(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, text, name=name)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_module(tmp_path / "none.py")


def test_an_import_that_fails_says_why_and_how_to_see_it(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"ModuleNotFoundError: No module named 'nowhere_to_be'.*test the import with: cd /"
    ) as got:
        read(tmp_path, "import nowhere_to_be\ndef add(): ...")
    assert "\n" not in str(got.value)


def test_hints_without_a_json_schema_are_refused_and_other_functions_can_be_chosen(tmp_path: Path) -> None:
    text = """
from __future__ import annotations
from pydantic import BaseModel
class Tree(BaseModel):
    children: list[Tree]
def good(a: int): ...
def thread(lock: Lock): ...
def tree(tree: Tree): ...
def call(what: type(lambda: 0)): ...
"""
    with pytest.raises(InvalidJob) as got:
        read(tmp_path, text)
    said = str(got.value)
    assert "thread" in said and "shop.py:7" in said and "'Lock'" in said
    assert "tree" in said and "shop.py:8" in said and "contains itself" in said
    assert "call" in said and "shop.py:9" in said
    (tool,) = read(tmp_path, text, "good").tools
    assert tool.name == "good"
    with pytest.raises(
        UserError, match=r"--tool bad: .*shop.py has no such function; available: good, thread, tree, call"
    ):
        read(tmp_path, text, "bad")
