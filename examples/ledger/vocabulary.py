"""Vocabulary of the world, in which every piece is one token.

The order of `PIECES` is fixed: a piece's index is its token id, and the weights in `base/` were trained with these ids.
A string is split from left to right, each time into the longest piece that matches. Characters that match no piece are
dropped; all printable ASCII characters and the newline have a piece.
"""

import re
import string
from typing import Final

_SYLLABLES = (
    "ac be cor dy el fin gor hal ix jo kra lum mer nex or pel qua ron sol tra ul ven wex yo zen bram cle dro fy glo "
    "hu ist jex kin lor mag nu ost pra rik sta tol und vor wil xan yar zu"
)
SYLLABLES: Final = _SYLLABLES.split()
YEARS: Final = [str(year) for year in range(2012, 2020)]
STATEMENTS: Final = {
    "income": ["revenue", "net income", "costs"],
    "balance": ["assets", "debt", "equity"],
    "cash": ["inflow", "capex", "dividends"],
}
"""Metrics of each statement."""
STATEMENT_OF: Final = {metric: statement for statement, metrics in STATEMENTS.items() for metric in metrics}
METRICS: Final = list(STATEMENT_OF)

PAD: Final = "<pad>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
ASSISTANT: Final = "assistant\n"

_MARKERS = [PAD, TURN_START, TURN_END, "<tool_call>\n", "\n</tool_call>", "<tool_response>\n", "\n</tool_response>"]
_PHRASES = ["user\n", ASSISTANT, "what ", "was ", "were ", "the ", "of ", " in ", " and ", "higher ", "company ", "?"]
_PHRASES += ["unknown", "error: ", "not found", " ", "\n", "/", '"}}']
_CALL_OPENINGS = [
    f'{{"name": "{tool}", "arguments": {{"{parameter}": "'
    for tool, parameter in (("cat", "path"), ("list", "path"), ("search", "query"))
]
_NAMES = [*YEARS, *STATEMENTS, *METRICS, *(f"{metric} " for metric in METRICS), *SYLLABLES]
_NUMBERS = [f"{number:02d}" for number in range(100)]
_CHARACTERS = list(string.printable[:95])

PIECES: Final = list(dict.fromkeys(_MARKERS + _PHRASES + _CALL_OPENINGS + _NAMES + _NUMBERS + _CHARACTERS))
TOKEN_OF: Final = {piece: token for token, piece in enumerate(PIECES)}
PATTERN: Final = "|".join(re.escape(piece) for piece in sorted(PIECES, key=len, reverse=True))
"""Regular expression that matches the next piece; longer pieces come first."""

_NEXT_PIECE = re.compile(PATTERN)


def split(text: str) -> list[str]:
    """Return the pieces of a string, in order."""
    return _NEXT_PIECE.findall(text)


def encode(text: str) -> list[int]:
    """Return the token ids [T] of a string, the same as from the tokenizer in `base/`."""
    return [TOKEN_OF[piece] for piece in split(text)]
