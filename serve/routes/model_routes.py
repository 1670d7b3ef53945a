"""GET and DELETE /models: the available models. A model id may contain `:` and `/` (encoded as %2F)."""

from __future__ import annotations

from fastapi import APIRouter

from agent_rft.serve.http.auth import Reader, Writer, check_may_change
from agent_rft.serve.http.schemas.model_schemas import DeletedModel, ModelBody, ModelList
from agent_rft.serve.stores.model_registry import ModelRegistry, ProtectedModel, UnknownModel
from agent_rft.wire.api_errors import ApiError


def make_router(registry: ModelRegistry) -> APIRouter:
    router = APIRouter(tags=["models"])

    @router.get("/models")
    def list_models(key: Reader) -> ModelList:
        """List all models. As in OpenAI's API, the list is not paginated."""
        return ModelList(data=[ModelBody.model_validate(record) for record in registry.list()])

    @router.get("/models/{model_id:path}")
    def get_model(model_id: str, key: Reader) -> ModelBody:
        """Return a model."""
        try:
            return ModelBody.model_validate(registry.resolve(model_id))
        except UnknownModel as error:
            raise _unknown_model_error(error) from None

    @router.delete("/models/{model_id:path}")
    def delete_model(model_id: str, key: Writer) -> DeletedModel:
        """Delete a tuned model or a checkpoint. A key with the scope `write` can delete only models of its own jobs."""
        try:
            check_may_change(key, registry.resolve(model_id).owner, "model")
            registry.delete(model_id)
        except UnknownModel as error:
            raise _unknown_model_error(error) from None
        except ProtectedModel as error:
            raise ApiError(403, error.message, param="model", code="model_not_deletable") from None
        return DeletedModel(id=model_id)

    return router


def _unknown_model_error(error: UnknownModel) -> ApiError:
    return ApiError(404, error.message, param="model", code="model_not_found")
