"""Rollout files: lossless JSONL files of groups, compressed with zstandard.

A file is a sequence of compressed frames, and each frame contains complete groups. A rollout can therefore be read
without decompressing earlier frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.rows.durable_write import write_durably
from agent_rft.rows.rollout_json import outcome_from_json, outcome_to_json, request_to_json, task_from_json
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout

ROLLOUTS_SUFFIX = ".jsonl.zst"
FORMAT = 2
"""Version of the format of a group's lines. Raise this number for changes that older programs cannot read."""
FRAME_BYTES = 1 << 20
"""Uncompressed size at which a frame ends. Such a frame is decompressed in a few milliseconds, and compresses nearly as
well as if the file had only one frame."""
CHUNK_BYTES = 1 << 16
UNREADABLE = (zstandard.ZstdError, EOFError, ValueError, KeyError, TypeError, IndexError)
"""Exceptions that reading a damaged file may raise."""


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Position of a line in a rollout file.

    Attributes:
        frame: Position in the file, in bytes, at which the line's compressed frame begins.
        start: Position in the decompressed frame, in bytes, at which the line begins.
        length: Length of the line in bytes, including the line break.
    """

    frame: int
    start: int
    length: int


class DamagedFile(UserError):
    """A rollout file is truncated, or is not a rollout file."""


class RewrittenFile(DamagedFile):
    """A rollout file was replaced after it was indexed, so it does not contain the indexed line."""


# -- writing -----------------------------------------------------------------------------------------------------------


def write_groups(path: Path, groups: Iterable[Group]) -> list[list[LinePosition]]:
    """Write a file atomically and durably: for each group a line with its request, then a line per rollout.

    Returns:
        For each group, the positions of its lines.
    """
    frames: list[bytes] = []
    positions: list[list[LinePosition]] = []
    lines: list[bytes] = []
    frame = start = 0
    for group in groups:
        positions.append([])
        for value in iter_group_lines(group):
            lines.append(json.dumps(value, default=str).encode() + b"\n")
            positions[-1].append(LinePosition(frame, start, len(lines[-1])))
            start += len(lines[-1])
        if start >= FRAME_BYTES:
            frames.append(_compress(lines))
            lines, frame, start = [], frame + len(frames[-1]), 0
    if lines or not frames:
        frames.append(_compress(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, b"".join(frames))
    return positions


def _compress(lines: Sequence[bytes]) -> bytes:
    return zstandard.ZstdCompressor().compress(b"".join(lines))


def iter_group_lines(group: Group) -> Iterator[dict[str, Any]]:
    """Yield the lines of a group: a line of kind `group` with the request and its row, then a line per rollout.

    See `outcome_to_json` for the lines of rollouts.
    """
    yield {"kind": "group", "format": FORMAT, "wall_s": group.wall_s} | request_to_json(group.request)
    yield from map(outcome_to_json, group.rollouts)
    yield from map(outcome_to_json, group.discarded)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_groups(path: Path) -> list[Group]:
    """Return exactly the groups that `write_groups` wrote.

    Raises:
        DamagedFile: The file is truncated, or is not a rollout file.
        UserError: The file was written by a newer version, or by a version before 0.2.0.
    """
    entries: list[tuple[GroupRequest, float, list[Rollout], list[DiscardedRollout]]] = []
    try:
        for _, line in read_lines(path):
            if line["kind"] == "group":
                entries.append((*parse_request(line), [], []))
            elif isinstance(outcome := outcome_from_json(line), Rollout):
                entries[-1][2].append(outcome)
            else:
                entries[-1][3].append(outcome)
    except UNREADABLE as error:
        raise _create_damaged_error(path) from error
    return [Group(request, tuple(rollouts), tuple(lost), wall_s) for request, wall_s, rollouts, lost in entries]


def read_outcomes(path: Path) -> Iterator[tuple[LinePosition, GroupRequest, Rollout | DiscardedRollout | None]]:
    """Yield (position, request, outcome) for each line of a file.

    A line contains either a request or the outcome of one of the request's rollouts. For the line of a request, the
    outcome is None.

    Uses constant memory. Raises the same errors as `read_groups`. If the file is damaged, all complete lines are
    yielded before the error is raised.
    """
    request: GroupRequest | None = None
    try:
        for position, line in read_lines(path):
            if line["kind"] == "group":
                request, _ = parse_request(line)
                yield position, request, None
            elif request is None:
                raise ValueError("a rollout without a group")
            else:
                yield position, request, outcome_from_json(line)
    except UNREADABLE as error:
        raise _create_damaged_error(path) from error


def parse_request(line: dict[str, Any]) -> tuple[GroupRequest, float]:
    """Return the request that a group's line contains, and the duration of the group in seconds."""
    values = {name: value for name, value in line.items() if name not in ("kind", "format", "wall_s")}
    return GroupRequest(**values | {"task": task_from_json(line["task"])}), line["wall_s"]


def read_lines(path: Path) -> Iterator[tuple[LinePosition, dict[str, Any]]]:
    """Yield the position and the content of each line of a file, in constant memory.

    Raises:
        DamagedFile: The file is damaged; raised after the last complete line.
        UserError: The file was written by a newer version, or by a version before 0.2.0.
    """
    try:
        for position, text in _read_texts(path):
            line = json.loads(text)
            if line["kind"] == "group" and line.get("format", 0) < FORMAT:
                raise OutdatedFormat.for_path(str(path), public_subject=f"the file of {_public_name(path)}")
            if line["kind"] == "group" and line["format"] > FORMAT:
                public = f"{_public_name(path)} were written by a newer version of agent-rft"
                fix = "Read the file with the version that wrote it"
                raise UserError(f"{path} was written by a newer version of agent-rft. {fix}", public_message=public)
            yield position, line
    except UNREADABLE as error:
        raise _create_damaged_error(path) from error


def _create_damaged_error(path: Path) -> DamagedFile:
    fix = "Copy the file again from its source, or delete it"
    return DamagedFile(f"{path} is damaged or truncated. {fix}", public_message=f"{_public_name(path)} are damaged")


def _public_name(path: Path) -> str:
    """Return the name of the file in messages to a server's clients. Clients must not see the file's path."""
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
    """Reader of single lines of rollout files. It is fast if the lines are read in file order."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._frame: tuple[Path, int] | None = None
        self._at = 0
        self._stream: BinaryIO

    def read(self, path: Path, position: LinePosition) -> dict[str, Any]:
        """Return the JSON object of the line at this position.

        Raises:
            FileNotFoundError: The file no longer exists.
            RewrittenFile: The file has no such line.
        """
        text = self.read_bytes(path, position)
        try:
            line: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise self._create_error(path) from error
        return line

    def read_bytes(self, path: Path, position: LinePosition) -> bytes:
        """Return the line's bytes as they were written. Raises the errors of `read`."""
        if self._frame != (path, position.frame) or position.start < self._at:
            self.close()
            file = self._open.enter_context(path.open("rb"))
            file.seek(position.frame)
            self._stream = self._open.enter_context(zstandard.ZstdDecompressor().stream_reader(file))
            self._frame, self._at = (path, position.frame), 0
        try:
            while self._at < position.start:
                self._at += len(self._read_chunk(min(CHUNK_BYTES, position.start - self._at)))
            text = b""
            while len(text) < position.length:
                text += self._read_chunk(position.length - len(text))
            self._at += position.length
        except (zstandard.ZstdError, EOFError) as error:
            raise self._create_error(path) from error
        return text

    def _create_error(self, path: Path) -> RewrittenFile:
        self.close()
        public = f"{_public_name(path)} were written again"
        return RewrittenFile(f"{path} was written again after it was indexed. Try again", public_message=public)

    def _read_chunk(self, num_bytes: int) -> bytes:
        found = self._stream.read(num_bytes)
        if not found:
            raise EOFError
        return found

    def close(self) -> None:
        self._open.close()
        self._frame = None
