"""What a grader asks its runner for is checked there; the grader is not trusted."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft import untrusted
from agent_rft.actors.sandbox.untrusted_runner import DEFAULTS, MAX_FILES, check_request

MEMORY = 1 << 30


def request(files: Any = (), limits: Any = None, parts: list[bytes] | None = None) -> bytes:
    content = [b"code", b"", *(b"" for _ in files)] if parts is None else parts
    return untrusted.pack({"files": list(files), "limits": limits or {}}, content)


def test_limits_have_defaults_and_upper_bounds() -> None:
    assert check_request(request(), MEMORY) == DEFAULTS
    assert check_request(request(limits={"wall_s": 120, "memory_bytes": MEMORY}), MEMORY)["wall_s"] == 120


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_s", 121),
        ("wall_s", 0),
        ("wall_s", True),
        ("wall_s", "1"),
        ("wall_s", float("nan")),
        ("cpu_s", 1e9),
        ("memory_bytes", MEMORY + 1),
        ("memory_bytes", 1),
        ("output_bytes", -1),
        ("output_bytes", 10**400),
    ],
)
def test_a_limit_beyond_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"limits: {name} must be a number from"):
        check_request(request(limits={name: value}), MEMORY)


@pytest.mark.parametrize(
    "name", ["", "/x", "../x", "a/../x", "a//b", "./x", "a/", "\0", "x" * 201, "main.py", 7, None, []]
)
def test_a_file_outside_of_the_folder_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="files: "):
        check_request(request([name]), MEMORY)


def test_files_are_counted() -> None:
    assert check_request(request([f"{number}" for number in range(MAX_FILES)]), MEMORY)
    with pytest.raises(ValueError, match="files: there are more than 100"):
        check_request(request([f"{number}" for number in range(MAX_FILES + 1)]), MEMORY)


@pytest.mark.parametrize("parts", [[], [b""], [b""] * 3])
def test_a_request_of_other_parts_than_it_names_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(ValueError, match="the request is malformed"):
        check_request(request(parts=parts), MEMORY)


def test_messages_keep_their_parts() -> None:
    parts = [b"", b"\0" * 100_000, b"\xff"]
    message = untrusted.pack({"a": 1}, parts)
    assert untrusted.unpack(message) == ({"a": 1}, parts)
    packets = list(untrusted.split_chunks(b"head", message))
    assert b"".join(packet[5:] for packet in packets) == message
    assert [packet[:5] for packet in packets] == [b"head\0", b"head\1"]


@pytest.mark.parametrize("sizes", ["[-1, 5]", "[1, 2]", "[true]", "[4.0]", "4", "null", "[4, 0.0]"])
def test_a_message_of_other_sizes_than_it_says_is_invalid(sizes: str) -> None:
    head = f'{{"sizes": {sizes}}}'.encode()
    with pytest.raises(ValueError, match="size"):
        untrusted.unpack(len(head).to_bytes(4, "big") + head + b"1234")
