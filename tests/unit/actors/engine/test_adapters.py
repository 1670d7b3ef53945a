"""Which adapters an engine holds, with a host that only notes what is loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_rft.actors.engine.adapters import Adapters

FOLDER = Path("adapter")


class FakeHost:
    """`loaded` are names of adapters; a damaged one raises when it is half loaded."""

    def __init__(self) -> None:
        self.loaded: dict[int, str] = {}
        self.most = 0

    async def add_lora(self, request: Any) -> bool:
        self.loaded[request.lora_int_id] = request.lora_name.split("#")[0]
        self.most = max(self.most, len(self.loaded))
        await asyncio.sleep(0)
        if "damaged" in request.lora_name:
            raise ValueError("damaged")
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        return self.loaded.pop(lora_id, None) is not None

    @property
    def names(self) -> list[str]:
        return list(self.loaded.values())


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


async def turn(times: int = 20) -> None:
    """Let other tasks go on."""
    for _ in range(times):
        await asyncio.sleep(0)


async def use(adapters: Adapters, name: str, until: asyncio.Event | None = None) -> None:
    with adapters.use(await adapters.load(name, FOLDER)):
        if until is not None:
            await until.wait()


async def test_the_least_recently_used_adapter_makes_room(host: FakeHost) -> None:
    adapters = Adapters(host, 2)
    for name in ("a", "b", "a", "c"):
        await use(adapters, name)
    assert host.names == ["a", "c"]
    assert host.most == 2


async def test_an_adapter_is_loaded_once_for_all_that_want_it(host: FakeHost) -> None:
    adapters = Adapters(host, 2)
    await asyncio.gather(*(use(adapters, "a") for _ in range(5)))
    assert list(host.loaded) == [1]


async def test_with_all_slots_in_use_a_further_adapter_waits_for_the_last_request_of_one(host: FakeHost) -> None:
    adapters, ends, last = Adapters(host, 2), asyncio.Event(), asyncio.Event()
    running = [asyncio.create_task(use(adapters, name, ends if name == "a" else last)) for name in ("a", "b")]
    await turn()
    further = asyncio.create_task(use(adapters, "c"))
    await turn()
    late = asyncio.create_task(use(adapters, "a"))  # of the one that is being replaced: it comes after the further one
    await turn()
    assert host.names == ["a", "b"]
    ends.set()
    await asyncio.gather(running[0], further, late)
    assert host.names == ["b", "a"] and host.most == 2
    last.set()
    await running[1]


async def test_a_damaged_adapter_is_an_error_of_its_own_and_takes_no_slot(host: FakeHost) -> None:
    adapters = Adapters(host, 1)
    await use(adapters, "a")
    with pytest.raises(ValueError, match="damaged"):
        await use(adapters, "damaged")
    assert host.names == []
    await use(adapters, "b")
    assert host.names == ["b"]


async def test_a_load_that_is_cancelled_takes_no_slot(host: FakeHost) -> None:
    adapters = Adapters(host, 1)
    task = asyncio.create_task(use(adapters, "a"))
    await asyncio.sleep(0)
    assert host.names == ["a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert host.names == []


async def test_a_new_version_is_there_before_the_one_in_use_goes(host: FakeHost) -> None:
    adapters = Adapters(host, 2)
    first = await adapters.load_version("1", FOLDER)
    with adapters.use(first):
        second = await adapters.load_version("2", FOLDER)
        adapters.release_version(first)
        waiting = asyncio.create_task(adapters.load_version("3", FOLDER))
        await turn()
        assert not waiting.done() and host.names == ["1", "2"]
    third = await waiting
    adapters.release_version(second)
    assert host.names == ["2", "3"]
    await adapters.load_version("4", FOLDER)
    adapters.release_version(third)
    assert host.names == ["3", "4"]


async def test_the_same_version_again_is_loaded_again(host: FakeHost) -> None:
    adapters = Adapters(host, 2)
    first = await adapters.load_version("1", FOLDER)
    again = await adapters.load_version("1", FOLDER)
    adapters.release_version(first)
    assert again.request.lora_int_id != first.request.lora_int_id


async def test_a_version_that_stays_makes_no_room_and_others_take_turns_in_the_slots_that_are_left(
    host: FakeHost,
) -> None:
    adapters = Adapters(host, 3)
    stays = await adapters.load_version("job a", FOLDER)
    await adapters.load_version("job b", FOLDER)
    for name in ("x", "y"):
        await use(adapters, name)
    assert host.names == ["job a", "job b", "y"]
    adapters.release_version(stays)
    for name in ("x", "y"):
        await use(adapters, name)
    assert host.names == ["job b", "y", "x"]
