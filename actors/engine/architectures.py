"""What vLLM's class of a model can do, asked without starting an engine."""

from __future__ import annotations


def has_adapters(architecture: str) -> bool:
    """Whether vLLM can run adapters on a model of this class, by transformers' name.

    True if it cannot be asked: vLLM does not know the class, or lacks a package that models which see need.
    """
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.interfaces import supports_lora

    model = ModelRegistry.models.get(architecture)
    try:
        return model is None or bool(supports_lora(model.load_model_cls()))
    except ImportError:
        return True
