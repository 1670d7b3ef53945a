"""The manual's pictures name what the code has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from agent_rft.serve.stores.job_states import STATUSES
from tests.support.paths import ROOT

MAX_BYTES = 12_000
PICTURES = sorted((ROOT / "docs" / "assets").glob("*.svg"))


def words(name: str) -> set[str]:
    """The words in the texts of a picture."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / "docs" / "assets" / name).read_text())
    return set(re.findall(r"[\w.]+", " ".join(texts)))


def test_the_picture_of_the_layers_has_every_package_and_room() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [layer for contract in contracts if contract["type"] == "layers" for layer in contract["layers"]]
    rooms = {room.strip() for layer in layers for room in re.split("[|:]", layer)} - {"__main__"}
    rooms = {room.removeprefix("agent_rft.").removeprefix("cli.").removeprefix("actors.") for room in rooms}

    shown = words("rooms.svg")
    # `graders` stands for its modules base, sample and templates.
    assert not {room for room in rooms if room not in shown and room.rpartition(".")[0] not in shown}


def test_the_picture_of_a_job_has_every_state() -> None:
    assert set(STATUSES) <= words("job-states.svg")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_each_picture_is_small_and_independent_of_other_files(picture: Path) -> None:
    text = picture.read_text()

    assert len(text.encode()) <= MAX_BYTES
    assert not re.findall(r"href|url\((?!#)|@import|<image|<script", text)
