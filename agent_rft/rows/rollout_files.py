"""Rollout files: JSONL files of groups, compressed with zstandard; reading one is lossless.

A file is a sequence of frames, and a frame holds whole groups, so that one rollout is read without what is before its
frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from agent_rft.errors import MadeBefore, UserError
from agent_rft.rows.durable import write_durably
from agent_rft.rows.rollout_json import outcome_as_json, outcome_from_json, task_from_json
from agent_rft.types import Discarded, Group, GroupRequest, Rollout

ROLLOUTS_SUFFIX = ".jsonl.zst"
FORMAT = 2
"""The format of a group's lines, the same since 0.2.0. Raise it when older programs must not read them."""
FRAME_BYTES = 1 << 20
"""A frame ends with the group that fills so many bytes: some milliseconds to decompress, and nearly as small as one."""
CHUNK_BYTES = 1 << 16
UNREADABLE = (zstandard.ZstdError, EOFError, ValueError, KeyError, TypeError, IndexError)
"""What damaged files raise."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line is: in the frame that begins at byte `frame` of its file, at byte `start` of what that holds."""

    frame: int
    start: int
    length: int


class DamagedFile(UserError):
    """A rollout file ends in the middle, or is none."""


class OtherFile(DamagedFile):
    """A rollout file is not the one whose lines were looked for: it was written again."""


# -- writing -----------------------------------------------------------------------------------------------------------


def write_groups(path: Path, groups: Iterable[Group]) -> list[list[Place]]:
    """Writes a file atomically and durably: for each group a line with its request, then one per rollout.

    Returns:
        The places of each group's lines.
    """
    frames: list[bytes] = []
    places: list[list[Place]] = []
    lines: list[bytes] = []
    frame = start = 0
    for group in groups:
        places.append([])
        for value in group_lines(group):
            lines.append(json.dumps(value, default=str).encode() + b"\n")
            places[-1].append(Place(frame, start, len(lines[-1])))
            start += len(lines[-1])
        if start >= FRAME_BYTES:
            frames.append(_compressed(lines))
            lines, frame, start = [], frame + len(frames[-1]), 0
    if lines or not frames:
        frames.append(_compressed(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, b"".join(frames))
    return places


def _compressed(lines: Sequence[bytes]) -> bytes:
    return zstandard.ZstdCompressor().compress(b"".join(lines))


def group_lines(group: Group) -> Iterator[dict[str, Any]]:
    """A group's lines: kind `group` (request and row), then the kinds of `agent_rft.rows.rollout_json`."""
    yield {"kind": "group", "format": FORMAT, "wall_s": group.wall_s} | asdict(group.request)
    yield from map(outcome_as_json, group.rollouts)
    yield from map(outcome_as_json, group.discarded)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_groups(path: Path) -> list[Group]:
    """The groups that `write_groups` wrote, bit for bit.

    Raises:
        DamagedFile: It is half written, or has lines of another kind.
        UserError: A newer version wrote the file, or one before 0.2.0.
    """
    found: list[tuple[GroupRequest, float, list[Rollout], list[Discarded]]] = []
    try:
        for _, line in read_lines(path):
            if line["kind"] == "group":
                found.append((*request_of(line), [], []))
            elif isinstance(outcome := outcome_from_json(line), Rollout):
                found[-1][2].append(outcome)
            else:
                found[-1][3].append(outcome)
    except UNREADABLE as error:
        raise _damaged(path) from error
    return [Group(request, tuple(rollouts), tuple(lost), wall_s) for request, wall_s, rollouts, lost in found]


def read_outcomes(path: Path) -> Iterator[tuple[Place, GroupRequest, Rollout | Discarded | None]]:
    """Each request with None, then with each of its outcomes, and the places of their lines, in constant memory.

    Raises what `read_groups` raises, after the last whole line.
    """
    request: GroupRequest | None = None
    try:
        for place, line in read_lines(path):
            if line["kind"] == "group":
                request, _ = request_of(line)
                yield place, request, None
            elif request is None:
                raise ValueError("a rollout without a group")
            else:
                yield place, request, outcome_from_json(line)
    except UNREADABLE as error:
        raise _damaged(path) from error


def request_of(line: dict[str, Any]) -> tuple[GroupRequest, float]:
    """The request of a group's line, and how long the group took."""
    values = {name: value for name, value in line.items() if name not in ("kind", "format", "wall_s")}
    return GroupRequest(**values | {"task": task_from_json(line["task"])}), line["wall_s"]


def read_lines(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """All lines of a file with their places, in constant memory.

    Raises:
        DamagedFile: After the last whole line.
        UserError: A newer version wrote the file, or one before 0.2.0.
    """
    try:
        for place, text in _texts(path):
            line = json.loads(text)
            if line["kind"] == "group" and line.get("format", 0) < FORMAT:
                raise MadeBefore.of(str(path), public=f"the file of {_shown(path)}")
            if line["kind"] == "group" and line["format"] > FORMAT:
                public = f"{_shown(path)} were written by a newer version of agent-rft"
                remedy = "read it with that version"
                raise UserError(f"{path} was written by a newer version of agent-rft; {remedy}", public=public)
            yield place, line
    except UNREADABLE as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> DamagedFile:
    remedy = "copy it again from where it was written, or delete it"
    return DamagedFile(f"{path} is damaged, such as half written; {remedy}", public=f"{_shown(path)} are damaged")


def _shown(path: Path) -> str:
    """What a server's clients call a file."""
    return f"the rollouts {path.name.removesuffix(ROLLOUTS_SUFFIX)}"


def _texts(path: Path) -> Iterator[tuple[Place, bytes]]:
    with path.open("rb") as file:
        end = 0  # how much of the file was decompressed
        chunk = file.read(CHUNK_BYTES)
        if not chunk:
            raise EOFError
        while chunk:
            frame, start, rest = end, 0, b""
            decompressor = zstandard.ZstdDecompressor().decompressobj()
            while not decompressor.eof:
                if not chunk:
                    raise EOFError
                *lines, rest = (rest + decompressor.decompress(chunk)).split(b"\n")
                end += len(chunk) - len(decompressor.unused_data)
                chunk = decompressor.unused_data or file.read(CHUNK_BYTES)
                for line in lines:
                    yield Place(frame, start, len(line) + 1), line
                    start += len(line) + 1
            if rest:
                yield Place(frame, start, len(rest)), rest


class LineReader:
    """Reads lines at known places. Those of one frame, in their order, cost one decompression together."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._frame: tuple[Path, int] | None = None
        self._at = 0
        self._stream: BinaryIO

    def read(self, path: Path, place: Place) -> dict[str, Any]:
        """Returns the line at this place.

        Raises:
            FileNotFoundError: The file is gone.
            OtherFile: The file has no such line.
        """
        text = self.text(path, place)
        try:
            line: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise self._other(path) from error
        return line

    def text(self, path: Path, place: Place) -> bytes:
        """Returns the line as it was written; raises what `read` raises."""
        if self._frame != (path, place.frame) or place.start < self._at:
            self.close()
            file = self._open.enter_context(path.open("rb"))
            file.seek(place.frame)
            self._stream = self._open.enter_context(zstandard.ZstdDecompressor().stream_reader(file))
            self._frame, self._at = (path, place.frame), 0
        try:
            while self._at < place.start:
                self._at += len(self._some(min(CHUNK_BYTES, place.start - self._at)))
            text = b""
            while len(text) < place.length:
                text += self._some(place.length - len(text))
            self._at += place.length
        except (zstandard.ZstdError, EOFError) as error:
            raise self._other(path) from error
        return text

    def _other(self, path: Path) -> OtherFile:
        self.close()
        public = f"{_shown(path)} were written again"
        return OtherFile(f"{path} is not the file that was indexed; try again", public=public)

    def _some(self, num_bytes: int) -> bytes:
        found = self._stream.read(num_bytes)
        if not found:
            raise EOFError
        return found

    def close(self) -> None:
        self._open.close()
        self._frame = None
