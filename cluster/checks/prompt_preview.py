"""Preview of the first training row as the model reads it: a prompt, or a conversation with trained parts marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from agent_rft.chat.conversation import SupervisedSample, split_conversation
from agent_rft.chat.dialect import Dialect
from agent_rft.chat.renderer import Renderer
from agent_rft.cluster.checks.check_job import apply_model_card
from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.checks.model_checks.tool_call_check import check_calls_in_rows
from agent_rft.cluster.checks.row_checks import list_rows, read_files
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.errors import UserError
from agent_rft.spec.job import JobSpec


@dataclass(frozen=True, slots=True)
class PromptPreview:
    """Text of one row: its prompt or, in a supervised job, its conversation.

    Each sample in `samples` is a sequence of pairs (text, whether the model is trained on the text). A reinforcement
    job has one sample: the prompt, on which the model is not trained.
    """

    dialect: Dialect
    stop_tokens: tuple[str, ...]
    samples: tuple[tuple[tuple[str, bool], ...], ...]
    num_tokens: int


def preview_prompt(job: JobSpec, folder: ModelFolder) -> PromptPreview | None:
    """Return the first training row as the model in `folder` reads it; None if the row or the model cannot be read.

    Raises:
        UserError: The template cannot render the row.
    """
    job = apply_model_card(job, folder)
    files, _ = read_files(job)
    model, _ = read_model(job, folder, trains=False)
    if model is None or not files["training_file"]:
        return None
    task, renderer = files["training_file"][0], check_calls_in_rows(model, job, list_rows(job, files))[0].renderer
    if job.method.type == "supervised":
        try:
            samples = split_conversation(renderer, task.messages, task.tools)
        except ValueError as error:
            raise UserError(f"cannot render the first row: {error}; fix the row or the chat template") from None
    else:
        prompt = renderer.render_prompt(task.messages, task.tools)
        samples = [SupervisedSample(prompt, [False] * len(prompt))]
    num_tokens = sum(len(sample.token_ids) for sample in samples)
    texts = tuple(_split_by_trained(renderer, sample) for sample in samples)
    return PromptPreview(renderer.dialect, tuple(renderer.stop_tokens.values()), texts, num_tokens)


def _split_by_trained(renderer: Renderer, sample: SupervisedSample) -> tuple[tuple[str, bool], ...]:
    """Split a sample's text into pairs (text, is trained)."""
    tokens: Sequence[tuple[int, bool]] = list(zip(sample.token_ids, sample.mask, strict=True))
    return tuple(
        (renderer.tokenizer.decode([token for token, _ in group], skip_special_tokens=False), trained)
        for trained, group in groupby(tokens, key=lambda pair: pair[1])
    )
