"""reference/readiness.md: the verdicts before training and each reason code."""

from __future__ import annotations

from agent_rft.problems.readiness_reasons import REASONS, Verdict
from docs.generator.markdown import plain

_INTRO = """# Readiness reasons

`agent-rft ready` and `POST /v1/fine_tuning/readiness` end with a verdict and its reasons. [Readiness
check](../readiness.md) explains how to read them. `agent-rft explain CODE` prints the text of this page.
"""
_TITLES: dict[Verdict | None, str] = {
    "train": "`train`",
    "fix_first": "`fix_first`: a problem would spoil training",
    "sft_warm_up": "`sft_warm_up`: show the model how first",
    None: "Notes, which do not decide",
}


def pages() -> dict[str, str]:
    """The page of all reasons."""
    text = _INTRO
    for verdict, title in _TITLES.items():
        text += f"\n## {title}\n"
        for reason, entry in REASONS.items():
            if entry.verdict == verdict:
                text += f"\n### `{reason}`\n\n{plain(entry.meaning)}\n\nWhat to do: {plain(entry.fix)}\n"
    return {"readiness.md": text}
