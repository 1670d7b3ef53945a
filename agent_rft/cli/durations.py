"""Durations that options of the command line take."""

from __future__ import annotations

import re

from agent_rft.errors import UserError

UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([1-9][0-9]{0,3})([smhdw])", re.ASCII)


def seconds_of(duration: str, option: str) -> int:
    """The seconds of a duration such as `10m`, `12h` or `90d`, which is given with an option of the command line.

    Raises:
        UserError: It is not one.
    """
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise UserError(f"{option} {duration!r}: give a number of up to four digits and s, m, h, d or w, such as 90d")
    return int(match[1]) * UNIT_S[match[2]]
