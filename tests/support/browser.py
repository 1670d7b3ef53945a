"""Chromium, driven by Playwright's package, on a page whose console, errors and requests are watched."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.paths import ROOT

TOOLS = ROOT / "build" / "console"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def program() -> str:
    """The path of Chromium: the machine's, or the one that the Makefile has unpacked."""
    if (installed := shutil.which("chromium")) is not None:
        return installed
    if not (ROOT / "build/chromium/usr/lib/chromium/chromium").exists():
        raise FileNotFoundError("Chromium is missing: make chromium, or apt-get install chromium")
    return str(ROOT / "tests" / "support" / "unpacked_chromium")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright. The Makefile installs both; elsewhere this says what is missing."""
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise FileNotFoundError("Playwright is missing: make build/console") from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, and what must not have happened on it."""

    page: Any
    host: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(30_000)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"an error: {error}"))
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        # A status of 400 and more is written there by the browser itself; what the page makes of it is tested.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and url.netloc != self.host:
            self.complaints.append(f"a request to {request.url}")
