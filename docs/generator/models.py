"""reference/model-families.md: what can be trained with the chat templates of real models, and how that was shown."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from agent_rft.chat.families import FAMILIES
from docs.generator import architectures
from docs.generator.markdown import code, table

FOUND = Path(__file__).with_suffix(".json")
"""What `python -m tests.support.templates` found. A test computes it again."""
_INTRO = """# Model families

Each row describes the chat template of one or more models, as `agent-rft models doctor` does. The results come from the
**real template**, with a vocabulary that consists of bytes and the template's special tokens. The test renders tool
calls, results, reasoning and complete conversations, and parses the calls again. [Tests per family](#tests-per-family)
lists which parts of each family were tested.

- **own tools**: the template itself shows the tools. For all other templates, `agent-rft models template` adds a part
  that shows the tools. The remaining columns then describe the extended template.
- **reasoning**: *yes*: a turn may begin with reasoning. *always*: the prompt begins the reasoning. *messages*:
  reasoning is a separate message. *dropped*: the template omits the reasoning of earlier turns.
- **parallel calls**: *yes*: several calls of a turn stay together in the history. *no*: the calls are written one after
  another.
- **rollout**: *one segment*: the template only appends text, so a rollout is one training sample. *a turn*: each turn
  is a separate training sample.
- **supervised**: training samples of a conversation with a call, its result and two answers. *a turn* also applies to
  templates that change earlier turns only because of reasoning or a second question.
- **structured**: rows with tools may have a `response_format`, because the syntax of the calls is known.

"""
_SHOWN = """
## Tests per family

Each cell lists what the tests used:

- **template**: the real template, in `make test`
- **short template**: a shorter template with the family's syntax
- **vocabulary**: the vocabulary of the real model
- **tiny weights**: random weights, in an engine and a learner (`make nightly`; Hermes and Qwen3.5 in `make test`)
- **weights**: the weights of a real model that was trained (`examples/orders`)
- a dash: not tested, or the family does not have this feature

"""
COLUMNS = ("template", "parser", "reasoning", "parallel calls", "supervised", "structured output", "engine and learner")
WITH_TINY_WEIGHTS = (
    *("hermes", "qwen3_coder", "llama3", "gemma4", "glm4", "gpt_oss", "lfm2", "muse_glimmer"),
    *("kimi_k2", "mistral", "deepseek_v3", "deepseek_v31"),
)
"""The families that `tests/ray/test_families.py` trains."""
_WITH_REAL_VOCABULARY = ("qwen3_coder", "gpt_oss")
_WITH_REAL_WEIGHTS = ("hermes",)
_CONSTRAINED = ("hermes", "qwen3_coder", "gpt_oss", "gemma4", "lfm2", "kimi_k2", "mistral", "muse_glimmer")
"""The families whose structured output an engine sampled in a test."""


def pages() -> dict[str, str]:
    """The page of all templates."""
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    order = [family.name for family in FAMILIES]
    lines = [_cells(names, found) for names in _alike(found, order)]
    head = ("family", "templates", "own tools", "parser", "reasoning", "parallel calls", "rollout", "supervised")
    text = _INTRO + table((*head, "structured"), lines) + _SHOWN
    shown = [(name, *_evidence(name, [row for row in found.values() if row["family"] == name])) for name in order]
    return {"model-families.md": text + table(("family", *COLUMNS), shown) + architectures.section()}


def _evidence(family: str, rows: list[dict[str, Any]]) -> list[str]:
    """How each of COLUMNS was shown; `rows` are the family's real templates."""
    tiny = "tiny weights" if family in WITH_TINY_WEIGHTS else ""
    template = "template" if rows else "short template" if tiny else ""
    vocabulary = "vocabulary" if family in _WITH_REAL_VOCABULARY else ""
    weights = "weights" if family in _WITH_REAL_WEIGHTS else ""
    cells = [
        (template,),
        (template, vocabulary, tiny, weights),
        (template,) if any(row["reasoning"] != "none" for row in rows) else (),
        (template,) if any(row["parallel_calls"] for row in rows) else (),
        (template, weights),
        ("tiny weights",)
        if family in _CONSTRAINED
        else (template,)
        if any(row["has_structured_output"] for row in rows)
        else (),
        (tiny, weights),
    ]
    return [", ".join(filter(None, cell)) or "-" for cell in cells]


def _alike(found: dict[str, dict[str, Any]], order: list[str]) -> list[list[str]]:
    """The templates, in groups of those with equal cells."""

    def place(name: str) -> tuple[int, str]:
        return order.index(found[name]["family"]), json.dumps(_facts(found[name]))

    return [list(names) for _, names in groupby(sorted(found, key=place), key=place)]


def _facts(row: dict[str, Any]) -> list[str]:
    reasoning = {"none": "no", "optional": "yes", "opened": "always", "message": "messages"}[row["reasoning"]]
    dropped = ", dropped" if row["reasoning"] != "none" and not row["keeps_reasoning"] else ""
    return [
        _yes(row["own_tools"]),
        code(row["tool_parser"]) if row["reads_calls"] else "none",
        reasoning + dropped,
        _yes(row["parallel_calls"]),
        "one segment" if row["is_append_only"] else "a turn",
        {0: "no", 1: "one sample"}.get(row["samples"], "a turn"),
        _yes(row["has_structured_output"]),
    ]


def _cells(names: list[str], found: dict[str, dict[str, Any]]) -> list[str]:
    return [found[names[0]]["family"], ", ".join(names), *_facts(found[names[0]])]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
