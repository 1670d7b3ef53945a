import json
from contextlib import closing

import pytest
import zstandard

from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.rows.rollout_files import (
    DamagedFile,
    LineReader,
    RewrittenFile,
    read_groups,
    read_lines,
    write_groups,
)
from agent_rft.types import Group, Turn
from tests.support.builders import group_request, rollout


def groups(count: int, text: str = "text") -> list[Group]:
    found = []
    for index in range(count):
        request = group_request(index, 2)
        found.append(Group(request, tuple(rollout(request, i, turns=(Turn(2, 5, text),)) for i in range(2))))
    return found


def test_lines_are_read_at_their_places_in_any_order(tmp_path) -> None:
    path = tmp_path / "a.jsonl.zst"
    places = write_groups(path, groups(8, "x" * 300_000))  # several frames
    assert len({line.frame for of_group in places for line in of_group}) == 4
    lines = dict(read_lines(path))
    assert list(lines) == [line for of_group in places for line in of_group]
    with closing(LineReader()) as reader:
        for place in [*reversed(lines), *lines]:
            assert reader.read(path, place) == lines[place]
    assert [g.request.index for g in read_groups(path)] == list(range(8))


def test_a_file_of_an_older_version_is_one_frame(tmp_path) -> None:
    path, old = tmp_path / "a.jsonl.zst", tmp_path / "old.jsonl.zst"
    write_groups(path, groups(3, "x" * 600_000))
    lines = [json.dumps(line).encode() + b"\n" for _, line in read_lines(path)]
    old.write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines)))
    assert {place.frame for place, _ in read_lines(old)} == {0}
    last, line = list(read_lines(old))[-1]
    with closing(LineReader()) as reader:
        assert reader.read(old, last) == line
    assert len(read_groups(old)) == 3


def test_a_half_written_file_is_read_up_to_its_end_and_then_refused(tmp_path) -> None:
    path = tmp_path / "a.jsonl.zst"
    write_groups(path, groups(8, "x" * 300_000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    found = []
    with pytest.raises(DamagedFile, match=r"is damaged or truncated\. Copy the file again"):
        for place, _ in read_lines(path):
            found.append(place)
    assert 3 <= len(found) < 24


def test_clients_are_told_the_name_of_a_file_and_not_its_path(tmp_path) -> None:
    path = tmp_path / "test-after.jsonl.zst"
    [[_, *_, last]] = write_groups(path, groups(1))
    newer = zstandard.ZstdCompressor().compress(b'{"kind": "group", "format": 99}\n')
    older = zstandard.ZstdCompressor().compress(b'{"kind": "group", "format": 1}\n')
    for content, problem in (
        (b"", "are damaged"),
        (newer, "were written by a newer version of agent-rft"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError) as error:
            read_groups(path)
        assert error.value.public_message == f"the rollouts test-after {problem}"
    path.write_bytes(older)
    with pytest.raises(UserError) as error:
        read_groups(path)
    assert error.value.public_message.startswith(
        "the file of the rollouts test-after was created by a version before 0.2.0; "
    )
    with closing(LineReader()) as reader, pytest.raises(RewrittenFile) as other:
        reader.read(path, last)
    assert other.value.public_message == "the rollouts test-after were written again"


@pytest.mark.parametrize("content", [b"", b"not compressed", zstandard.ZstdCompressor().compress(b"[]\n")])
def test_what_is_no_rollout_file_is_refused(tmp_path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(content)
    with pytest.raises(DamagedFile):
        read_groups(path)


@pytest.mark.parametrize("line", [b'{"kind": "group"}', b'{"kind": "group", "format": 1}'])
def test_a_file_from_before_the_first_version_is_refused(tmp_path, line: bytes) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(line + b"\n"))
    with pytest.raises(
        OutdatedFormat, match=r"a\.jsonl\.zst was created by a version before 0\.2\.0; finish or export it with"
    ):
        read_groups(path)


def test_a_file_of_a_newer_version_is_refused(tmp_path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b'{"kind": "group", "format": 99}\n'))
    with pytest.raises(UserError, match="newer version of agent-rft") as error:
        read_groups(path)
    assert not isinstance(error.value, DamagedFile)


def test_a_file_without_groups_is_empty(tmp_path) -> None:
    assert write_groups(tmp_path / "a.jsonl.zst", []) == []
    assert read_groups(tmp_path / "a.jsonl.zst") == []


def test_a_stored_request_has_the_fields_of_0_2_0(tmp_path) -> None:
    path = tmp_path / "a.jsonl.zst"
    write_groups(path, groups(1))
    _, line = next(iter(read_lines(path)))
    assert list(line) == [
        *("kind", "format", "wall_s", "task", "epoch", "index", "size", "purpose", "temperature", "attempt")
    ]
    assert read_groups(path)[0].request == groups(1)[0].request
