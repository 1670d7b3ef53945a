"""A folder has one owner; the next one finds all that it wrote, and nothing that it writes later."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent_rft.errors import RftError, UserError
from agent_rft.rows.ownership import (
    CURRENT,
    HEARTBEAT,
    FolderClaim,
    FolderLost,
    FolderOperations,
    FolderOwned,
    claim_folder,
    current_folder,
    read_silence_s,
    strip_owner_folder,
)

NAMES = ("events.jsonl", "journal")


class Time:
    """A clock that `pause` moves, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self._meanwhile()


@pytest.fixture
def claims() -> Iterator[list[FolderClaim]]:
    """Claims whose threads are ended after the test."""
    made: list[FolderClaim] = []
    yield made
    for each in made:
        with suppress(OSError):
            each.release()


def claimed(
    claims: list[FolderClaim], path: Path, time: Time | None = None, told: list[str] | None = None, **more: float
) -> FolderClaim:
    time = time or Time()
    tell: Callable[[str], object] = [].append if told is None else told.append
    claims.append(claim_folder(path, NAMES, notify=tell, pause=time.pause, clock=time.clock, **more))
    return claims[-1]


def beat(path: Path, number: int = 1) -> Callable[[], object]:
    """What another owner that is alive does."""
    counts = iter(range(10**6))
    return lambda: (path / f"owner-{number:06d}" / HEARTBEAT).write_bytes(f"{next(counts):020d} {{}}".encode())


def test_files_are_found_by_their_names_under_each_owner(claims: list[FolderClaim], tmp_path: Path) -> None:
    path, time = tmp_path / "runs" / "a", Time()
    first = claimed(claims, path, time)
    (first.folder / "events.jsonl").write_text("1\n")
    (first.folder / "journal").mkdir()
    (first.folder / "journal" / "group-1").write_text("g")
    assert (path / "events.jsonl").read_text() == "1\n" and (path / "journal" / "group-1").read_text() == "g"
    assert current_folder(path).resolve() == first.folder
    first.release()
    second = claimed(claims, path, time)
    assert (second.number, time.now) == (2, 0.0), "an owner that ended in order is succeeded at once"
    assert (path / "events.jsonl").read_text() == "1\n" and current_folder(path).resolve() == second.folder
    assert strip_owner_folder((path / "journal" / "group-1").resolve()) == path.resolve() / "journal" / "group-1"


def test_an_owner_that_is_alive_is_named_and_stays(claims: list[FolderClaim], tmp_path: Path) -> None:
    first = claimed(claims, tmp_path)
    content = (first.folder / HEARTBEAT).read_bytes()
    counts = iter(range(1, 100))
    alive = Time(lambda: (first.folder / HEARTBEAT).write_bytes(f"{next(counts):020d}".encode() + content[20:]))
    with pytest.raises(FolderOwned, match=rf"is used by process {os.getpid()} on .+ \(since "):
        claimed(claims, tmp_path, alive)
    assert alive.now < 5
    first.check()


def test_one_that_waits_gets_the_folder_when_its_owner_ends(claims: list[FolderClaim], tmp_path: Path) -> None:
    first, told = claimed(claims, tmp_path), list[str]()
    beats = beat(tmp_path)

    def until_90_s() -> None:
        if time.now < 90:
            beats()
        elif time.now < 91:
            (first.folder / HEARTBEAT).unlink(missing_ok=True)

    time = Time(until_90_s)
    (first.folder / "events.jsonl").write_text("")
    second = claimed(claims, tmp_path, time, told, wait_s=600.0)
    assert second.number == 2 and 90 <= time.now < 92
    assert len(told) == 2 and re.search("waiting at most (599|600) s until this process ends", told[0])


def test_a_wait_ends_with_the_time_that_it_was_given(claims: list[FolderClaim], tmp_path: Path) -> None:
    claimed(claims, tmp_path)
    time = Time(beat(tmp_path))
    with pytest.raises(FolderOwned, match="has not ended within 30 s"):
        claimed(claims, tmp_path, time, wait_s=30.0)
    assert 30 <= time.now < 32


def test_a_silent_owner_is_succeeded_and_can_write_nothing_any_more(claims: list[FolderClaim], tmp_path: Path) -> None:
    first = claimed(claims, tmp_path, silence_s=10_000.0)  # so it does not beat while the test looks
    lost = threading.Event()
    with (first.folder / "events.jsonl").open("ab") as opened:
        opened.write(b"before\n")
        opened.flush()
        time, told = Time(), list[str]()
        second = claimed(claims, tmp_path, time, told)
        assert 15 <= time.now < 17 and len(told) == 1 and "waiting 15 s" in told[0]
        opened.write(b"after\n")
    assert (tmp_path / "events.jsonl").read_text() == "before\n"
    for write in (
        lambda: (first.folder / "events.jsonl").open("ab"),
        lambda: (first.folder / "late.tmp").write_text(""),
        lambda: (first.folder / "events.jsonl").unlink(),
        lambda: shutil.rmtree(first.folder / "journal"),
    ):
        with pytest.raises(FileNotFoundError):
            write()
    with pytest.raises(FolderLost, match="another process has taken over"):
        first.check()
    second.check()
    assert not lost.is_set()


def test_an_owner_notices_that_it_has_lost_the_folder(claims: list[FolderClaim], tmp_path: Path) -> None:
    first, lost = claimed(claims, tmp_path, silence_s=0.1), threading.Event()
    first.on_lost(lost.set)
    first.folder.rename(first.folder.with_name("owner-000002"))
    assert lost.wait(20) and first.is_lost
    again = threading.Event()
    first.on_lost(again.set)
    assert again.is_set(), "also one that asks later is told"


def compete(claims: list[FolderClaim], path: Path) -> list[FolderClaim]:
    """Eight processes want the folder; returns the claims of those that got it."""
    outcomes: list[FolderClaim | FolderOwned] = []

    def one() -> None:
        try:
            outcomes.append(claim_folder(path, NAMES, notify=[].append, silence_s=1.0))
        except FolderOwned as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    winners = [outcome for outcome in outcomes if isinstance(outcome, FolderClaim)]
    claims += winners
    assert len(outcomes) == 8
    return winners


def test_of_many_that_find_a_silent_owner_one_gets_the_folder(claims: list[FolderClaim], tmp_path: Path) -> None:
    """The others see the new owner, which is alive."""
    dead = claimed(claims, tmp_path, silence_s=10_000.0)
    (dead.folder / "events.jsonl").write_text("1\n")
    winners = compete(claims, tmp_path)
    assert len(winners) == 1
    assert (winners[0].folder / "events.jsonl").read_text() == "1\n"
    assert [entry.name for entry in tmp_path.glob("owner-*")] == [winners[0].folder.name]


def test_of_many_that_find_no_owner_one_gets_the_folder(claims: list[FolderClaim], tmp_path: Path) -> None:
    assert len(compete(claims, tmp_path / "new")) == 1


@pytest.mark.parametrize("name", ["events.jsonl", "journal"])
def test_a_file_or_folder_in_the_way_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir() if name == "journal" else (tmp_path / name).write_text("the user's\n")
    with pytest.raises(
        UserError, match=f"{name} exists, but the run must create this file. Move it away, or choose another folder"
    ):
        claim_folder(tmp_path, NAMES)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_in_which_nothing_was_written_is_gone_again(claims: list[FolderClaim], tmp_path: Path) -> None:
    """Such as that of a job that was refused."""
    claimed(claims, tmp_path / "new").release()
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    claimed(claims, tmp_path / "mine").release()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_what_an_owner_before_makes_again_is_removed(claims: list[FolderClaim], tmp_path: Path) -> None:
    first = claimed(claims, tmp_path, silence_s=10_000.0)
    second = claimed(claims, tmp_path)
    (second.folder / "events.jsonl").write_text("2\n")
    first.folder.mkdir()
    (first.folder / "events.jsonl").write_text("stale\n")
    assert (tmp_path / "events.jsonl").read_text() == "2\n" and current_folder(tmp_path).resolve() == second.folder
    second.release()
    assert claimed(claims, tmp_path).number == 3
    assert [path.name for path in tmp_path.glob("owner-*")] == ["owner-000003"]


def test_a_folder_that_cannot_be_written_says_so(claims: list[FolderClaim], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*/file/run: Not a directory"):
        claimed(claims, tmp_path / "file" / "run")


def unsupported(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.mark.parametrize("disk", [FolderOperations(rename=unsupported), FolderOperations(symlink=unsupported)])
def test_a_file_system_without_renames_or_links_is_refused_with_the_fix(tmp_path: Path, disk: FolderOperations) -> None:
    with pytest.raises(UserError, match=r"rename folders .*\. It may be a mounted bucket\. Use a local disk"):
        claim_folder(tmp_path / "run", NAMES, disk=disk)


@pytest.mark.parametrize(("is_first", "knew"), [(True, []), (False, []), (False, ["owner-000001"])])
def test_an_old_list_of_the_folder_never_makes_a_second_owner(
    claims: list[FolderClaim], tmp_path: Path, is_first: bool, knew: list[str]
) -> None:
    """NFS may list a folder as it was a while ago. Of names that are looked up it tells the truth."""
    if not is_first:
        claimed(claims, tmp_path)
        (claims[0].folder / "events.jsonl").write_text("")
        claims[0].release()
    owner = claimed(claims, tmp_path, silence_s=10_000.0)
    counts = iter(range(1, 10**6))

    def beats() -> None:
        (owner.folder / HEARTBEAT).write_bytes(f"{next(counts):020d} {{}}".encode())

    time = Time(beats)
    disk = FolderOperations(listdir=lambda path: os.listdir(path) if time.now > 20 else knew)
    with pytest.raises(FolderOwned):
        claim_folder(tmp_path, NAMES, notify=[].append, pause=time.pause, clock=time.clock, disk=disk)
    assert 20 < time.now < 25, "it has to see the owner"
    owner.check()


def test_the_seconds_of_silence_can_be_set() -> None:
    assert (read_silence_s({}), read_silence_s({"AGENT_RFT_SILENCE_S": "60"})) == (15, 60)
    for wrong in ("", "0", "-1", "soon", "nan"):
        with pytest.raises(RftError, match="AGENT_RFT_SILENCE_S: must be a number of seconds above 0"):
            read_silence_s({"AGENT_RFT_SILENCE_S": wrong})


def test_a_path_outside_of_an_owned_folder_lasts_as_it_is(tmp_path: Path) -> None:
    assert strip_owner_folder(tmp_path / "owner-000001" / "x") == tmp_path / "owner-000001" / "x"
    assert not (tmp_path / CURRENT).exists()
