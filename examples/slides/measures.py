"""What one can see of a deck, measured on two pictures of it: with its text and without.

A word is seen where the pictures differ. So text in the colour of its ground, before which something stands, or of no
size is found by one rule, however it was hidden.
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
"""Pixels of a slide."""
MIN_SEEN_CONTRAST: Final = 2.0
MIN_SEEN_PX: Final = 8.0
INK_SHARE: Final = 0.02
"""Share of the pixels of a word's box, those that its text changes most, that give its contrast."""
Pixels = npt.NDArray[np.float64]


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


def _contrast(shown: Pixels, blank: Pixels, x: float, y: float, width: float, height: float, text: str) -> float:
    """The contrast of a word, with and without its text: of that half of its box in which one sees the least of it.

    So a word that is half covered is not seen. A single sign, such as a dash, may leave a half empty.
    """
    box = np.s_[max(0, int(y)) : int(y + height) + 1, max(0, int(x)) : int(x + width) + 1]
    with_text, without = shown[box] + 0.05, blank[box] + 0.05
    ratios = np.maximum(with_text, without) / np.minimum(with_text, without)
    down, right = (max(1, size // 2) for size in ratios.shape)
    halves = (ratios[:down], ratios[-down:], ratios[:, :right], ratios[:, -right:])
    return min(map(_strongest, halves)) if sum(map(str.isalnum, text)) > 1 else _strongest(ratios)


def _strongest(ratios: Pixels) -> float:
    """The mean of the highest contrasts of pixels."""
    highest = np.sort(ratios, axis=None)[-max(1, int(ratios.size * INK_SHARE)) :]
    return float(highest.mean())
