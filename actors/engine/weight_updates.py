"""Weight updates of an engine. An update of all weights pauses the engine; an update of an adapter does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.adapters import Adapter, Adapters, EngineTenant
from agent_rft.actors.engine.vllm_client import VllmClient
from agent_rft.actors.engine.vllm_errors import as_engine_failed
from agent_rft.actors.engine.vllm_internals import list_prefilling_ids, pause
from agent_rft.actors.weights.shared_memory import create_shared_folder
from agent_rft.trainer.learner.adapter import AdapterConfig, write_adapter
from agent_rft.trainer.learner.weight_buckets import WeightLoadResult, num_bytes


class WeightUpdates:
    """Loads new weights into the engine of `client`.

    `tenants` are the engine's tenants by job; an update changes the version and the adapter of a tenant. vLLM loads new
    adapters from files in the folder `shm`. Requests may start only while the event `not_updating` is set.
    """

    def __init__(
        self,
        client: VllmClient,
        adapters: Adapters,
        tenants: Mapping[str, EngineTenant],
        not_updating: asyncio.Event,
        shm: Path,
    ) -> None:
        self.paused_s = 0.0
        """Total time, in seconds, for which weight updates have paused the engine."""
        self._client = client
        self._adapters = adapters
        self._tenants = tenants
        self._not_updating = not_updating
        self._shm = shm

    async def init_transport(self, info: dict[str, Any]) -> None:
        """Connect the engine to the learner's weight transport.

        `info` contains `address`, `rank` and `size`, or is empty for shared memory.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        with as_engine_failed("connect to the learner"):
            request = WeightTransferInitRequest(init_info=info)
            await self._client.run_while_alive(self._client.llm.init_weight_transfer_engine(request))

    async def load_staged(self, tenant: EngineTenant, version: int, base: str) -> WeightLoadResult:
        """Load all staged buckets of a tenant as policy version `version`, and discard them.

        `base` is the base model of the tenant's adapters.
        """
        try:
            if tenant.lora is not None:
                return await self._switch_adapter(tenant, version, tenant.lora, base)
            updates = [
                {"path": str(file.path), "tensors": [list(tensor) for tensor in layout], "checksum": checksum}
                for file, layout, checksum in tenant.staged_buckets
            ]
            return await self.load_weights(version, updates)
        finally:
            tenant.unstage()

    async def load_weights(self, version: int, updates: Sequence[dict[str, Any]]) -> WeightLoadResult:
        """Pause sampling, load all `updates` as policy version `version`, and resume sampling.

        Each update contains the fields of ShmUpdateInfo. Returns what the workers loaded.
        """
        started = time.monotonic()
        self._not_updating.clear()
        try:
            with as_engine_failed("load weights"):
                await self._client.run_while_alive(self._load_all_weights(version, updates))
        finally:
            paused_s = time.monotonic() - started
            self.paused_s += paused_s
            self._not_updating.set()
        with as_engine_failed("report the loaded weights"):
            reports = await self._client.run_while_alive(self._client.llm.collective_rpc("last_update_report"))
        missed = {name for _, names in reports for name in names}
        return WeightLoadResult(paused_s, tuple(number for number, _ in reports), tuple(sorted(missed)))

    async def _load_all_weights(self, version: int, updates: Sequence[dict[str, Any]]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # Restart requests without a token after the update. Otherwise the new weights could sample all of their tokens,
        # although the cache has their prompts with the old weights.
        await self._client.llm.abort(list_prefilling_ids(self._client.llm))
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
    ) -> WeightLoadResult:
        """Load the staged tensors as an adapter, which all later requests of the tenant use."""
        from agent_rft.actors.weights.weight_bucket import map_bytes, split_tensors

        tensors = {
            name: tensor
            for file, layout, _ in tenant.staged_buckets
            for name, tensor in split_tensors(map_bytes(file.path, num_bytes(layout)), layout)
        }
        layouts = [layout for _, layout, _ in tenant.staged_buckets]
        with as_engine_failed("load an adapter"), create_shared_folder(self._shm) as folder:
            await asyncio.to_thread(write_adapter, folder, tensors, lora.to_peft_config(base))
            adapter = await self.load_adapter(tenant, version, folder)
            call = self._client.llm.collective_rpc("adapter_checksum", args=(str(folder), layouts))
            return WeightLoadResult(adapter.load_s, tuple(await self._client.run_while_alive(call)))

    async def load_adapter(self, tenant: EngineTenant, version: int, folder: Path) -> Adapter:
        """Load the adapter in `folder` as policy version `version` of a tenant, and release the previous adapter."""
        adapter = await self._adapters.load_version(f"{tenant.job} version {version}".lstrip(), folder)
        previous_adapter, tenant.adapter, tenant.version = tenant.adapter, adapter, version
        if previous_adapter is not None:
            self._adapters.release_version(previous_adapter)
        if self._tenants.get(tenant.job) is not tenant:
            self.release_adapter(tenant)  # closed during the load
        return adapter

    def release_adapter(self, tenant: EngineTenant) -> None:
        """Release a tenant's adapter, if there is one; it is removed after its last request has ended."""
        if tenant.adapter is not None:
            self._adapters.release_version(tenant.adapter)
            tenant.adapter = None
