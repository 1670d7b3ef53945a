"""reference/model-families.md: what can be trained with the chat templates of real models, and how that was shown."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from docs.generator.markdown import code, table
from trainer.chat.families import FAMILIES

FOUND = Path(__file__).with_suffix(".json")
"""What `python -m tests.support.templates` found. A test computes it again."""
_INTRO = """# Model families

Each row is the chat template of one or more models, with what `agent-rft models doctor` finds about it. It was found
with the **real template**, and a vocabulary in which bytes and the template's marks are the tokens: by rendering calls,
which the parser must read, results, thoughts and whole conversations. How far each family was tried is below.

- **own tools**: the template itself shows the tools. The others do with what `agent-rft models template` writes before
  them, which is what the rest of their row is about.
- **thoughts**: a turn may start with one (*yes*), the prompt opens one (*always*), or they are messages of their own.
  *dropped*: the history is rendered without them.
- **parallel calls**: the history keeps several calls of a turn together. Else they are written one after another.
- **rollout**: *one segment* where the template only appends; else each turn is a training sample of its own.
- **supervised**: samples of a conversation with a call, its result and two answers; *a turn* also where only thoughts
  or a second question make the template write earlier turns again.
- **structured**: a `response_format` for rows with tools, since the form of the calls is known.

"""
_SHOWN = """
## How it was shown

What a column does not name was not tried: where only the template is named, nobody has trained such a model here yet.

"""
_REST = "real template"
_EVIDENCE = {
    "hermes": "real template; tiny weights in an engine and a learner (the ledger example, in `make test`)",
    "qwen3_coder": "real template; the real vocabulary of Qwen3.5 and Qwen3.6 (in `make nightly`)",
    "gpt_oss": "real template; the real vocabulary and parser of `openai_harmony`",
    "mistral": "nothing but the parser: no template at hand",
    "deepseek_v31": "nothing but the parser: no template at hand",
    "deepseek_v3": "nothing but the parser: the template at hand shows no tools, and is used with the prelude",
    "kimi_k2": "nothing but the parser: no template at hand",
}


def pages() -> dict[str, str]:
    """The page of all templates."""
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    order = [family.name for family in FAMILIES]
    lines = [_cells(names, found) for names in _alike(found, order)]
    head = ("family", "templates", "own tools", "parser", "thoughts", "parallel calls", "rollout", "supervised")
    text = _INTRO + table((*head, "structured"), lines) + _SHOWN
    shown = [(name, _EVIDENCE.get(name, _REST)) for name in order]
    return {"model-families.md": text + table(("family", "shown with"), shown)}


def _alike(found: dict[str, dict[str, Any]], order: list[str]) -> list[list[str]]:
    """The templates, in groups of those with equal cells."""

    def place(name: str) -> tuple[int, str]:
        return order.index(found[name]["family"]), json.dumps(_facts(found[name]))

    return [list(names) for _, names in groupby(sorted(found, key=place), key=place)]


def _facts(row: dict[str, Any]) -> list[str]:
    thought = {"none": "no", "optional": "yes", "opened": "always", "message": "messages"}[row["thought"]]
    dropped = ", dropped" if row["thought"] != "none" and not row["keeps_thoughts"] else ""
    return [
        _yes(row["own_tools"]),
        code(row["tool_parser"]) if row["reads_calls"] else "none",
        thought + dropped,
        _yes(row["parallel_calls"]),
        "one segment" if row["appends"] else "a turn",
        {0: "no", 1: "one sample"}.get(row["samples"], "a turn"),
        _yes(row["structured"]),
    ]


def _cells(names: list[str], found: dict[str, dict[str, Any]]) -> list[str]:
    return [found[names[0]]["family"], ", ".join(names), *_facts(found[names[0]])]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
