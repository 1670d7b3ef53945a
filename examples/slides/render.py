"""Draws decks, each in a Chromium of its own.

The deck comes from a model, so it is hostile. `page.html` parses it without running it and keeps listed elements and
declarations only, and its policy loads nothing. Each deck has a process and a profile that are removed afterwards. The
process has no network, runs no script but ours, and is killed at its limits of time, processor and memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import Final, Protocol

import numpy as np
import psutil
from PIL import Image

from examples.slides.measures import HEIGHT, WIDTH, Drawn, drawn_of

PAGE: Final = Path(__file__).with_name("page.html")
MAX_CHARS: Final = 12_000
MAX_SLIDES: Final = 8
"""Slides that are drawn; those after them are only counted."""
WAIT_S: Final = 30.0
"""How long a deck waits for a free page before the caller is asked to come again."""
MAX_CACHED: Final = 256
FLAGS: Final = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-sync"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-crash-reporter"),
    *("--disable-dev-shm-usage", "--force-device-scale-factor=1", "--font-render-hinting=none"),
    # Names are not looked up, and what has an address goes to a port that nobody listens on.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:1", "--proxy-bypass-list=<-loopback>"),
)
_MEASURES: Final = re.compile(r'<html data-measures="([A-Za-z0-9+/=]*)"')


class Refused(ValueError):
    """A deck that cannot be drawn; the message is for the model."""


class RenderFailed(RuntimeError):
    """Chromium did not draw a deck, and the deck is not the reason."""


class Busy(RenderFailed):
    """The machine has no time for a deck now."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the processes of one deck may take together. `wall_s` ends what does nothing; it costs no grade."""

    cpu_s: float = 20.0
    wall_s: float = 60.0
    memory_bytes: int = 2 * 1024**3


DEFAULT_LIMITS: Final = Limits()


class Renderer(Protocol):
    """What draws decks."""

    def draw(self, html: str) -> Drawn:
        """The deck, measured.

        Raises:
            Refused: It is too large, or takes more than its share of the machine.
            RenderFailed: It could not be drawn now.
        """
        ...

    def picture(self, name: str) -> bytes | None:
        """The picture of a deck by its name, if it was drawn lately."""
        ...


def name_of(html: str) -> str:
    """A deck's name: the same deck has the same name."""
    return hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:10]


class Chromium:
    """Draws with the Chromium at `program`, at most `num_pages` decks at once, and remembers the last ones."""

    def __init__(
        self, program: str | None = None, num_pages: int | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """By default it is the one that CHROMIUM or the path names, with a page for every two cores."""
        self._program = program
        self._limits = limits
        self._pages = BoundedSemaphore(num_pages or max(1, (os.cpu_count() or 1) // 2))
        self._drawn = OrderedDict[str, Drawn]()
        self._lock = Lock()

    def draw(self, html: str) -> Drawn:
        if len(html) > MAX_CHARS:
            raise Refused(f"the deck has {len(html):,} characters; {MAX_CHARS:,} are the most")
        name = name_of(html)
        with self._lock:
            if (known := self._drawn.get(name)) is not None:
                return known
        if not self._pages.acquire(timeout=WAIT_S):
            raise Busy("all pages are busy")
        try:
            drawn = self._draw(html)
        finally:
            self._pages.release()
        with self._lock:
            self._drawn[name] = drawn
            while len(self._drawn) > MAX_CACHED:
                self._drawn.popitem(last=False)
        return drawn

    def picture(self, name: str) -> bytes | None:
        with self._lock:
            drawn = self._drawn.get(name)
        return drawn.png if drawn is not None else None

    def _draw(self, html: str) -> Drawn:
        program = self._program or os.environ.get("CHROMIUM") or shutil.which("chromium")
        if program is None:
            raise RenderFailed("there is no chromium: install it, or name its program in CHROMIUM")
        rows = max(1, min(html.lower().count("<section"), MAX_SLIDES))
        with TemporaryDirectory(prefix="deck-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / "page.html").write_text(page(html), encoding="utf-8", errors="replace")
            command = [
                *(program, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
                f"--window-size={2 * WIDTH},{rows * HEIGHT}",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root can have none
                *("--dump-dom", f"--screenshot={folder / 'picture.png'}", (folder / "page.html").as_uri()),
            ]
            _run(command, folder, self._limits)
            found = _MEASURES.search((folder / "out").read_text("utf-8", "replace"))
            picture = folder / "picture.png"
            if found is None or not picture.exists():
                raise RenderFailed(f"Chromium drew nothing: {(folder / 'err').read_text('utf-8', 'replace')[-300:]}")
            with Image.open(picture) as image:
                pixels = np.asarray(image.convert("RGB"))
            if pixels.shape[:2] != (rows * HEIGHT, 2 * WIDTH):
                raise RenderFailed(f"Chromium drew {pixels.shape[1]} x {pixels.shape[0]} pixels")
            return drawn_of(json.loads(base64.b64decode(found[1])), pixels)


def page(html: str) -> str:
    """The page that draws a deck, which is a text in it until the page's own script has parsed it."""
    deck = json.dumps(html).replace("<", "\\u003c")
    values = {"NONCE": secrets.token_hex(16), "WIDTH": WIDTH, "HEIGHT": HEIGHT, "MAX_SLIDES": MAX_SLIDES}
    text = PAGE.read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"__{name}__", str(value))
    return text.replace("__DECK__", deck)


def _run(command: Sequence[str], folder: Path, limits: Limits) -> None:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        try:
            _watch(process, limits)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _watch(process: subprocess.Popen[bytes], limits: Limits) -> None:
    """Wait for the end of a process while it and its children keep their limits."""
    deadline = time.monotonic() + limits.wall_s
    cpu_s = dict[int, float]()
    while True:
        try:
            process.wait(0.05)
            return
        except subprocess.TimeoutExpired:
            memory = 0
            for one in _family(process.pid):
                try:
                    spent = one.cpu_times()
                    cpu_s[one.pid] = spent.user + spent.system
                    memory += one.memory_info().rss - one.memory_info().shared
                except psutil.Error:
                    continue
        if sum(cpu_s.values()) > limits.cpu_s or memory > limits.memory_bytes:
            raise Refused("the deck takes too long to draw, or too much memory: make it simpler")
        if time.monotonic() > deadline:
            raise Busy(f"Chromium was not done after {limits.wall_s:g} s: the machine is too slow or too busy")


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []
