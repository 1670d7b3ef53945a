"""Command `agent-rft models merge`: merges a job's LoRA adapter into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_rft.actors.runtime.process_setup import fast_imports


def merge_command(
    adapter: Annotated[Path, typer.Argument(help="checkpoint of a job with `lora`, or another PEFT folder")],
    out: Annotated[Path, typer.Argument(help="new folder for the merged model")],
) -> None:
    """Merge a LoRA adapter into its base model and write the full model. Loading it requires no LoRA support."""
    from agent_rft.cluster.planning.model_folder import find_base
    from agent_rft.errors import UserError
    from agent_rft.trainer.learner.adapter import AdapterFolder

    found = AdapterFolder.read(adapter)
    if found is None:
        raise UserError(
            f"{adapter} has no adapter_config.json: give the folder of an adapter; a full model needs no merging"
        )
    base, problem = find_base(found)
    if base is None or problem is not None:
        raise UserError(str(problem))
    with fast_imports():
        from agent_rft.actors.weights.adapter_merge import merge_adapter
    try:
        merge_adapter(found, base, out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error
    typer.echo(f"{out}: {adapter} merged into {base}")
