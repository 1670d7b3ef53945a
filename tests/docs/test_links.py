"""Links between the repository's documents lead somewhere."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.markdown import Link, Page, pages
from tests.support.paths import ROOT

FOREIGN = ("http", "https", "mailto")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path)
def test_links_lead_to_files_and_headings(page: Page) -> None:
    mistakes = [f"{link.page}:{link.line}: {why}: {link.target}" for link in page.links if (why := _mistake(link))]

    assert not mistakes, "\n".join(mistakes)


def _mistake(link: Link) -> str:
    parts = urlsplit(link.target)
    if parts.scheme in FOREIGN:
        return ""
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return "not a relative link"
    target = (ROOT / link.page).parent / unquote(parts.path) if parts.path else ROOT / link.page
    if not target.exists():
        return "no such file"
    name = target.resolve().relative_to(ROOT).as_posix()
    if link.page.startswith("docs/") and not name.startswith("docs/"):
        return "not on the site"
    if parts.fragment and target.suffix == ".md":
        known = next((page.anchors for page in pages() if page.path == name), frozenset())
        if parts.fragment not in known:
            return "no such heading"
    return ""
