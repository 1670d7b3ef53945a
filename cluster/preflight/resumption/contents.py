"""Digests of the files and the model of a job: whether they are still what a run began with.

The digest of a file has its size, so that a file to which lines were appended is known again. Of a large file of a
model, only samples are read: training changes nearly all weights, and reading all of them could take minutes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

OF_MODELS = frozenset((".json", ".jinja", ".model", ".safetensors", ".tiktoken", ".txt"))
"""What the files of a model that matter end in."""
CHUNK_BYTES = 2**20
SAMPLE_BYTES = 2**16
NUM_SAMPLES = 64
WHOLE_BYTES = 2 * NUM_SAMPLES * SAMPLE_BYTES
"""Up to this size, files of a model are read as a whole."""


def digest_of(path: Path) -> str | None:
    """The digest of a file or of a model's folder, None if it cannot be read."""
    try:
        return _digest_of_model(path) if path.is_dir() else _digest_of_file(path, path.stat().st_size)
    except OSError:
        return None


def has_contents(path: Path, digest: str) -> bool | None:
    """Whether a file, apart from lines at its end, or a model's folder has this digest; None if it cannot be read."""
    try:
        if path.is_dir():
            return _digest_of_model(path) == digest
        size, _, _ = digest.partition("-")
        return size.isdecimal() and _digest_of_file(path, int(size)) == digest
    except OSError:
        return None


def _digest_of_file(path: Path, size: int) -> str:
    """The digest of the first `size` bytes, if a line ends there, else of no other file."""
    found, last, left = hashlib.blake2b(digest_size=16), b"", size
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            found.update(chunk)
            last, left = chunk[-1:], left - len(chunk)
        ends_here = left == 0 and (last in (b"", b"\n") or file.read(1) in (b"", b"\r", b"\n"))
    return f"{size}-{found.hexdigest()}" if ends_here else ""


def _digest_of_model(folder: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.iterdir() if path.suffix in OF_MODELS and path.is_file()):
        with path.open("rb") as file:
            size = path.stat().st_size
            found.update(f"{path.name}\0{size}\0".encode())
            for part in _parts(file, size):
                found.update(part)
    return found.hexdigest()


def _parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    """All of a small file; of a large one the beginning, the end, and samples at equal distances in between."""
    if size <= WHOLE_BYTES:
        yield file.read()
        return
    for i in range(NUM_SAMPLES):
        file.seek((size - SAMPLE_BYTES) * i // (NUM_SAMPLES - 1))
        yield file.read(SAMPLE_BYTES)
