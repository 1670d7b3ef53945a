"""The tables of docs/models.md and of the README say what the program does."""

from __future__ import annotations

import re

from agent_rft.cli.openai_import.open_models import OPEN_MODELS
from docs.generator.layouts import MODELS, layouts_on
from tests.support.paths import ROOT


def rows(page: str, begin: str) -> list[list[str]]:
    """The rows of a page's tables whose first cells begin so."""
    lines = (ROOT / page).read_text().splitlines()
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if re.match(rf"\| {begin}", line)]


def test_the_readme_names_the_largest_models_that_fit() -> None:
    sizes = {model.name: model.shape().num_parameters for model in MODELS}
    layouts = layouts_on(80)
    table = rows("README.md", r"\d+( x \d+)? \| Qwen")
    assert [row[0] for row in table] == ["1", "2", "4", "8", "2 x 8"]
    for cluster, full, adapted in table:
        plans = {model: plans[cluster] for model, plans in layouts.items() if plans[cluster].fits}
        loras = {model: plan.placement.lora is not None for model, plan in plans.items()}
        assert full == max((model for model, lora in loras.items() if not lora), key=sizes.__getitem__)
        assert adapted == max((model for model, lora in loras.items() if lora), key=sizes.__getitem__)


def test_an_import_proposes_from_the_table_of_the_page() -> None:
    table = [
        [model.name, f"{model.billions:.2g}B", f"{model.context:,}", model.tool_parser or "none", model.license]
        for model in OPEN_MODELS
    ]
    assert table == rows("docs/models.md", "Qwen/")
