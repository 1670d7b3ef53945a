"""Renderer of decks. Each deck is drawn in a separate Chromium process.

A deck is untrusted, since a model wrote it. `page.html` parses the deck without running it, keeps only allowed elements
and declarations, and loads nothing. The process has no network access, runs no script except the one in `page.html`,
and is killed if it exceeds its limits on time and memory. Its browser profile is deleted afterwards.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import psutil
from PIL import Image

from examples.slides.measures import HEIGHT, WIDTH, Drawn, drawn_of

PAGE: Final = Path(__file__).with_name("page.html")
MAX_CHARS: Final = 12_000
MAX_BRACKETS: Final = 1_500
"""Maximum number of `{`, `(` and `&` (which may escape a bracket): thousands of nested brackets crash Chromium."""
MAX_SLIDES: Final = 8
"""Maximum slides that are drawn. Further slides are only counted."""
WAIT_S: Final = 30.0
"""Seconds that a deck waits for a free page. After that, `Busy` asks the caller to try again."""
MAX_DRAWN: Final = 256
"""Maximum decks whose drawing result (image or refusal) is cached."""
MAX_DECKS: Final = 4_096
"""Maximum decks whose HTML is stored, at most 200 MB. The rollouts of a step and a test render fewer decks."""
FLAGS: Final = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-sync"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-crash-reporter"),
    *("--disable-dev-shm-usage", "--force-device-scale-factor=1", "--font-render-hinting=none"),
    # Chromium resolves no host names, and sends all other requests to a proxy port on which nothing listens.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:1", "--proxy-bypass-list=<-loopback>"),
)
Value = TypeVar("Value")
_MEASURES: Final = re.compile(r'<html data-measures="([A-Za-z0-9+/=]*)"')


class Refused(ValueError):
    """The deck cannot be drawn, for a reason that the model can fix; the model sees the message."""


class RenderFailed(RuntimeError):
    """Chromium failed to draw a deck, for a reason other than the deck."""


class Busy(RenderFailed):
    """The machine is too busy to draw a deck now; the caller may try again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Total limits for the processes that draw one deck. Exceeding `wall_s` raises Busy and costs no grade."""

    cpu_s: float = 20.0
    wall_s: float = 60.0
    memory_bytes: int = 2 * 1024**3


DEFAULT_LIMITS: Final = Limits()


class Renderer(Protocol):
    """Interface that draws decks and returns their images."""

    def draw(self, html: str) -> Drawn:
        """Draw a deck, and return its measurements and image.

        Raises:
            Refused: The deck is too large, cannot be parsed, or needs too much CPU time or memory.
            RenderFailed: The deck could not be drawn now.
        """
        ...

    def picture(self, name: str) -> bytes | None:
        """Return the PNG image of the deck `name`, or None if the deck is unknown or was refused.

        Raises:
            RenderFailed: The image is no longer cached, and the deck could not be drawn again now.
        """
        ...


def name_of(html: str) -> str:
    """Return the name of a deck, which is a digest of its HTML."""
    return hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:10]


@dataclass(slots=True)
class Last(Generic[Value]):
    """Thread-safe cache of the `most` values that were stored last, by name."""

    most: int
    _values: dict[str, Value] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def get(self, name: str) -> Value | None:
        with self._lock:
            return self._values.get(name)

    def put(self, name: str, value: Value) -> None:
        with self._lock:
            self._values.pop(name, None)
            self._values[name] = value
            if len(self._values) > self.most:
                del self._values[next(iter(self._values))]


class Chromium:
    """Renderer that draws at most `num_pages` decks concurrently with Chromium, and caches the most recent results."""

    def __init__(
        self,
        program: str | None = None,
        num_pages: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        max_drawn: int = MAX_DRAWN,
    ) -> None:
        """Create a renderer. Defaults: $CHROMIUM or `chromium` in the PATH, and one page per two CPU cores."""
        self._program = program
        self._limits = limits
        self._pages = BoundedSemaphore(num_pages or max(1, (os.cpu_count() or 1) // 2))
        self._drawn = Last[Drawn | Refused](max_drawn)
        self._decks = Last[str](MAX_DECKS)

    def draw(self, html: str) -> Drawn:
        if len(html) > MAX_CHARS:
            raise Refused(f"the deck has {len(html):,} characters; {MAX_CHARS:,} are the most")
        if sum(map(html.count, "{(&")) > MAX_BRACKETS:
            raise Refused(f"the deck has more than {MAX_BRACKETS:,} of the signs {{, ( and &")
        name = name_of(html)
        self._decks.put(name, html)
        if (drawn := self._drawn.get(name)) is None:
            drawn = self._drawn_or_refused(html)
            self._drawn.put(name, drawn)
        if isinstance(drawn, Refused):
            raise Refused(str(drawn))
        return drawn

    def picture(self, name: str) -> bytes | None:
        if (html := self._decks.get(name)) is None:
            return None
        try:
            return self.draw(html).png
        except Refused:
            return None

    def _drawn_or_refused(self, html: str) -> Drawn | Refused:
        if not self._pages.acquire(timeout=WAIT_S):
            raise Busy("all pages are busy")
        try:
            return self._draw(html)
        except Refused as error:
            return error
        finally:
            self._pages.release()

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
            measures = json.loads(base64.b64decode(found[1]))
            if "error" in measures:
                raise Refused(f"the deck cannot be drawn: {measures['error']}")
            with Image.open(picture) as image:
                pixels = np.asarray(image.convert("RGB"))
            if pixels.shape[:2] != (rows * HEIGHT, 2 * WIDTH):
                raise RenderFailed(f"Chromium drew {pixels.shape[1]} x {pixels.shape[0]} pixels")
            return drawn_of(measures, pixels)


def page(html: str) -> str:
    """Return the HTML page that draws a deck. It contains the deck as a string, which the page's script parses."""
    deck = json.dumps(html).replace("<", "\\u003c")
    values = {"NONCE": secrets.token_hex(16), "WIDTH": WIDTH, "HEIGHT": HEIGHT, "MAX_SLIDES": MAX_SLIDES}
    text = PAGE.read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"__{name}__", str(value))
    return text.replace("__DECK__", deck)


def _run(command: Sequence[str], folder: Path, limits: Limits) -> None:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        except OSError as error:
            raise RenderFailed(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            _watch(process, limits)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _watch(process: subprocess.Popen[bytes], limits: Limits) -> None:
    """Wait until a process ends, and raise Refused or Busy if it and its child processes exceed their limits."""
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
