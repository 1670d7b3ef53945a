"""The tables of accepted tool lists and schemas in the manual, executed row by row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cli.projects.own_project import ProjectRequest, write_own_project
from agent_rft.errors import InvalidJob
from agent_rft.spec.schemas.dataset_schemas import TYPES
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
_CODE = re.compile(r"`([^`]+)`")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def table(*header: str) -> list[list[str]]:
    """Cells of the rows of the table with this header."""
    _, found, rest = PAGE.partition(f"| {' | '.join(header)} |\n")
    assert found, header
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


FORMATS = table("List", "File", "Example")
CONVERTED = table("Argument's schema in the list", "Schema in the rows")
REFUSED = table("Argument's schema in the list", "Fix")


def tools_of(folder: Path, name: str, text: str) -> tuple[list[Any], str]:
    """The tools in the rows of a project that is written for a list, and what `init` says."""
    (folder / name).write_text(text + "\n", encoding="utf-8")
    said = write_own_project(folder / "project", ProjectRequest((str(folder / name),)))
    rows = [json.loads(line) for line in (folder / "project" / "rows" / "train.jsonl").read_text().splitlines()]
    assert all(row["tools"] == rows[0]["tools"] for row in rows)
    return [tool["function"] for tool in rows[0]["tools"]], said


def with_argument(schema: Any) -> str:
    return json.dumps([{"name": "find", "parameters": {"type": "object", "properties": {"argument": schema}}}])


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row[0])
def test_each_list_in_the_manual_becomes_a_project(row: list[str], tmp_path: Path) -> None:
    (name,), (example,) = (_CODE.findall(cell) for cell in row[1:])
    tools, said = tools_of(tmp_path, name, example)
    assert tools == [{"name": "find", "description": "find", "parameters": SCHEMA}]
    assert f"tools: find from {tmp_path / name}; the list has no code for the tools" in said


@pytest.mark.parametrize(("given", "becomes"), [(one, row[1]) for row in CONVERTED for one in _CODE.findall(row[0])])
def test_each_schema_in_the_manual_is_converted_with_a_warning(given: str, becomes: str, tmp_path: Path) -> None:
    (expected,) = _CODE.findall(becomes)
    (tool,), said = tools_of(tmp_path, "tools.json", with_argument(json.loads(given)))
    assert tool["parameters"]["properties"] == {"argument": json.loads(expected)}
    assert said.count("warning: ") >= 1 and ": find" in said.partition("warning: ")[2]


@pytest.mark.parametrize(("given", "fix"), [(one, row[1]) for row in REFUSED for one in _CODE.findall(row[0])])
def test_each_refused_schema_in_the_manual_names_the_fix(given: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob) as refused:
        tools_of(tmp_path, "tools.json", with_argument(json.loads(given)))
    (problem,) = refused.value.problems
    assert problem.code == "unsupported_tool" and fix in problem.fix
    assert problem.field.startswith("[0].parameters.properties.argument") and problem.line == 1
    assert not (tmp_path / "project").exists()


def test_every_row_is_executed() -> None:
    assert (len(FORMATS), len(CONVERTED), len(REFUSED)) == (9, 11, 5)


def test_the_table_has_every_type_that_is_converted() -> None:
    named = re.findall(r'"(\w+)"', " ".join(row[0] for row in CONVERTED))
    assert set(TYPES) <= {name.lower() for name in named}
