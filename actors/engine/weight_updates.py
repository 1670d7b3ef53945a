"""Weight updates of an engine: all weights, for which it pauses, or an adapter, which later requests use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.adapters import Adapter, Adapters, Line
from agent_rft.actors.engine.failures import as_engine_failed
from agent_rft.actors.engine.slots import Slots
from agent_rft.actors.engine.vllm_client import VllmClient
from agent_rft.actors.engine.vllm_internals import pause
from agent_rft.actors.weights.shared_memory import shared_folder
from agent_rft.trainer.learner.adapter import AdapterConfig, write_adapter
from agent_rft.trainer.learner.layout import Loaded, num_bytes


class WeightUpdates:
    """Loads weights into the engine of `client`, which runs the requests in `slots`.

    `lines` are the engine's lines by job, of which it changes the version and the adapter. Adapters are written to
    `shm` for a moment. `not_updating` is cleared while no request may start.
    """

    def __init__(
        self,
        client: VllmClient,
        adapters: Adapters,
        slots: Slots,
        lines: Mapping[str, Line],
        not_updating: asyncio.Event,
        shm: Path,
    ) -> None:
        self.paused_s = 0.0
        """Seconds since the start for which updates paused the engine."""
        self._client = client
        self._adapters = adapters
        self._slots = slots
        self._lines = lines
        self._not_updating = not_updating
        self._shm = shm

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the weight transport: `info` has the fields of the transport's init info, empty for shared memory."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        with as_engine_failed("connect to the learner"):
            request = WeightTransferInitRequest(init_info=info)
            await self._client.while_alive(self._client.llm.init_weight_transfer_engine(request))

    async def swap(self, line: Line, version: int, base: str) -> Loaded:
        """Load all staged buckets of `line` as `version`; `base` is the model of its adapters."""
        try:
            if line.lora is not None:
                return await self._adapt(line, version, line.lora, base)
            updates = [
                {"path": str(file.path), "tensors": [list(tensor) for tensor in layout], "checksum": checksum}
                for file, layout, checksum in line.staged
            ]
            return await self.update(version, updates)
        finally:
            line.unstage()

    async def update(self, version: int, updates: Sequence[dict[str, Any]]) -> Loaded:
        """Pause, load each of `updates` as `version`, and resume; then ask the workers what they loaded."""
        started = time.monotonic()
        self._not_updating.clear()
        try:
            with as_engine_failed("load weights"):
                await self._client.while_alive(self._update(version, updates))
        finally:
            paused_s = time.monotonic() - started
            self.paused_s += paused_s
            self._not_updating.set()
        with as_engine_failed("say which weights it loaded"):
            reports = await self._client.while_alive(self._client.llm.collective_rpc("loaded_weights"))
        missed = {name for _, names in reports for name in names}
        return Loaded(paused_s, tuple(number for number, _ in reports), tuple(sorted(missed)))

    async def _update(self, version: int, updates: Sequence[dict[str, Any]]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # Waiting requests are restarted after the update: with their old salt they could use blocks of older weights.
        await self._client.llm.abort(self._slots.waiting)
        # The cache is kept for requests in flight; later ones cannot hit it, because their salt differs.
        await pause(self._client.llm)
        await self._client.llm.start_weight_update()
        for update in updates:
            await self._client.llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        await self._client.llm.finish_weight_update(weight_version=str(version))
        self._lines[""].version = version
        await self._client.llm.resume_generation()

    async def _adapt(self, line: Line, version: int, lora: AdapterConfig, base: str) -> Loaded:
        """Load the staged tensors as an adapter, which all later requests use."""
        from agent_rft.actors.weights.bucket import bytes_of, tensors_in

        tensors = {
            name: tensor
            for file, layout, _ in line.staged
            for name, tensor in tensors_in(bytes_of(file.path, num_bytes(layout)), layout)
        }
        layouts = [layout for _, layout, _ in line.staged]
        with as_engine_failed("load an adapter"), shared_folder(self._shm) as folder:
            await asyncio.to_thread(write_adapter, folder, tensors, lora.config(base))
            adapter = await self.load_adapter(line, version, folder)
            call = self._client.llm.collective_rpc("adapter_checksum", args=(str(folder), layouts))
            return Loaded(adapter.load_s, tuple(await self._client.while_alive(call)))

    async def load_adapter(self, line: Line, version: int, folder: Path) -> Adapter:
        """Load the adapter in `folder` as `version` of a line, in place of its previous one."""
        adapter = await self._adapters.update(f"{line.job} version {version}".lstrip(), folder)
        before, line.adapter, line.version = line.adapter, adapter, version
        if before is not None:
            self._adapters.give_up(before)
        if self._lines.get(line.job) is not line:
            self.release_adapter(line)  # it was closed meanwhile
        return adapter

    def release_adapter(self, line: Line) -> None:
        """Release a line's adapter, if it has one, after the last request that uses it."""
        if line.adapter is not None:
            self._adapters.give_up(line.adapter)
            line.adapter = None
