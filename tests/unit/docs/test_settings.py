"""The pages of the settings: all of them, links that lead to a heading, and the schemas that the command prints."""

from __future__ import annotations

import json
import re

import pytest

from agent_rft.cli.reference.editor_schemas import MODELS, editor_schema
from agent_rft.cli.reference.setting_list import list_settings
from docs.generator.settings import pages

PAGES = pages()


@pytest.mark.parametrize("file", MODELS)
def test_each_setting_has_a_row_with_its_description(file: str) -> None:
    rows = [line for line in PAGES[f"{file}.md"].splitlines() if line.startswith("|")]
    for setting in (setting for setting in list_settings() if setting.file == file):
        name, description = setting.path.rpartition(".")[2], setting.description.replace("|", "\\|")
        assert any(f"`{name}`" in row and row.endswith(f" {description} |") for row in rows), setting.path


@pytest.mark.parametrize("file", MODELS)
def test_links_within_a_page_lead_to_a_heading(file: str) -> None:
    text = PAGES[f"{file}.md"]
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert len(anchors) == len(headings), "each has an anchor of its own"
    links = set(re.findall(r"\]\(#([^)]*)\)", text))
    assert links and links <= anchors


@pytest.mark.parametrize("file", MODELS)
def test_the_schema_of_the_page_is_that_of_the_command(file: str) -> None:
    assert json.loads(PAGES[f"schemas/{file}.json"]) == editor_schema(file)
