"""GPU lease: engines and learner are never awake together, even if one of them fails."""

from __future__ import annotations

import asyncio

import pytest

from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.errors import LearnerFailed


class Device:
    """What engines and learner share; a second one awake is a mistake."""

    def __init__(self) -> None:
        self.awake = ["learner"]
        self.log: list[str] = []

    async def change(self, what: str, who: str) -> None:
        await asyncio.sleep(0)
        self.log.append(f"{who} {what}")
        if what == "wake":
            self.awake.append(who)
        else:
            self.awake.remove(who)
        assert len(self.awake) < 2


class Part:
    def __init__(self, device: Device, who: str) -> None:
        self._device = device
        self._who = who
        self.fails_in: str | None = None
        self.discards = False

    async def offload(self, discards: bool = False) -> None:
        self.discards = discards
        await self._do("sleep")

    async def reload(self) -> None:
        await self._do("wake")

    async def _do(self, what: str) -> None:
        if self.fails_in == what:
            raise LearnerFailed("a rank was lost")
        await self._device.change(what, self._who)


def made() -> tuple[Device, Part, GpuLease]:
    device = Device()
    learner = Part(device, "learner")
    return device, learner, GpuLease(Part(device, "engines"), learner)


async def test_one_sleeps_before_the_other_wakes_up() -> None:
    device, _, lease = made()
    await lease.give_to_learner()
    assert device.log == []  # it has the first lease
    await asyncio.gather(lease.give_to_engines(), lease.give_to_engines(), lease.give_to_learner())
    assert device.log == ["learner sleep", "engines wake", "engines sleep", "learner wake"]


@pytest.mark.parametrize("updates", [False, True])
async def test_engines_may_discard_weights_only_for_an_update(updates: bool) -> None:
    device = Device()
    engines = Part(device, "engines")
    lease = GpuLease(engines, Part(device, "learner"))
    await lease.give_to_engines()
    await lease.give_to_learner(updates=updates)
    assert engines.discards == updates


async def test_a_new_learner_finds_the_devices_free() -> None:
    device, _, lease = made()
    await lease.give_to_engines()
    await lease.give_to_restarted_learner()
    await lease.give_to_learner()  # its processes are awake as they start
    assert device.log[-1] == "engines sleep"
    assert device.awake == []


@pytest.mark.parametrize("what", ["sleep", "wake"])
async def test_a_learner_lost_in_a_change_is_replaced_and_the_lease_continues(what: str) -> None:
    device, learner, lease = made()
    if what == "wake":
        await lease.give_to_engines()
    learner.fails_in = what
    with pytest.raises(LearnerFailed):
        await (lease.give_to_learner() if what == "wake" else lease.give_to_engines())
    learner.fails_in = None
    device.awake = []  # its processes are gone
    await lease.give_to_restarted_learner()
    device.awake = ["learner"]
    await lease.give_to_engines()
    assert device.awake == ["engines"]
