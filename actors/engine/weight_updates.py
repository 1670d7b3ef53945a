"""Weight updates of an engine: all weights, which pauses the engine, or an adapter, which later requests use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.adapters import Adapter, Adapters, EngineTenant
from agent_rft.actors.engine.request_slots import RequestSlots
from agent_rft.actors.engine.vllm_client import VllmClient
from agent_rft.actors.engine.vllm_errors import as_engine_failed
from agent_rft.actors.engine.vllm_internals import pause
from agent_rft.actors.weights.shared_memory import create_shared_folder
from agent_rft.trainer.learner.adapter import AdapterConfig, write_adapter
from agent_rft.trainer.learner.weight_buckets import LoadedWeights, num_bytes


class WeightUpdates:
    """Loads weights into the engine of `client`, which runs the requests in `slots`.

    `tenants` are the engine's tenants by job; updates change their version and adapter. Adapters are written to `shm`
    while they are loaded. `not_updating` is cleared while no request may start.
    """

    def __init__(
        self,
        client: VllmClient,
        adapters: Adapters,
        slots: RequestSlots,
        tenants: Mapping[str, EngineTenant],
        not_updating: asyncio.Event,
        shm: Path,
    ) -> None:
        self.paused_s = 0.0
        """Seconds since the start for which updates paused the engine."""
        self._client = client
        self._adapters = adapters
        self._slots = slots
        self._tenants = tenants
        self._not_updating = not_updating
        self._shm = shm

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the weight transport.

        `info` has the fields of the transport's init info, empty for shared memory.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        with as_engine_failed("connect to the learner"):
            request = WeightTransferInitRequest(init_info=info)
            await self._client.run_while_alive(self._client.llm.init_weight_transfer_engine(request))

    async def load_staged(self, tenant: EngineTenant, version: int, base: str) -> LoadedWeights:
        """Load all staged buckets of a tenant as `version`; `base` is the base model of its adapters."""
        try:
            if tenant.lora is not None:
                return await self._switch_adapter(tenant, version, tenant.lora, base)
            updates = [
                {"path": str(file.path), "tensors": [list(tensor) for tensor in layout], "checksum": checksum}
                for file, layout, checksum in tenant.staged
            ]
            return await self.load_weights(version, updates)
        finally:
            tenant.unstage()

    async def load_weights(self, version: int, updates: Sequence[dict[str, Any]]) -> LoadedWeights:
        """Pause, load each of `updates` as `version`, and resume; then return what the workers loaded."""
        started = time.monotonic()
        self._not_updating.clear()
        try:
            with as_engine_failed("load weights"):
                await self._client.run_while_alive(self._load_all_weights(version, updates))
        finally:
            paused_s = time.monotonic() - started
            self.paused_s += paused_s
            self._not_updating.set()
        with as_engine_failed("report which weights it loaded"):
            reports = await self._client.run_while_alive(self._client.llm.collective_rpc("loaded_weights"))
        missed = {name for _, names in reports for name in names}
        return LoadedWeights(paused_s, tuple(number for number, _ in reports), tuple(sorted(missed)))

    async def _load_all_weights(self, version: int, updates: Sequence[dict[str, Any]]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # Restart waiting requests after the update: with their old salt they could use cache blocks of older weights.
        await self._client.llm.abort(self._slots.waiting_ids)
        # Keep the cache for requests in flight; later requests cannot hit it, because their salt differs.
        await pause(self._client.llm)
        await self._client.llm.start_weight_update()
        for update in updates:
            await self._client.llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        await self._client.llm.finish_weight_update(weight_version=str(version))
        self._tenants[""].version = version
        await self._client.llm.resume_generation()

    async def _switch_adapter(
        self, tenant: EngineTenant, version: int, lora: AdapterConfig, base: str
    ) -> LoadedWeights:
        """Load the staged tensors as an adapter, which all later requests use."""
        from agent_rft.actors.weights.weight_bucket import map_bytes, split_tensors

        tensors = {
            name: tensor
            for file, layout, _ in tenant.staged
            for name, tensor in split_tensors(map_bytes(file.path, num_bytes(layout)), layout)
        }
        layouts = [layout for _, layout, _ in tenant.staged]
        with as_engine_failed("load an adapter"), create_shared_folder(self._shm) as folder:
            await asyncio.to_thread(write_adapter, folder, tensors, lora.to_peft_config(base))
            adapter = await self.load_adapter(tenant, version, folder)
            call = self._client.llm.collective_rpc("adapter_checksum", args=(str(folder), layouts))
            return LoadedWeights(adapter.load_s, tuple(await self._client.run_while_alive(call)))

    async def load_adapter(self, tenant: EngineTenant, version: int, folder: Path) -> Adapter:
        """Load the adapter in `folder` as `version` of a tenant, in place of its previous adapter."""
        adapter = await self._adapters.load_version(f"{tenant.job} version {version}".lstrip(), folder)
        previous_adapter, tenant.adapter, tenant.version = tenant.adapter, adapter, version
        if previous_adapter is not None:
            self._adapters.release(previous_adapter)
        if self._tenants.get(tenant.job) is not tenant:
            self.release_adapter(tenant)  # closed during the load
        return adapter

    def release_adapter(self, tenant: EngineTenant) -> None:
        """Release a tenant's adapter, if it has one, after the last request that uses it."""
        if tenant.adapter is not None:
            self._adapters.release(tenant.adapter)
            tenant.adapter = None
