"""The output of `agent-rft check --show-prompt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

if TYPE_CHECKING:
    from agent_rft.cluster.preflight.shown_prompt import ShownPrompt

TRAINED = ("⟦", "⟧")
"""Around what is trained, which a terminal also colours."""


def print_prompt(console: Console, shown: ShownPrompt) -> None:
    """Print each sample as text with its special tokens, then how it was rendered."""
    for number, pieces in enumerate(shown.samples, start=1):
        title = (
            "the first row" if len(shown.samples) == 1 else f"the first row, sample {number} of {len(shown.samples)}"
        )
        console.print(Rule(title, align="left"))
        text = Text()
        for piece, trained in pieces:
            text.append(f"{TRAINED[0]}{piece}{TRAINED[1]}" if trained else piece, "green" if trained else "")
        console.print(text, soft_wrap=True)
    console.print(Rule())
    dialect = shown.dialect
    trained = any(trained for pieces in shown.samples for _, trained in pieces)
    parser = "no tool parser" if dialect.tool_parser is None else f"parser {dialect.tool_parser}"
    facts = [f"{shown.num_tokens:,} tokens", f"family {dialect.family}", parser]
    facts += [
        f"turns end with {' '.join(shown.end_tokens)}",
        *([f"{TRAINED[0]}trained{TRAINED[1]}"] if trained else []),
    ]
    console.print(Text(", ".join(facts)), soft_wrap=True)
