"""Rollout files: zstandard-compressed JSONL files of groups; reading one is lossless."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from trainer.data.durable import write_durably
from trainer.data.rollout_json import outcome_as_json, outcome_from_json, task_from_json
from trainer.errors import UserError
from trainer.types import Discarded, Group, GroupRequest, Rollout

ROLLOUTS_SUFFIX = ".jsonl.zst"
FORMAT = 2
"""The format of a group's lines: 2 has segments, 1 has not, the oldest have none.

Raise it when older programs must not read them.
"""


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    """Writes a file atomically and durably: for each group a line with its request, then one per rollout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(line, default=str).encode() + b"\n" for group in groups for line in group_lines(group))
    write_durably(path, zstandard.ZstdCompressor().compress(b"".join(lines)))


def read_groups(path: Path) -> list[Group]:
    """The groups that `write_groups` wrote, bit for bit.

    Raises:
        UserError: A newer version wrote the file.
    """
    found: list[tuple[GroupRequest, float, list[Rollout], list[Discarded]]] = []
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for text in io.TextIOWrapper(stream, encoding="utf-8"):
            line = json.loads(text)
            if line["kind"] == "group":
                if line.pop("format", 0) > FORMAT:
                    raise UserError(f"{path} was written by a newer version of agent-rft; read it with that version")
                del line["kind"]
                wall_s = line.pop("wall_s", 0.0)
                found.append((GroupRequest(**line | {"task": task_from_json(line["task"])}), wall_s, [], []))
            elif isinstance(outcome := outcome_from_json(line), Rollout):
                found[-1][2].append(outcome)
            else:
                found[-1][3].append(outcome)
    return [Group(request, tuple(rollouts), tuple(lost), wall_s) for request, wall_s, rollouts, lost in found]


def group_lines(group: Group) -> Iterator[dict[str, Any]]:
    """The lines of a group: kind `group` (the request with its row), then the kinds of `trainer.data.rollout_json`."""
    yield {"kind": "group", "format": FORMAT, "wall_s": group.wall_s} | asdict(group.request)
    yield from map(outcome_as_json, group.rollouts)
    yield from map(outcome_as_json, group.discarded)
