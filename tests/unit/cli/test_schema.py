"""The command `schema`: a JSON schema on standard output, and the names of the files that have one."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.cli.reference.editor_schemas import MODELS, editor_schema


@pytest.mark.parametrize("file", MODELS)
def test_it_prints_the_schema_of_each_file(file: str) -> None:
    result = CliRunner().invoke(app, ["schema", file])
    assert result.exit_code == 0
    assert json.loads(result.output) == editor_schema(file)


def test_an_unknown_file_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["schema", "jobs"])
    assert result.exit_code == 2
    assert all(file in result.output for file in MODELS)
