"""An engine that answers chat requests for one model, or for a base model and its adapters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.adapters import Adapter
from agent_rft.actors.engine.chat.chat_model import ChatModel, Refusal
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.engine.vllm_errors import EngineDied
from agent_rft.actors.runtime.actor_calls import return_errors
from agent_rft.actors.weights.adapter_fit import find_adapter_problem
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.errors import EngineFailed, RftError, UserError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an engine serves: the adapter in `folder`, or the engine's own model if `folder` is None."""

    folder: str | None
    settings: ServeSettings


class DamagedModel(UserError):
    """The folder of one model is damaged. The engine and its other models still work."""


class ChatEngine:
    """Engine for chat requests to the model of `config` and, if `config.lora` is set, to adapters of this model.

    An adapter is loaded by the first request that uses it. The reasoning delimiters come from the model's chat
    template, not from `config`. If an adapter has other delimiters, the length of its reasoning is not limited.
    """

    def __init__(self, config: EngineConfig, settings: ServeSettings) -> None:
        self._config = config
        self._own_model = ServedModel(None, settings)
        self._models: dict[str, ChatModel] = {}
        """Models by folder and settings, the least recently used first."""
        self._load_lock = asyncio.Lock()
        self._engine: Engine | None = None

    async def start(self) -> RftError | None:
        """Load the model, which takes tens of seconds. Return the error if loading fails."""
        return await return_errors(self._start_engine())

    async def _start_engine(self) -> None:
        # The parsers log a traceback for each malformed call, which is the model's error and not ours.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        own = None
        try:
            own = self._load_chat_model(self._own_model)
        except UserError:
            if self._config.lora is None:
                raise  # with LoRA, the adapters may have a chat template instead
        self._delimiters = None if own is None else own.reasoning_delimiters
        self._engine = Engine(replace(self._config, reasoning_delimiters=self._delimiters))
        await self._engine.start()
        if own is not None:
            own.connect(self._engine.async_llm_client, self._delimiters)
            self._models[repr(self._own_model)] = own

    async def chat(
        self, body: Mapping[str, Any], model: ServedModel | None = None
    ) -> dict[str, Any] | Refusal | RftError:
        """Return the response to a request without `stream`. Without `model`, the engine's own model answers."""
        return await return_errors(self._chat(body, model or self._own_model))

    async def _chat(self, body: Mapping[str, Any], model: ServedModel) -> dict[str, Any] | Refusal:
        async with self._prepare(model) as (served, lora):
            return await served.chat(body, lora)

    async def stream(
        self, body: Mapping[str, Any], model: ServedModel | None = None
    ) -> AsyncIterator[dict[str, Any] | Refusal | RftError]:
        """Yield the chunks of a response. If the request fails, the last item is a Refusal or an error."""
        try:
            async with (
                self._prepare(model or self._own_model) as (served, lora),
                aclosing(served.stream(body, lora)) as chunks,
            ):
                async for chunk in chunks:
                    yield chunk
        except RftError as error:
            yield error

    @property
    def has_died(self) -> bool:
        """Whether the engine has started and then died."""
        return self._engine is not None and bool(self._engine.async_llm_client.errored)

    async def shutdown(self) -> None:
        self._models.clear()  # releases the engine's client
        if self._engine is not None:
            self._engine.shutdown()

    # -- models --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _prepare(self, model: ServedModel) -> AsyncIterator[tuple[ChatModel, Any | None]]:
        """Context manager that yields the model and its adapter's LoRARequest, and keeps the adapter loaded."""
        assert self._engine is not None
        served = await self._get_chat_model(model)
        if model.folder is None:
            yield served, None
            return
        adapter = await self._load_adapter(self._engine, Path(model.folder))
        with self._engine.adapters.use(adapter) as lora:
            yield served, lora

    async def _get_chat_model(self, model: ServedModel) -> ChatModel:
        """Return the ChatModel of a served model. Load the ChatModel if it is not in the cache."""
        async with self._load_lock:
            found = self._models.pop(repr(model), None)
            if found is None:
                found = await asyncio.to_thread(self._load_chat_model, model)
                assert self._engine is not None
                found.connect(self._engine.async_llm_client, self._delimiters)
            self._models[repr(model)] = found
            if len(self._models) > 1 + self._config.adapter_slots:
                del self._models[next(iter(self._models))]
            return found

    def _load_chat_model(self, model: ServedModel) -> ChatModel:
        folder = model.folder or self._config.model
        try:
            return ChatModel(Path(folder), model.settings, self._config.context_length)
        except (OSError, ValueError) as error:
            raise _damaged_folder_error(folder, "the tokenizer cannot be read", error) from None

    async def _load_adapter(self, engine: Engine, folder: Path) -> Adapter:
        try:
            if (why := await asyncio.to_thread(find_adapter_problem, folder, Path(self._config.model))) is not None:
                raise ValueError(why)
            return await engine.adapters.load(str(folder), folder)
        except EngineDied as error:
            raise EngineFailed("the engine died") from error
        except Exception as error:  # noqa: BLE001 - any class: vLLM's process rejected the adapter
            raise _damaged_folder_error(
                str(folder), "the adapter is damaged or was trained on another base model", error
            ) from None


def _damaged_folder_error(folder: str, why: str, error: Exception) -> DamagedModel:
    return DamagedModel(f"{folder}: {why}: {type(error).__name__}: {error}", public_message=why)
