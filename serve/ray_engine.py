"""A served engine in a Ray actor of its own, with the cores or the GPU that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from transformers import AutoConfig

from actors.chat_engine import ChatEngine, Refusal
from actors.engine import EngineConfig
from actors.outcome import ask
from cluster.model_folder import max_context
from cluster.model_registry import ModelRecord
from cluster.preflight import MAX_AUTO_CONTEXT
from trainer.errors import EngineFailed, RftError, UserError

LOST = "a served model"


@dataclass(frozen=True, slots=True)
class EngineResources:
    """Of each engine. `dtype` as in training: float32 on CPUs, bfloat16 on GPUs."""

    cores: int = 1
    gpus: int = 0
    max_num_seqs: int = 64

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.gpus else "float32"


class RayEngine:
    """serve.model_server.ServedEngine over a ChatEngine elsewhere in the cluster."""

    def __init__(self, record: ModelRecord, resources: EngineResources) -> None:
        self._record = record
        self._resources = resources
        self._actor: Any = None

    async def start(self) -> None:
        """
        Raises:
            RftError: why there is no engine.
        """
        config = await asyncio.to_thread(self._config)
        options = {"num_cpus": self._resources.cores, "num_gpus": self._resources.gpus, "max_concurrency": 10_000}
        self._actor = ray.remote(ChatEngine).options(**options).remote(config, self._record.settings)
        await ask(self._actor.start.remote(), LOST, EngineFailed)

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        answer: dict[str, Any] | Refusal = await ask(self._actor.chat.remote(dict(body)), LOST, EngineFailed)
        return answer

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any] | Refusal]:
        chunks = self._actor.stream.options(num_returns="streaming").remote(dict(body))
        ended = False
        try:
            async for ref in chunks:
                chunk = await ref
                if isinstance(chunk, RftError):
                    raise chunk
                yield chunk
            ended = True
        except RayTaskError:  # a bug
            raise
        except RayError as error:
            raise EngineFailed(f"the process of {LOST} was lost ({type(error).__name__})") from None
        finally:
            if not ended and ray.is_initialized():
                ray.cancel(chunks)

    async def stop(self) -> None:
        """The engine ends its processes itself; its actor is killed also where it does not answer."""
        if self._actor is None:
            return
        try:
            await ask(self._actor.shutdown.remote(), LOST, EngineFailed)
        finally:
            ray.kill(self._actor)

    def _config(self) -> EngineConfig:
        folder = self._record.folder
        try:
            limit = max_context(AutoConfig.from_pretrained(folder, trust_remote_code=False))
        except (OSError, ValueError) as error:
            raise UserError(f"{Path(folder).name} is no model that can be read") from error
        auto = MAX_AUTO_CONTEXT if limit is None else min(limit, MAX_AUTO_CONTEXT)
        return EngineConfig(
            model=folder,
            dtype=self._resources.dtype,
            context_length=self._record.settings.context_length or auto,
            max_num_seqs=self._resources.max_num_seqs,
            seed=0,
            gpus=self._resources.gpus,
        )
