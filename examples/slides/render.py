"""Draws a deck in a Chromium of its own and measures what one can see of it.

The deck comes from a model, so it is hostile. `page.html` parses it without running it and keeps listed elements and
declarations only, and its policy loads nothing. Each deck has a process and a profile that are removed afterwards. The
process has no network, runs no script but ours, and is killed at its limits of time, processor and memory.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import psutil
from PIL import Image

PAGE: Final = Path(__file__).with_name("page.html")
WIDTH, HEIGHT = 960, 540
MAX_CHARS: Final = 12_000
MAX_SLIDES: Final = 8
"""Slides that are drawn; those after them are only counted."""
WAIT_S: Final = 30.0
"""How long a deck waits for a free page before the caller is asked to come again."""
MAX_CACHED: Final = 256
MIN_SEEN_CONTRAST: Final = 1.6
MIN_SEEN_PX: Final = 8.0
INK_SHARE: Final = 0.02
"""Share of the pixels of a word's box, those that its text changes most, that give its contrast."""
FLAGS: Final = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-sync"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-crash-reporter"),
    *("--disable-dev-shm-usage", "--force-device-scale-factor=1", "--font-render-hinting=none"),
    # Names are not looked up, and what has an address goes to a port that nobody listens on.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:1", "--proxy-bypass-list=<-loopback>"),
)
_MEASURES: Final = re.compile(r'<html data-measures="([A-Za-z0-9+/=]*)"')
Pixels = npt.NDArray[np.float64]


class Refused(ValueError):
    """A deck that cannot be drawn; the message is for the model."""


class RenderFailed(RuntimeError):
    """Chromium did not draw a deck, and the deck is not the reason."""


@dataclass(frozen=True, slots=True)
class Slide:
    """What one can see of a slide: words that stand out, are not tiny, wholly on the slide and not on each other."""

    title: str
    """The words of its first heading."""
    blocks: tuple[str, ...]
    """The words of each other paragraph, item, line of a table and so on."""
    hidden: int = 0
    """Words that have the colour of their ground, no size, or something before them."""
    cut: int = 0
    """Words that are not wholly on the slide."""
    overlapping: int = 0
    font_px: float = 0.0
    """The smallest font of a word that is seen, of a slide that is 540 pixels high."""
    contrast: float = 0.0
    """The lowest contrast of a word that is seen, from 1 to 21, as WCAG 2 defines it, of the pixels themselves."""

    @property
    def num_words(self) -> int:
        return sum(len(text.split()) for text in (self.title, *self.blocks))


@dataclass(frozen=True, slots=True)
class Deck:
    """The measures of a deck. `slides` are those that were drawn, `ignored` what was left out of them."""

    num_slides: int
    slides: tuple[Slide, ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A deck's measures and its picture, a PNG of all drawn slides."""

    deck: Deck
    png: bytes


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
            raise RenderFailed("all pages are busy")
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
                *(
                    program,
                    *FLAGS,
                    f"--user-data-dir={folder / 'profile'}",
                    f"--window-size={2 * WIDTH},{rows * HEIGHT}",
                ),
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
            raise RenderFailed(f"Chromium was not done after {limits.wall_s:g} s: the machine is too slow or too busy")


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def drawn_of(measures: dict[str, Any], pixels: npt.NDArray[np.uint8]) -> Drawn:
    """A deck of what the page's script found, and of its picture: slides on the left, without their text on the right.

    `pixels` is [rows * HEIGHT, 2 * WIDTH, 3].
    """
    slides = []
    for row, blocks in enumerate(measures["slides"]):
        both = pixels[row * HEIGHT : (row + 1) * HEIGHT]
        slides.append(_slide(blocks, _luminance(both[:, :WIDTH]), _luminance(both[:, WIDTH:])))
    file = io.BytesIO()
    shown = pixels[: max(1, len(slides)) * HEIGHT, :WIDTH]
    Image.fromarray(shown).save(file, "PNG")
    return Drawn(Deck(measures["num_slides"], tuple(slides), tuple(measures["ignored"])), file.getvalue())


def _slide(blocks: list[dict[str, Any]], shown: Pixels, blank: Pixels) -> Slide:
    boxes = np.array([word[1:5] for block in blocks for word in block["words"]], dtype=float).reshape(-1, 4)
    overlapping = _overlapping(boxes)
    counts, title, texts = Counter[str](), "", list[str]()
    sizes, contrasts = list[float](), list[float]()
    index = 0
    for block in blocks:
        seen = []
        for text, x, y, width, height, px in block["words"]:
            inside = x >= -1 and y >= -1 and x + width <= WIDTH + 1 and y + height <= HEIGHT + 1
            has_box = width > 0 and height > 0
            contrast = _contrast(shown, blank, x, y, width, height) if inside and has_box else 1.0
            if has_box and not inside:
                counts["cut"] += 1
            elif contrast < MIN_SEEN_CONTRAST or px < MIN_SEEN_PX:
                counts["hidden"] += 1
            elif overlapping[index]:
                counts["overlapping"] += 1
            else:
                seen.append(text)
                sizes.append(px)
                contrasts.append(contrast)
            index += 1
        if block["tag"] in ("h1", "h2", "h3") and not title:
            title = " ".join(seen)
        elif seen:
            texts.append(" ".join(seen))
    measured = (round(min(sizes, default=0.0), 1), round(min(contrasts, default=0.0), 1))
    return Slide(title, tuple(texts), counts["hidden"], counts["cut"], counts["overlapping"], *measured)


def _overlapping(boxes: Pixels) -> npt.NDArray[np.bool_]:
    """Whether the middle of each box `[x, y, width, height]` and that of another have a point in common."""
    left, top = boxes[:, 0] + boxes[:, 2] * 0.1, boxes[:, 1] + boxes[:, 3] * 0.25
    right, bottom = left + boxes[:, 2] * 0.8, top + boxes[:, 3] * 0.5
    found = np.zeros(len(boxes), dtype=bool)
    for i in range(len(boxes)):  # a matrix of all pairs would be large
        both = (left < right[i]) & (left[i] < right) & (top < bottom[i]) & (top[i] < bottom)
        both[i] = False
        found[i] = both.any()
    return found


def _luminance(colours: npt.NDArray[np.uint8]) -> Pixels:
    """Relative luminance by WCAG 2, from 0 to 1, of sRGB `[height, width, 3]`."""
    share = np.arange(256) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    luminance: Pixels = linear[colours] @ np.array([0.2126, 0.7152, 0.0722])
    return luminance


def _contrast(shown: Pixels, blank: Pixels, x: float, y: float, width: float, height: float) -> float:
    """The contrast of a word: of the pixels in its box that its text changes most, with and without the text."""
    box = np.s_[max(0, int(y)) : int(y + height) + 1, max(0, int(x)) : int(x + width) + 1]
    text, ground = shown[box].ravel() + 0.05, blank[box].ravel() + 0.05
    ratios = np.sort(np.maximum(text, ground) / np.minimum(text, ground))
    return float(ratios[-max(1, int(len(ratios) * INK_SHARE)) :].mean())
