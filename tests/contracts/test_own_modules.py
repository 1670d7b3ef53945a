"""A user's own modules beside the job, such as `trainer.py`, are never imported in place of our packages."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

PACKAGES = ("agent_rft", "trainer", "actors", "cluster", "serve")
WITH_WORKING_DIRECTORY = re.compile(r'sys\.executable, "-m", "agent_rft\.')


def test_our_programs_do_not_search_the_working_directory() -> None:
    sources = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    unsafe = [str(path) for path in sources if WITH_WORKING_DIRECTORY.search(path.read_text(encoding="utf-8"))]
    assert unsafe == [], "give Python the option -P"


def test_the_package_has_relative_links_to_our_folders() -> None:
    links = {path.name: str(path.readlink()) for path in (ROOT / "agent_rft").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in PACKAGES[1:]}
    projects = ROOT / "agent_rft" / "cli" / "projects"
    links = {path.name: str(path.readlink()) for path in projects.iterdir() if path.is_symlink()}
    assert links == {name: f"../../../examples/{name}" for name in ("ledger", "endpoint")}
