"""Texts of the console's charts, taken from the report's charts."""

from __future__ import annotations

import json

from agent_rft.metrics.metric_charts import CHARTS

PATH = "serve/console/app/src/pages/job/chart-texts.json"


def files() -> dict[str, str]:
    """Return the JSON file with the title and explanation of each chart of the report."""
    texts = {key: {"title": chart.title, "explanation": chart.explanation} for key, chart in CHARTS.items()}
    return {PATH: json.dumps(texts, indent=2, ensure_ascii=False) + "\n"}
