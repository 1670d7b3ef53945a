"""The tables of docs/models.md and docs/your-agent.md agree with the program."""

from __future__ import annotations

import re

from agent_rft.cli.openai_import.open_models import OPEN_MODELS
from docs.generator.layouts import MODELS, layouts_on
from tests.support.paths import ROOT


def rows(page: str, begin: str) -> list[list[str]]:
    """The rows of a page's tables whose first cells begin so."""
    lines = (ROOT / page).read_text().splitlines()
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if re.match(rf"\| {begin}", line)]


def test_the_path_names_the_largest_models_that_fit() -> None:
    sizes = {model.name: model.shape().num_parameters for model in MODELS}
    table = rows("docs/your-agent.md", r"\d+( (x|or) \d+)? \| Qwen")
    assert [row[0] for row in table] == ["1 or 2", "4", "8", "2 x 8"]
    for gpu_gib, columns in ((24, slice(1, 3)), (80, slice(3, 5))):
        layouts = layouts_on(gpu_gib)
        for row in table:
            for cluster in row[0].split(" or "):
                plans = {model: plans[cluster] for model, plans in layouts.items() if plans[cluster].fits}
                loras = {model: plan.placement.lora is not None for model, plan in plans.items()}
                full = max((model for model, lora in loras.items() if not lora), key=sizes.__getitem__)
                adapted = max((model for model, lora in loras.items() if lora), key=sizes.__getitem__)
                assert row[columns] == [full, adapted]


def test_an_import_proposes_from_the_table_of_the_page() -> None:
    table = [
        [
            model.name,
            f"{model.parameters_in_billions:.2g}B",
            f"{model.context_length:,}",
            model.tool_parser or "none",
            model.license,
        ]
        for model in OPEN_MODELS
    ]
    assert table == rows("docs/models.md", "Qwen/")
