"""A killed process leaves nothing in shared memory."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO, RawIOBase
from pathlib import Path

import numpy as np
import pytest

from agent_rft.actors.weights.shared_memory import SHM, SharedFile, create_shared_folder, remove_leftovers, write_all

DATA = np.arange(8, dtype=np.uint8)


def killed(*lines: str) -> list[str]:
    """The output of a process that ran these lines and then killed itself."""
    code = "\n".join(["import os, signal, sys", *lines, "sys.stdout.flush()", "os.kill(os.getpid(), signal.SIGKILL)"])
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert done.returncode == -9
    return done.stdout.split()


def test_a_shared_file_exists_until_it_is_removed(tmp_path: Path) -> None:
    file = SharedFile(tmp_path, DATA)
    assert file.path.read_bytes() == DATA.tobytes()
    file.remove()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        SharedFile(tmp_path / "missing", DATA)


class Little(RawIOBase):
    """A file that takes three bytes per call, as Linux takes 2 GiB, and `room` in total."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.content = BytesIO()

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        return self.content.write(data[: min(3, self._room - self.content.tell())])


def test_a_bucket_that_is_larger_than_one_write_is_written_whole() -> None:
    file = Little(room=8)
    write_all(file, memoryview(DATA))
    assert file.content.getvalue() == DATA.tobytes()
    with pytest.raises(OSError, match="only 7 of 8 bytes were written"):
        write_all(Little(room=7), memoryview(DATA))


def test_a_shared_folder_is_there_for_a_block_and_a_dead_process_leaves_none(tmp_path: Path) -> None:
    killed(
        "from pathlib import Path; from agent_rft.actors.weights.shared_memory import create_shared_folder",
        f"entered = create_shared_folder(Path({str(tmp_path)!r})); (entered.__enter__() / 'file').touch()",
    )
    assert len(list(tmp_path.glob("*/file"))) == 1
    with create_shared_folder(tmp_path) as folder:
        (folder / "adapter").touch()
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_files_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    killed(
        "import numpy as np; from pathlib import Path; from agent_rft.actors.weights.shared_memory import SharedFile",
        f"file = SharedFile(Path({str(tmp_path)!r}), np.zeros(8, np.uint8))",
    )
    (tmp_path / "not-ours").touch()
    held = SharedFile(tmp_path, DATA)
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"not-ours", held.path.name}
    held.remove()


def test_shared_memory_without_a_name_still_works_and_ends_with_its_process() -> None:
    name, still_there, value = killed(
        "from multiprocessing.shared_memory import SharedMemory",
        "from agent_rft.actors.weights.shared_memory import SHM, unlink_shared_memory",
        "memory = SharedMemory(create=True, size=100)",
        "memory.buf[0] = 7",
        "unlink_shared_memory()",
        "print(memory.name, (SHM / memory.name).exists(), memory.buf[0])",
    )
    assert (still_there, value) == ("False", "7")
    assert not (SHM / name).exists()
