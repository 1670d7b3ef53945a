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

Each row is the chat template of one or more models, with what `agent-rft models doctor` finds about it. It was found
with the **real template**, and a vocabulary in which bytes and the template's marks are the tokens: by rendering calls,
which the parser must read, results, thoughts and whole conversations. How far each family was tried is below.

- **own tools**: the template itself shows the tools. The others do with what `agent-rft models template` writes before
  them, which is what the rest of their row is about.
- **reasoning**: a turn may start with one (*yes*), the prompt opens one (*always*), or they are messages of their own.
  *dropped*: the history is rendered without them.
- **parallel calls**: the history keeps several calls of a turn together. Else they are written one after another.
- **rollout**: *one segment* where the template only appends; else each turn is a training sample of its own.
- **supervised**: samples of a conversation with a call, its result and two answers; *a turn* also where only thoughts
  or a second question make the template write earlier turns again.
- **structured**: a `response_format` for rows with tools, since the form of the calls is known.

"""
_SHOWN = """
## How it was shown

Each cell names all that was used: **template** is the real one, in `make test`; **short template** is one in the
family's form; **vocabulary** is that of the real model; **tiny weights** are random, in an engine and a learner
(`make nightly`; Hermes and Qwen3.5 in `make test`); **weights** are those of a real model, trained (`examples/orders`).
A dash: not tried, or the family has no such thing.

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
