"""reference/problems.md: each problem code, with an anchor of its own."""

from __future__ import annotations

import re

from agent_rft.problems import PROBLEM_CODE_GROUPS, stops_accepted_job
from docs.generator.markdown import plain

_INTRO = """# Problem codes

A code stands in brackets after each problem that the command line prints, in the `code` of an error of the API, and in
the `error` of a failed job. `agent-rft explain CODE` prints the text of this page. In a code with a `*`, that part is
computed.
"""


def pages() -> dict[str, str]:
    """The page of all codes."""
    text = _INTRO
    for title, codes in PROBLEM_CODE_GROUPS.items():
        text += f"\n## {title}\n"
        for name, code in codes.items():
            shown = re.sub(r"<\w+>", "*", name)
            text += f"\n### `{shown}`\n\n{plain(code.meaning)}\n\nWhat to do: {plain(code.fix)}\n"
            if not stops_accepted_job(name):
                text += "\nA run that is resumed continues with a warning.\n"
    return {"problems.md": text}
