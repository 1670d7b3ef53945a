"""Rollout files: one zstandard-compressed JSONL file per step or evaluation; reading one is lossless."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from trainer.data.rollout_json import outcome_as_json, outcome_from_json, task_from_json
from trainer.types import Discarded, Group, GroupRequest, Rollout

ROLLOUTS_SUFFIX = ".jsonl.zst"


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    """Writes a file atomically: for each group a line with its request, then one per rollout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with zstandard.ZstdCompressor().stream_writer(temporary.open("wb")) as file:
        for group in groups:
            for line in group_lines(group):
                file.write(json.dumps(line, default=str).encode() + b"\n")
    temporary.rename(path)


def read_groups(path: Path) -> list[Group]:
    """The groups that `write_groups` wrote, bit for bit."""
    found: list[tuple[GroupRequest, list[Rollout], list[Discarded]]] = []
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for text in io.TextIOWrapper(stream, encoding="utf-8"):
            line = json.loads(text)
            if line["kind"] == "group":
                del line["kind"]
                found.append((GroupRequest(**line | {"task": task_from_json(line["task"])}), [], []))
            elif isinstance(outcome := outcome_from_json(line), Rollout):
                found[-1][1].append(outcome)
            else:
                found[-1][2].append(outcome)
    return [Group(request, tuple(rollouts), tuple(discarded)) for request, rollouts, discarded in found]


def group_lines(group: Group) -> Iterator[dict[str, Any]]:
    """The lines of a group: kind `group` (the request with its row), then the kinds of `trainer.data.rollout_json`."""
    yield {"kind": "group"} | asdict(group.request)
    yield from map(outcome_as_json, group.rollouts)
    yield from map(outcome_as_json, group.discarded)
