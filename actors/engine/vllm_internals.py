"""All uses of undocumented parts of vLLM.

The docstring of each function names the vLLM objects that the function uses, the reason, and the change in vLLM that
would make the function unnecessary. vLLM is imported only inside functions, because an engine must set vLLM's
environment variables before the first import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

CPU_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Executor that runs the model in the engine core's process, given as a class path.

vLLM's default on CPUs is a separate worker process, and polling this process takes half a CPU core. vLLM also has the
short name "uni" for this executor, but rejects the name on CPUs. The number of threads is OMP_NUM_THREADS, which Ray
sets.

Remove when: vLLM accepts "uni" on CPUs.
"""

# -- processes ---------------------------------------------------------------------------------------------------------


def register_transport(name: str, module: str, class_name: str) -> None:
    """Register a weight transport under `name`, unless this process has registered it already.

    Uses: `WeightTransferEngineFactory._registry`.
    Why: register_engine raises for a registered name, and vLLM may load a plugin twice in a process.
    Remove when: the factory lists its registered names, or register_engine accepts the same class twice.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(name, module, class_name)


def allow_matrix_tiles() -> None:
    """Let this process use its CPU's matrix tiles (AMX), if the CPU has them.

    Uses: `torch.cpu._is_amx_tile_supported` and `torch.cpu._init_amx`.
    Why: Linux lets a process use the tiles only after the process has requested them. vLLM's attention in bfloat16 uses
    the tiles without a request. The process then ends with an illegal instruction, unless another library has requested
    the tiles.
    Remove when: vLLM requests the tiles before it uses them.
    """
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def create_client(config: Any, log_stats: bool) -> Any:
    """Start the processes of an engine, and return the AsyncLLM that is connected to them.

    If this function raises, no process, socket or ZeroMQ context stays open.

    Uses: `MPClient.resources`. After an error, the MPClient is found in the traceback, in the frames of
    AsyncLLM.__init__ and MPClient.__init__.
    Why: MPClient creates a ZeroMQ context and never closes it. After an error, no caller has a reference to the
    context. The garbage collector closes the context later, and emits a warning in unrelated code.
    Remove when: MPClient closes its context in BackgroundResources.__call__.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_vllm_config(config, disable_log_stats=not log_stats)
    except BaseException as error:  # including a signal
        _close_after(error)
        raise


def _close_after(error: BaseException) -> None:
    """Close the resources that a failed constructor left open, using the frames in the traceback of `error`."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import MPClient

    for frame, _ in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, AsyncLLM) and hasattr(owner, "engine_core"):
            shut_down(owner, timeout_s=0)
        elif isinstance(owner, MPClient) and hasattr(owner, "resources"):
            _close_connections(owner.resources)


def shut_down(client: Any, timeout_s: float) -> None:
    """Stop the processes of an AsyncLLM within `timeout_s` seconds and close its connections to them.

    Call this function in the thread of the client's event loop, because ZeroMQ's sockets belong to that thread. A
    second call does nothing.

    Uses: `AsyncLLM.engine_core` and `MPClient.resources`.
    Why: AsyncLLM.shutdown closes the sockets, but not their ZeroMQ context.
    Remove when: MPClient closes its context in BackgroundResources.__call__.
    """
    client.shutdown(timeout=timeout_s)
    _close_connections(client.engine_core.resources)


def _close_connections(resources: Any) -> None:
    """Close the sockets and the ZeroMQ context of an MPClient's BackgroundResources.

    The sockets are closed first, because the context waits for open sockets. If the engine's core died, a vLLM thread
    may not have closed the sockets yet. The context's own method `destroy` does not close the sockets, because they
    belong to a second, asyncio context object.
    """
    for held in list(vars(resources).values()):
        if isinstance(held, zmq.Socket):
            held.close(linger=0)
    resources.ctx.destroy(linger=0)


# -- requests and models -----------------------------------------------------------------------------------------------


def make_tokens_request(token_ids: list[int], cache_salt: str) -> Any:
    """Return the argument of AsyncLLM.generate for a prompt of token ids.

    Uses: `vllm.inputs.engine.tokens_input`.
    Why: the documented TokensPrompt would pass through AsyncLLM's renderer, which is not needed for token ids.
    Remove when: AsyncLLM accepts a TokensPrompt without rendering it.
    """
    from vllm.inputs.engine import tokens_input

    return tokens_input(token_ids, cache_salt=cache_salt)


async def pause(client: Any) -> None:
    """Pause sampling on an AsyncLLM, but keep its requests in flight and its key-value cache.

    Uses: `AsyncLLM.engine_core.pause_scheduler_async`.
    Why: AsyncLLM.pause_generation also sleeps for 20 ms to wait for the last outputs.
    Remove when: AsyncLLM.pause_generation does not sleep.
    """
    await client.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)


def list_prefilling_ids(client: Any) -> list[str]:
    """Return the ids of an AsyncLLM's requests that have not returned a token yet.

    Uses: `AsyncLLM.output_processor`, and the `external_req_id` and `is_prefilling` of its `request_states`.
    Why: a weight update must restart these requests. Their prompts may be cached with the old weights, but all of their
    tokens would be sampled with the new weights.
    Remove when: AsyncLLM.pause_generation can restart requests, or reports the weight version of their prompts.
    """
    states = client.output_processor.request_states.values()
    return [state.external_req_id for state in states if state.is_prefilling]


def supports_adapters(architecture: str) -> bool:
    """Return whether vLLM supports LoRA adapters on models of the transformers class named `architecture`.

    Returns True if vLLM does not have the class, or if a package that vision models need is missing.

    Uses: the registered models of `ModelRegistry`, and `supports_lora` of `vllm.model_executor.models.interfaces`.
    Why: an engine rejects adapters only once it is running, and the job check must not start an engine.
    Remove when: ModelRegistry reports LoRA support for the name of a class.
    """
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.interfaces import supports_lora

    model = ModelRegistry.models.get(architecture)
    try:
        return model is None or bool(supports_lora(model.load_model_cls()))
    except ImportError:
        return True


# -- chats -------------------------------------------------------------------------------------------------------------


def create_chat_serving(client: Any, common: dict[str, Any], parsers: dict[str, Any]) -> Any:
    """Return vLLM's serving layer for chat completions on an AsyncLLM.

    Requests without a model name use the base model. `serve_adapter` adds names of adapters.

    Args:
        client: The AsyncLLM.
        common: Options for both the renderer and the serving layer.
        parsers: Names of the tool parser and the reasoning parser, and whether tool calls are parsed.

    Uses: `OpenAIServingChat`, `OpenAIServingModels`, `BaseModelPath` and `OnlineRenderer`.
    Why: vLLM documents its HTTP server only, and our engines receive chats through Ray.
    Remove when: vLLM documents chat completions of an AsyncLLM without an HTTP server.
    """
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.renderers.online_renderer import OnlineRenderer

    # For gpt-oss, vLLM would apply the structure of the complete turn to its final message.
    is_harmony = client.model_config.hf_config.model_type == "gpt_oss"
    return OpenAIServingChat(
        client,
        OpenAIServingModels(client, [BaseModelPath(name="model", model_path="")]),
        "assistant",
        online_renderer=OnlineRenderer(
            client.model_config, client.renderer, **common, **({} if is_harmony else parsers)
        ),
        enable_prompt_tokens_details=True,
        **common,
        **parsers,
    )


def serve_adapter(serving: Any, lora: Any) -> None:
    """Make an adapter available under its name to requests of a serving layer. `lora` is the adapter's LoRARequest.

    Uses: `OpenAIServingModels.lora_requests`.
    Why: load_lora_adapter would load the adapter again under another id.
    Remove when: OpenAIServingModels accepts a loaded LoRARequest.
    """
    serving.models.lora_requests[lora.lora_name] = lora


def chat_request_class() -> type[Any]:
    """Return the class of chat requests that vLLM's serving layer, tool parsers and reasoning parsers accept.

    Uses: `vllm.entrypoints.openai.chat_completion.protocol.ChatCompletionRequest`.
    Why: the documentation of parser plugins names the class but not the module. The class has been moved to another
    module before.
    Remove when: the class can be imported from a documented module.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request_class: type[Any] = ChatCompletionRequest
    return request_class


def to_error_fields(raised: Exception) -> dict[str, Any]:
    """Return the fields of the error response for an exception of the serving layer: message, code and param.

    Uses: `vllm.entrypoints.serve.create_error_response`.
    Why: the serving layer raises many exception classes, and only vLLM's HTTP server converts them to error responses.
    Remove when: the serving layer returns an error response instead of raising an exception.
    """
    from vllm.entrypoints.serve import create_error_response

    fields: dict[str, Any] = create_error_response(raised).error.model_dump()
    return fields


def find_error(answer: Any) -> dict[str, Any] | None:
    """Return the fields of an error response, like `to_error_fields`; None if `answer` is not an error.

    Uses: `vllm.entrypoints.serve.engine.protocol.ErrorResponse`.
    Why: the serving layer returns an ErrorResponse if it refuses a request.
    Remove when: the serving layer raises an exception for refused requests.
    """
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse

    return answer.error.model_dump() if isinstance(answer, ErrorResponse) else None


def reasoning_parser_base() -> type[Any]:
    """Return vLLM's base class of parsers for reasoning between a start token and an end token.

    Uses: `vllm.reasoning.basic_parsers.BaseThinkingReasoningParser`.
    Why: the documented base class, ReasoningParser, does not parse streams.
    Remove when: `vllm.reasoning` exports the class.
    """
    from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

    base: type[Any] = BaseThinkingReasoningParser
    return base


# -- workers: weights --------------------------------------------------------------------------------------------------


def begin_reload(model: nn.Module) -> None:
    """Prepare a worker's model for new weights, which `load_weights` then loads layer by layer.

    Uses: `initialize_layerwise_reload`, and `moe_kernel` of the layers' `quant_method`.
    Why: CPU workers repack weights, so a plain `load_weights` fails with a shape error. An expert layer's new
    weights are not packed while the layer has a `moe_kernel`.
    Remove when: start_weight_update of vLLM's transport base class starts the reload and clears `moe_kernel`.
    """
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload
    from vllm.platforms import current_platform

    initialize_layerwise_reload(model)
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if current_platform.is_cpu() and method is not None and hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def finish_reload(model: nn.Module, config: Any) -> None:
    """Complete the layers that `begin_reload` prepared; `config` is vLLM's model config.

    Uses: `finalize_layerwise_reload`, and the `quant_method` of `ParallelLMHead`.
    Why: a tied head shares the tensor of the embedding, but on CPUs the head computes with a packed copy of this
    tensor. The reload does not update the copy, because there are no separate weights for the head to load.
    Remove when: finish_weight_update of vLLM's transport base class updates the copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
    from vllm.platforms import current_platform

    finalize_layerwise_reload(model, config)
    if current_platform.is_cpu() and config.hf_text_config.tie_word_embeddings:
        for module in model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


def find_unloaded_layers(model: nn.Module) -> set[str]:
    """Return the names of the layers that no weight has reached since `begin_reload`.

    Call this before `finish_reload`, which gives these layers their previous parameters.

    Uses: `get_layerwise_info`, and `can_load` and `load_numel` of its result.
    Why: sleep level 2 discards all parameters, and an update does not restore those of these layers.
    Remove when: finish_weight_update of vLLM's transport base class reports the layers.
    """
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    layers = ((name, get_layerwise_info(module)) for name, module in model.named_modules())
    return {name for name, info in layers if info.can_load() and not info.load_numel}


def load_when_complete(target: Any, module: nn.Module, name: str, value: Tensor) -> Any:
    """Load `value` into `target` as soon as all values of the layer have arrived.

    `target` is the parameter or buffer `name` of the layer `module`.

    Uses: `make_online_process_loader` and `default_weight_loader`.
    Why: some models copy weights directly into parameters, but these have no storage until the layer is complete.
    Remove when: every vLLM model loads its weights with a `weight_loader`.
    """
    from vllm.model_executor.model_loader.reload.layerwise import make_online_process_loader
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    target.weight_loader = default_weight_loader
    target.weight_loader = make_online_process_loader(module, name)
    return target.weight_loader(target, value)


# -- workers: positions and adapters -----------------------------------------------------------------------------------


def rotary_kernel() -> Callable[..., Any]:
    """Return vLLM's method for rotary position embeddings on CPUs.

    Uses: `RotaryEmbedding.forward_cpu`.
    Why: the method supports only one shape of queries and keys, so it needs a wrapper; see `replace_rotary_kernel`.
    Remove when: the method supports all shapes that vLLM's models pass.
    """
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    kernel: Callable[..., Any] = RotaryEmbedding.forward_cpu
    return kernel


def replace_rotary_kernel(kernel: Callable[..., Any]) -> None:
    """Replace vLLM's CPU kernel for rotary position embeddings. Loaded models keep the old kernel.

    Uses: `RotaryEmbedding.forward_cpu`.
    Why: vLLM's method supports only one shape of queries and keys.
    Remove when: vLLM's method supports all shapes that vLLM's models pass.
    """
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    RotaryEmbedding.forward_cpu = kernel


def cpu_lora_operations() -> type[Any]:
    """Return the class of vLLM's LoRA operations on CPUs, which is the base class of GroupedLora.

    Uses: `vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU`.
    Why: GroupedLora replaces operations that have two problems. These operations copy the adapter's matrices for each
    token, and apply the last slot's adapter to rows without an adapter.
    Remove when: vLLM's operations on CPUs group the rows by adapter.
    """
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    operations: type[Any] = PunicaWrapperCPU
    return operations


def replace_lora_operations(runner: Any, create: Callable[[], Any]) -> None:
    """Replace the LoRA operations of a model runner with objects that `create` returns, one for each part of the model.

    Uses: `lora_manager._adapter_manager`, its `punica_wrapper_mapping`, `modules` and `_get_punica_wrapper`.
    Why: vLLM chooses the operations by platform and has no setting for them.
    Remove when: `cpu_lora_operations` is unnecessary.
    """
    manager = runner.lora_manager._adapter_manager
    for prefix in manager.punica_wrapper_mapping:
        manager.punica_wrapper_mapping[prefix] = create()
    for name, module in manager.modules.items():
        module.set_mapping(manager._get_punica_wrapper(name))


def missing_modules(runner: Any, lora_id: int) -> list[str]:
    """Return the names of modules that a loaded adapter changes but the model does not have.

    Uses: `lora_manager._adapter_manager`, its `modules` and `get_adapter`.
    Why: vLLM ignores such modules without an error.
    Remove when: AsyncLLM.add_lora rejects an adapter that does not fit the model.
    """
    manager = runner.lora_manager._adapter_manager
    return sorted(manager.get_adapter(lora_id).loras.keys() - manager.modules.keys())


# -- workers: experts --------------------------------------------------------------------------------------------------


def watch_routers(model: nn.Module, watcher: Any) -> None:
    """Make the routers of a mixture of experts call `watcher.capture(layer, experts)` when they choose experts.

    Uses: `bind_routed_experts_capturer`.
    Why: vLLM returns the chosen experts only on GPUs.
    Remove when: `enable_return_routed_experts` works on CPUs.

    Raises:
        ValueError: The model has no router that vLLM can watch.
    """
    from vllm.model_executor.layers.fused_moe.routed_experts_capturer import bind_routed_experts_capturer

    bind_routed_experts_capturer(model, watcher)


def find_complete_cache(runner: Any) -> tuple[int, int, int] | None:
    """Return (index, block size in tokens, number of blocks) of a cache that holds all tokens of each request.

    Returns None if every cache drops old tokens.

    Uses: the `kv_cache_config` of the model runner, and `FullAttentionSpec`.
    Why: vLLM returns the chosen experts only on GPUs. `ExpertLog` works on CPUs and needs this cache, because it stores
    the experts by cache slot.
    Remove when: `enable_return_routed_experts` works on CPUs.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    config = runner.kv_cache_config
    for number, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        specs = list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
        if all(isinstance(one, FullAttentionSpec) for one in specs):
            return number, spec.block_size, config.num_blocks
    return None


def iter_running_requests(runner: Any, scheduled: Any, cache: int) -> Iterator[tuple[str, int, int, NDArray[np.int32]]]:
    """Yield the requests that run in a step, in the order of their tokens in the step.

    Yields (request id, number of tokens in this step, number of tokens before this step, cache blocks of the request).
    `cache` is the index of the key-value cache that contains the blocks.

    Uses: the `input_batch` of the model runner, and `SchedulerOutput.num_scheduled_tokens`.
    Why: vLLM returns the chosen experts only on GPUs. On CPUs, `ExpertLog` stores the experts of each token under the
    token's cache slot. It computes the slots from the numbers and blocks that this function yields.
    Remove when: `enable_return_routed_experts` works on CPUs.
    """
    batch = runner.input_batch
    blocks = batch.block_table[cache].get_numpy_array()
    for index, request_id in enumerate(batch.req_ids):
        if count := scheduled.num_scheduled_tokens.get(request_id, 0):
            yield request_id, count, int(batch.num_computed_tokens_cpu[index]), blocks[index]
