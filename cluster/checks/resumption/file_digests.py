"""Digests of a job's files and model, to detect changes since a run began.

A file's digest includes the file's size, so that lines appended later can be ignored. The digest of a large model file
covers only samples of its bytes, because reading all bytes could take minutes. Samples suffice, because training
changes nearly all weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MODEL_SUFFIXES = frozenset((".json", ".jinja", ".model", ".safetensors", ".tiktoken", ".txt"))
"""File name endings of the model files that are digested."""
CHUNK_BYTES = 2**20
SAMPLE_BYTES = 2**16
NUM_SAMPLES = 64
MAX_FULL_BYTES = 2 * NUM_SAMPLES * SAMPLE_BYTES
"""Maximum size of a model file that is read completely; only samples of larger files are read."""


def digest_path(path: Path) -> str | None:
    """Return the digest of a file or a model's folder; None if it cannot be read."""
    try:
        return _digest_model(path) if path.is_dir() else _digest_file(path, path.stat().st_size)
    except OSError:
        return None


def matches_digest(path: Path, digest: str) -> bool | None:
    """Return whether a file or a model's folder has this digest; None if it cannot be read.

    Lines that were appended to the file are ignored.
    """
    try:
        if path.is_dir():
            return _digest_model(path) == digest
        size, _, _ = digest.partition("-")
        return size.isdecimal() and _digest_file(path, int(size)) == digest
    except OSError:
        return None


def _digest_file(path: Path, size: int) -> str:
    """Return the digest of a file's first `size` bytes.

    Return an empty string if the file is shorter, or if byte `size` is in the middle of a line.
    """
    found, last, left = hashlib.blake2b(digest_size=16), b"", size
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            found.update(chunk)
            last, left = chunk[-1:], left - len(chunk)
        ends_here = left == 0 and (last in (b"", b"\n") or file.read(1) in (b"", b"\r", b"\n"))
    return f"{size}-{found.hexdigest()}" if ends_here else ""


def _digest_model(folder: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.iterdir() if path.suffix in MODEL_SUFFIXES and path.is_file()):
        with path.open("rb") as file:
            size = path.stat().st_size
            found.update(f"{path.name}\0{size}\0".encode())
            for part in _read_digested_parts(file, size):
                found.update(part)
    return found.hexdigest()


def _read_digested_parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield all bytes of a small file, or evenly spaced samples of a large file."""
    if size <= MAX_FULL_BYTES:
        yield file.read()
        return
    for i in range(NUM_SAMPLES):
        file.seek((size - SAMPLE_BYTES) * i // (NUM_SAMPLES - 1))
        yield file.read(SAMPLE_BYTES)
