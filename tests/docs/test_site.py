"""The site of the manual: complete, built without a warning, and independent of other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

FOREIGN = re.compile(r"(?:https?:)?//")
CSS_URL = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^'\")]+)|@import\s+['\"]((?:https?:)?//[^'\"]+)")
LOADED_BY_SCRIPTS = {
    "https://unpkg.com/mermaid": 'class="mermaid',
    "https://unpkg.com/pyodide": "pyodide",
    "https://cdn.jsdelivr.net/pyodide": "pyodide",
    "https://unpkg.com/ace-builds": "pyodide",
    "https://unpkg.com/glightbox": "glightbox",
    "https://api.github.com/repos": 'data-md-component="source"',
    "https://api.github.com/users": 'data-md-component="source"',
    "https://unpkg.com/resize-observer-polyfill": "",  # for browsers from before 2020
}
"""What the theme's script can load from other hosts, and what a page that makes it do so contains."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without network: any warning fails the build."""
    out = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", out / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, out)
    zensical = Path(sys.executable).with_name("zensical")
    command = [zensical, "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=out, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return out / "build" / "site"


def test_each_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(_leaves(config["nav"]))

    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def _leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [leaf for entry in entries for leaf in _leaves(entry)]


def test_each_page_is_built_with_its_headings(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        built = site / ("index.html" if name.name == "index" else f"{name}/index.html")

        assert "<h1" in built.read_text(), page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = [f"{page.relative_to(site)}: {url}" for page in site.rglob("*.html") for url in _loaded_by(page)]
    for style in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        loaded += [
            f"{style.relative_to(site)}: {first or second}" for first, second in CSS_URL.findall(style.read_text())
        ]

    assert not loaded, "\n".join(loaded)


def test_no_page_makes_a_script_load_anything_from_another_host(site: Path) -> None:
    scripts = "".join(path.read_text() for path in site.rglob("*.js"))

    assert set(re.findall(r"https://[\w.-]+/[\w-]+", scripts)) == set(LOADED_BY_SCRIPTS)
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not [reason for reason in LOADED_BY_SCRIPTS.values() if reason and reason in text], page


def _loaded_by(page: Path) -> list[str]:
    found: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            for name, value in attrs:
                is_load = name in ("src", "srcset", "data", "poster") or (name == "href" and tag not in ("a", "area"))
                if value and is_load and FOREIGN.match(value):
                    found.append(value)
                if value and name == "style" and CSS_URL.search(value):
                    found.append(value)

    Tags().feed(page.read_text())
    return found
