"""Measurement of the visible content of a deck, from two images of it: with its text and without its text.

A word is visible where the two images differ. This one rule finds all hidden text: text in the background color, text
behind another element, and text of size zero.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

WIDTH, HEIGHT = 960, 540
"""Size of a slide in pixels."""
MIN_SEEN_CONTRAST: Final = 2.0
MIN_SEEN_PX: Final = 8.0
INK_SHARE: Final = 0.02
"""Share of the pixels in a word's box that determine its contrast: the pixels with the highest contrast."""
Pixels = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slide:
    """Visible words of a slide, and the numbers of words that are hidden, cut off or overlapping."""

    title: str
    """Visible words of the slide's first heading."""
    blocks: tuple[str, ...]
    """Visible words of every other block, such as a paragraph, a list item or a table row."""
    hidden: int = 0
    """Number of words that are too small, covered, or have too little contrast with the background."""
    cut: int = 0
    """Number of words that are partly or completely outside the slide."""
    overlapping: int = 0
    font_px: float = 0.0
    """Smallest font size of a visible word in pixels; the slide is 540 pixels high."""
    contrast: float = 0.0
    """Lowest contrast of a visible word: the WCAG 2 contrast ratio, from 1 to 21, measured on the pixels."""

    @property
    def num_words(self) -> int:
        return sum(len(text.split()) for text in (self.title, *self.blocks))


@dataclass(frozen=True, slots=True)
class Deck:
    """Measurements of a deck. `slides` are the drawn slides; `ignored` lists elements and declarations not drawn."""

    num_slides: int
    slides: tuple[Slide, ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Measurements of a deck, and a PNG image of all drawn slides."""

    deck: Deck
    png: bytes


def drawn_of(measures: dict[str, Any], pixels: npt.NDArray[np.uint8]) -> Drawn:
    """Return the deck's measurements and image, from the script's measurements and the screenshot of `page.html`.

    `pixels` is the screenshot `[rows * HEIGHT, 2 * WIDTH, 3]`: slides on the left, and without text on the right.
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
            if px < MIN_SEEN_PX or not (width and height):
                counts["hidden"] += 1
            elif not inside:
                counts["cut"] += 1
            elif overlapping[index]:  # first: thousands of large words on each other would take minutes to measure
                counts["overlapping"] += 1
            elif (contrast := _contrast(shown, blank, x, y, width, height, text)) < MIN_SEEN_CONTRAST:
                counts["hidden"] += 1
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
    """Return for each box `[x, y, width, height]` whether its middle part overlaps the middle part of another box."""
    left, top = boxes[:, 0] + boxes[:, 2] * 0.1, boxes[:, 1] + boxes[:, 3] * 0.25
    right, bottom = left + boxes[:, 2] * 0.8, top + boxes[:, 3] * 0.5
    found = np.zeros(len(boxes), dtype=bool)
    for i in range(len(boxes)):  # a matrix of all pairs would be large
        both = (left < right[i]) & (left[i] < right) & (top < bottom[i]) & (top[i] < bottom)
        both[i] = False
        found[i] = both.any()
    return found


def _luminance(colours: npt.NDArray[np.uint8]) -> Pixels:
    """Return the WCAG 2 relative luminance, from 0 to 1, of an sRGB image `[height, width, 3]`."""
    share = np.arange(256) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    luminance: Pixels = linear[colours] @ np.array([0.2126, 0.7152, 0.0722])
    return luminance


def _contrast(shown: Pixels, blank: Pixels, x: float, y: float, width: float, height: float, text: str) -> float:
    """Return the contrast between the images with and without a word, in the half of its box with the lowest contrast.

    A word that is half covered is therefore not visible. For a single character, such as a dash, the complete box is
    used, because one half of its box may be empty.
    """
    box = np.s_[max(0, int(y)) : int(y + height) + 1, max(0, int(x)) : int(x + width) + 1]
    with_text, without = shown[box] + 0.05, blank[box] + 0.05
    ratios = np.maximum(with_text, without) / np.minimum(with_text, without)
    down, right = (max(1, size // 2) for size in ratios.shape)
    halves = (ratios[:down], ratios[-down:], ratios[:, :right], ratios[:, -right:])
    return min(map(_strongest, halves)) if sum(map(str.isalnum, text)) > 1 else _strongest(ratios)


def _strongest(ratios: Pixels) -> float:
    """Return the mean contrast of the pixels with the highest contrast (the share INK_SHARE)."""
    highest = np.sort(ratios, axis=None)[-max(1, int(ratios.size * INK_SHARE)) :]
    return float(highest.mean())
