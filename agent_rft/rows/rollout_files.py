"""Rollout files: lossless JSONL files of groups, compressed with zstandard.

A file is a sequence of frames with complete groups, so one rollout can be read without decompressing earlier frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.rows.durable_write import write_durably
from agent_rft.rows.rollout_json import outcome_from_json, outcome_to_json, task_from_json
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout

ROLLOUTS_SUFFIX = ".jsonl.zst"
FORMAT = 2
"""Format of a group's lines, unchanged since 0.2.0. Raise it when older programs must not read them."""
FRAME_BYTES = 1 << 20
"""Size that ends a frame: it decompresses in some milliseconds, and compresses nearly as well as a single frame."""
CHUNK_BYTES = 1 << 16
UNREADABLE = (zstandard.ZstdError, EOFError, ValueError, KeyError, TypeError, IndexError)
"""Exceptions that damaged files raise."""


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Position of a line: its frame begins at byte `frame` of the file, and it begins at byte `start` in the frame."""

    frame: int
    start: int
    length: int


class DamagedFile(UserError):
    """A rollout file is truncated, or is not a rollout file."""


class RewrittenFile(DamagedFile):
    """A rollout file was written again, so the indexed lines are not in it."""


# -- writing -----------------------------------------------------------------------------------------------------------


def write_groups(path: Path, groups: Iterable[Group]) -> list[list[LinePosition]]:
    """Write a file atomically and durably: for each group a line with its request, then a line per rollout.

    Returns:
        Places of each group's lines.
    """
    frames: list[bytes] = []
    places: list[list[LinePosition]] = []
    lines: list[bytes] = []
    frame = start = 0
    for group in groups:
        places.append([])
        for value in iter_group_lines(group):
            lines.append(json.dumps(value, default=str).encode() + b"\n")
            places[-1].append(LinePosition(frame, start, len(lines[-1])))
            start += len(lines[-1])
        if start >= FRAME_BYTES:
            frames.append(_compress(lines))
            lines, frame, start = [], frame + len(frames[-1]), 0
    if lines or not frames:
        frames.append(_compress(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, b"".join(frames))
    return places


def _compress(lines: Sequence[bytes]) -> bytes:
    return zstandard.ZstdCompressor().compress(b"".join(lines))


def iter_group_lines(group: Group) -> Iterator[dict[str, Any]]:
    """Yield a group's lines: kind `group` (request and row), then the kinds of `agent_rft.rows.rollout_json`."""
    yield {"kind": "group", "format": FORMAT, "wall_s": group.wall_s} | asdict(group.request)
    yield from map(outcome_to_json, group.rollouts)
    yield from map(outcome_to_json, group.discarded)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_groups(path: Path) -> list[Group]:
    """Return the groups that `write_groups` wrote, bit for bit.

    Raises:
        DamagedFile: The file is truncated, or has lines of another kind.
        UserError: A newer version wrote the file, or a version before 0.2.0.
    """
    found: list[tuple[GroupRequest, float, list[Rollout], list[DiscardedRollout]]] = []
    try:
        for _, line in read_lines(path):
            if line["kind"] == "group":
                found.append((*parse_request(line), [], []))
            elif isinstance(outcome := outcome_from_json(line), Rollout):
                found[-1][2].append(outcome)
            else:
                found[-1][3].append(outcome)
    except UNREADABLE as error:
        raise _create_damaged_error(path) from error
    return [Group(request, tuple(rollouts), tuple(lost), wall_s) for request, wall_s, rollouts, lost in found]


def read_outcomes(path: Path) -> Iterator[tuple[LinePosition, GroupRequest, Rollout | DiscardedRollout | None]]:
    """Yield each request with None, then with each of its outcomes, together with the places of their lines.

    Uses constant memory. Raises the errors of `read_groups`, after the last complete line.
    """
    request: GroupRequest | None = None
    try:
        for place, line in read_lines(path):
            if line["kind"] == "group":
                request, _ = parse_request(line)
                yield place, request, None
            elif request is None:
                raise ValueError("a rollout without a group")
            else:
                yield place, request, outcome_from_json(line)
    except UNREADABLE as error:
        raise _create_damaged_error(path) from error


def parse_request(line: dict[str, Any]) -> tuple[GroupRequest, float]:
    """Return the request in a group's line, and the seconds that the group took."""
    values = {name: value for name, value in line.items() if name not in ("kind", "format", "wall_s")}
    return GroupRequest(**values | {"task": task_from_json(line["task"])}), line["wall_s"]


def read_lines(path: Path) -> Iterator[tuple[LinePosition, dict[str, Any]]]:
    """Yield all lines of a file with their places, in constant memory.

    Raises:
        DamagedFile: The file is damaged; raised after the last complete line.
        UserError: A newer version wrote the file, or a version before 0.2.0.
    """
    try:
        for place, text in _read_texts(path):
            line = json.loads(text)
            if line["kind"] == "group" and line.get("format", 0) < FORMAT:
                raise OutdatedFormat.for_path(str(path), public=f"the file of {_public_name(path)}")
            if line["kind"] == "group" and line["format"] > FORMAT:
                public = f"{_public_name(path)} were written by a newer version of agent-rft"
                fix = "Read the file with that version"
                raise UserError(f"{path} was written by a newer version of agent-rft. {fix}", public_message=public)
            yield place, line
    except UNREADABLE as error:
        raise _create_damaged_error(path) from error


def _create_damaged_error(path: Path) -> DamagedFile:
    fix = "Copy the file again from its source, or delete it"
    return DamagedFile(f"{path} is damaged or truncated. {fix}", public_message=f"{_public_name(path)} are damaged")


def _public_name(path: Path) -> str:
    """Return the name of a file for a server's clients."""
    return f"the rollouts {path.name.removesuffix(ROLLOUTS_SUFFIX)}"


def _read_texts(path: Path) -> Iterator[tuple[LinePosition, bytes]]:
    with path.open("rb") as file:
        end = 0  # bytes of the file that were decompressed
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
                    yield LinePosition(frame, start, len(line) + 1), line
                    start += len(line) + 1
            if rest:
                yield LinePosition(frame, start, len(rest)), rest


class LineReader:
    """Reader of lines at given places. Lines of one frame, read in order, share one decompression."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._frame: tuple[Path, int] | None = None
        self._at = 0
        self._stream: BinaryIO

    def read(self, path: Path, place: LinePosition) -> dict[str, Any]:
        """Return the line at this place.

        Raises:
            FileNotFoundError: The file no longer exists.
            RewrittenFile: The file has no such line.
        """
        text = self.read_bytes(path, place)
        try:
            line: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise self._create_error(path) from error
        return line

    def read_bytes(self, path: Path, place: LinePosition) -> bytes:
        """Return the line's bytes as they were written. Raises the errors of `read`."""
        if self._frame != (path, place.frame) or place.start < self._at:
            self.close()
            file = self._open.enter_context(path.open("rb"))
            file.seek(place.frame)
            self._stream = self._open.enter_context(zstandard.ZstdDecompressor().stream_reader(file))
            self._frame, self._at = (path, place.frame), 0
        try:
            while self._at < place.start:
                self._at += len(self._read_chunk(min(CHUNK_BYTES, place.start - self._at)))
            text = b""
            while len(text) < place.length:
                text += self._read_chunk(place.length - len(text))
            self._at += place.length
        except (zstandard.ZstdError, EOFError) as error:
            raise self._create_error(path) from error
        return text

    def _create_error(self, path: Path) -> RewrittenFile:
        self.close()
        public = f"{_public_name(path)} were written again"
        return RewrittenFile(f"{path} is not the file that was indexed. Try again", public_message=public)

    def _read_chunk(self, num_bytes: int) -> bytes:
        found = self._stream.read(num_bytes)
        if not found:
            raise EOFError
        return found

    def close(self) -> None:
        self._open.close()
        self._frame = None
