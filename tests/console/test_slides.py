"""The example of slides in a real Chromium: it finds in decks what is recorded, and hostile ones reach nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.slides.cheats import decks, recorded
from examples.slides.measures import Deck
from examples.slides.render import MAX_CHARS, Chromium
from tests.support.browser import program

DECKS, MEASURES = decks(), recorded()
FEW = (
    *("honest, with a design", "white on white", "behind an inline box", "lines on each other", "a script"),
    *("markers of a list", "a section of SVG", "a section of MathML", "a rule of a namespace"),
)


@pytest.fixture(scope="module")
def chromium() -> Chromium:
    return Chromium(program(), num_pages=2)


def assert_as_recorded(found: Deck, wanted: Deck) -> None:
    """Fonts of machines differ a little: sizes and contrasts are compared roughly, words exactly."""
    assert (found.num_slides, len(found.slides), found.ignored) == (
        wanted.num_slides,
        len(wanted.slides),
        wanted.ignored,
    )
    for one, other in zip(found.slides, wanted.slides, strict=True):
        assert (one.title, one.blocks) == (other.title, other.blocks)
        assert [n > 0 for n in (one.hidden, one.cut, one.overlapping)] == [
            n > 0 for n in (other.hidden, other.cut, other.overlapping)
        ]
        assert one.font_px == other.font_px
        assert one.contrast == pytest.approx(other.contrast, rel=0.2)


@pytest.mark.parametrize("name", FEW)
def test_chromium_finds_what_is_recorded(chromium: Chromium, name: str) -> None:
    assert_as_recorded(chromium.draw(DECKS[name]).deck, MEASURES[name])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_chromium_finds_in_every_deck_what_is_recorded(chromium: Chromium) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = dict(zip(DECKS, threads.map(lambda html: chromium.draw(html).deck, DECKS.values()), strict=True))
    for name, deck in found.items():
        assert_as_recorded(deck, MEASURES[name])


def test_no_declaration_and_no_attribute_shows_text_that_is_not_measured(chromium: Chromium) -> None:
    text = "'943 million'"
    given = f"""<style>@counter-style x {{ system: cyclic; symbols: {text} }} @namespace a url(b); a|li {{ color: red }}
        li {{ list-style: {text}; content: {text}; quotes: {text} {text}; counter-set: list-item 943 }}
        li.y {{ list-style-type: attr(class) }} li::marker, li::before {{ content: {text} }} p {{ width: 40px }}
        p {{ text-overflow: {text}; hyphenate-character: {text}; text-emphasis: {text} }}</style>"""
    plain = "<section><h1>A title</h1>{}<li{}>one</li><li{}>two</li></ol><p>hyphenated</p></section>"
    wanted = chromium.draw(plain.format("<ol>", "", ""))
    found = chromium.draw(given + plain.format('<ol start="943" type="I">', ' value="943"', ' class="y" title="943"'))
    assert [slide.blocks for slide in wanted.deck.slides] == [("one", "two", "hyphenated")]
    assert "list-style-type" in found.deck.ignored
    assert found.png == wanted.png


@pytest.fixture
def asked() -> Iterator[socket.socket]:
    """A port that waits for a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener


def test_a_deck_asks_nobody_for_anything(chromium: Chromium, asked: socket.socket) -> None:
    url = f"http://127.0.0.1:{asked.getsockname()[1]}/x"
    html = f"""<base href="{url}"><link rel="stylesheet" href="{url}"><link rel="prefetch" href="{url}">
        <meta http-equiv="refresh" content="0;url={url}"><style>@import "{url}"; @font-face {{ font-family: x;
        src: url("{url}") }} section {{ background: url("{url}"); border-image: url("{url}") }}</style>
        <section><h1>Title</h1><img src="{url}" srcset="{url} 2x"><iframe src="{url}"></iframe><p style="background:
        image-set('{url}' 1x); list-style: url('{url}')">A line of text</p><object data="{url}"></object>
        <script src="{url}"></script><svg><image href="{url}"/></svg><video src="{url}"></video></section>"""
    (slide,) = chromium.draw(html).deck.slides
    assert slide.blocks == ("A line of text",)
    with pytest.raises(BlockingIOError):
        asked.accept()


def test_the_largest_decks_are_drawn_within_the_limits(chromium: Chromium) -> None:
    for part in ("<b>", "<table><tr><td>x", "x ", "<section><p>a b", "\ud800\u0000&#x202e;"):
        html = "<section><h1>Title</h1>" + part * ((MAX_CHARS - 30) // len(part))
        deck = chromium.draw(html).deck
        assert deck.num_slides >= 1 and len(deck.slides) <= 8
