"""Client of an engine's vLLM processes: starts the processes, and detects in each call whether they have died."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from agent_rft.actors.engine.vllm_errors import EngineDied
from agent_rft.actors.engine.vllm_internals import create_client, shut_down

Result = TypeVar("Result")

DISCARD_WEIGHTS, KEEP_WEIGHTS, ONLY_PAUSE = 2, 1, 0
"""vLLM's sleep levels: 2 discards weights and cache; 1 moves the weights to host memory and discards the cache; 0 only
pauses the engine. At level 2, vLLM keeps the model's buffers, such as rotary caches, in host memory."""
LIFE_POLL_S = 0.5
SHUTDOWN_S = 5.0
"""Seconds to wait until vLLM's processes end. After this time, the processes are killed."""


class VllmClient:
    """Client of one engine's vLLM processes, through AsyncLLM. If `on_gpu` is False, the engine runs on CPUs."""

    def __init__(self, on_gpu: bool) -> None:
        self.llm: Any = None
        """The AsyncLLM; None before `connect` and after `close`."""
        self._on_gpu = on_gpu

    def connect(self, config: Any, log_stats: bool) -> None:
        """Start vLLM's processes with the VllmConfig `config`."""
        self.llm = create_client(config, log_stats)

    async def offload(self, discards: bool) -> None:
        """Move the weights to host memory, to free GPU memory; on CPUs, only pause the engine.

        If `discards`, keep only what a weight update does not replace.
        """
        level = DISCARD_WEIGHTS if discards else KEEP_WEIGHTS
        if discards:
            await self.run_while_alive(self.llm.collective_rpc("keep_unloaded_parameters"))
        await self.run_while_alive(self.llm.sleep(level=level if self._on_gpu else ONLY_PAUSE))

    async def reload(self) -> None:
        """Allocate the GPU memory, restore what `offload` kept, and resume; on CPUs, only resume."""
        await self.run_while_alive(self.llm.wake_up(None if self._on_gpu else ["scheduling"]))

    async def add_lora(self, request: Any) -> bool:
        """Load the adapter of a LoRARequest, and check that the model has all modules that the adapter changes.

        Raises:
            ValueError: The model lacks a module that the adapter changes. vLLM alone would ignore this module.
        """
        added: bool = await self.run_while_alive(self.llm.add_lora(request))
        call = self.llm.collective_rpc("missing_modules", args=(request.lora_int_id,))
        if missing := sorted({name for names in await self.run_while_alive(call) for name in names}):
            raise ValueError(f"the adapter changes modules that the model does not have: {', '.join(missing[:3])}")
        return added

    async def remove_lora(self, lora_id: int) -> bool:
        return await self.run_while_alive(self.llm.remove_lora(lora_id))

    async def run_while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` and return its result; raise EngineDied if the engine dies first.

        When an engine dies, vLLM ends the requests but leaves all other calls pending forever.
        """
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=LIFE_POLL_S))[0]:
                if self.llm.errored:
                    raise EngineDied
            return task.result()
        finally:
            task.cancel()

    def close(self) -> None:
        """Stop vLLM's processes and close the connections to them; a second call does nothing."""
        if self.llm is not None:
            shut_down(self.llm, SHUTDOWN_S)
            self.llm = None
