"""Parser of the tables in docs/licenses.md."""

from __future__ import annotations

from collections.abc import Iterator

from requirements.lists import FOLDER

PAGE = FOLDER.parent / "docs/licenses.md"


def table(*titles: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the page's table that has these column titles."""
    _, found, rest = PAGE.read_text().partition(f"| {' | '.join(titles)} |\n")
    assert found, titles
    for line in rest.splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))


def licenses() -> list[tuple[str, str]]:
    """Return package names with their licenses, including duplicates on the page."""
    return [(name, license) for license, names in table("license", "packages") for name in names.split(", ")]
