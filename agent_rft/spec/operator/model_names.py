"""Lookup of requested model names in the operator's configuration.

For example, the operator's `gpt-5` also serves requests for `gpt-5-2025-08-07`, unless the operator defines that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date
from difflib import get_close_matches

SNAPSHOTS = (
    *(
        "gpt-4-turbo-2024-04-09",
        "gpt-4o-2024-05-13",
        "gpt-4o-2024-08-06",
        "gpt-4o-2024-11-20",
        "gpt-4o-mini-2024-07-18",
    ),
    *("gpt-4.1-2025-04-14", "gpt-4.1-mini-2025-04-14", "gpt-4.1-nano-2025-04-14", "gpt-4.5-preview-2025-02-27"),
    *("gpt-5-2025-08-07", "gpt-5-mini-2025-08-07", "gpt-5-nano-2025-08-07", "gpt-5-pro-2025-10-06"),
    *("gpt-5.1-2025-11-13", "gpt-5.2-2025-12-11", "gpt-5.2-pro-2025-12-11", "gpt-5.4-mini-2026-03-17"),
    *("gpt-5.4-nano-2026-03-17", "gpt-5.5-2026-04-23", "gpt-5.5-pro-2026-04-23"),
    *("o1-2024-12-17", "o1-mini-2024-09-12", "o1-preview-2024-09-12", "o1-pro-2025-03-19"),
    *("o3-2025-04-16", "o3-mini-2025-01-31", "o3-pro-2025-06-10", "o4-mini-2025-04-16"),
)
"""Dated names of OpenAI's text models, which are shown in lists of models. Requests may contain other dates."""

_DATED = re.compile(r"(.+)-(\d{4}-\d{2}-\d{2})", re.ASCII)
_MAX_COMPARED = 100
"""Maximum number of characters of a name to compare. Clients choose names, and difflib takes quadratic time."""


def match_model_name(name: str, names: Collection[str]) -> str | None:
    """Return the name in `names` that serves requests for `name`; None if there is no such name.

    An equal name is preferred. Otherwise, a date suffix of `name` is ignored: `gpt-5-2025-08-07` matches `gpt-5`.
    """
    if name in names:
        return name
    dated = _DATED.fullmatch(name)
    return dated[1] if dated and dated[1] in names and _is_date(dated[2]) else None


def add_snapshots(names: Collection[str]) -> list[str]:
    """Return `names`, each followed by its dated names in SNAPSHOTS.

    For example, `gpt-5` is followed by `gpt-5-2025-08-07`.
    """
    found = (
        form
        for name in names
        for form in (name, *(full for full in SNAPSHOTS if match_model_name(full, [name]) == name))
    )
    return list(dict.fromkeys(found))


def find_similar_name(name: str, names: Collection[str]) -> str | None:
    """Return the name in `names` whose spelling is most similar to `name`; None if no name is similar."""
    return next(iter(get_close_matches(name[:_MAX_COMPARED], names, 1)), None)


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False
