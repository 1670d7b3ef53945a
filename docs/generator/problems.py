"""reference/problems.md: each problem code, with an anchor of its own."""

from __future__ import annotations

import re

from agent_rft.problems import PROBLEM_CODE_GROUPS, is_warning, stops_accepted_job
from docs.generator.markdown import plain

_INTRO = """# Problem codes

The command line prints a code in brackets after each problem. The API returns it as the `code` of an error, and in the
`error` of a failed job. `agent-rft explain CODE` prints the text of this page. A `*` in a code stands for any text.
"""


def pages() -> dict[str, str]:
    """The page of all codes."""
    text = _INTRO
    for title, codes in PROBLEM_CODE_GROUPS.items():
        text += f"\n## {title}\n"
        for name, code in codes.items():
            shown = re.sub(r"<\w+>", "*", name)
            text += f"\n### `{shown}`\n\n{plain(code.meaning)}\n\nWhat to do: {plain(code.fix)}\n"
            if is_warning(name):
                text += "\nThis is a warning; the job continues.\n"
            elif not stops_accepted_job(name):
                text += "\nA resumed run continues with a warning.\n"
    return {"problems.md": text}
