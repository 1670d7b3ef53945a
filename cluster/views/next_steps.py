"""Next steps after a run: the best checkpoint, and commands that compare, inspect, evaluate and serve the result."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import UserError
from agent_rft.events import AlarmRaised
from agent_rft.rows.ownership import strip_owner_folder
from agent_rft.trainer.loop.checkpoint import LoopState, best_checkpoint

WORST = 3
FILES = ("test_file", "validation_file", "training_file")
"""Data files of a job, in order of preference for an evaluation."""


def next_steps(run: RunFolder, cli_args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the next steps as pairs of label and text: the path of the best checkpoint, or a shell command.

    Commands that explain alarms come first, because the model may be exploiting its grader. Only the first alarm of
    each rule is included. `cli_args` contains the job file and options from the command line; if it is empty, no
    evaluation is suggested.
    """
    shown = set[str]()
    for event in run.events():
        if isinstance(alarm := event.event, AlarmRaised) and alarm.rule not in shown:
            shown.add(alarm.rule)
            show_trace = [_command("agent-rft", "traces", run.path, "--trace", trace) for trace in alarm.traces[:1]]
            yield f"alarm {alarm.rule}", " && ".join([_command("agent-rft", "explain", alarm.rule), *show_trace])
    try:
        best = best_checkpoint(run.path / "checkpoints")
    except UserError:  # a damaged checkpoint is reported when it is used
        best = None
    if best is not None:
        path, state = best
        job = run.job().get("job", {})
        yield "best checkpoint", f"{path}{_format_validation(job, state)}"
    names = run.rollout_names()
    if {"test-before", "test-after"} <= set(names):
        yield "compare", _command("agent-rft", "compare", f"{run.path}:test-before", f"{run.path}:test-after")
    if (name := _file_to_inspect(names)) is not None:
        yield "worst rows", _command("agent-rft", "traces", run.path, "--name", name, "--worst", WORST)
    if best is not None:
        file = next((name for name in FILES if job.get(name)), None)
        if cli_args and file is not None and job.get("method", {}).get("type") == "reinforcement":
            yield "try it", _command("agent-rft", "eval", *cli_args, "--file", file, "--model", path)
        config = f"aliases: {{tuned: {json.dumps(str(strip_owner_folder(path.resolve())))}}}"  # JSON is YAML
        yield "serve it", f"{_command('echo', config)} > serve.yaml && agent-rft serve --config serve.yaml"


def _format_validation(job: Mapping[str, Any], state: LoopState) -> str:
    """Format a checkpoint's validation result. Supervised jobs record the negative loss as the reward."""
    if state.valid_reward is None or math.isnan(state.valid_reward):
        return ""
    if job.get("method", {}).get("type") == "supervised":
        return f" (validation loss {-state.valid_reward:.4f})"
    missing = "" if state.score is None else state.score.missing_note
    return f" (validation reward {state.valid_reward:.3f}" + (f"; {missing})" if missing else ")")


def _file_to_inspect(names: Sequence[str]) -> str | None:
    """Return the rollout file that is most useful to read, if possible the test after training; None without a file."""
    for prefix in ("test-after", "eval-", "validation-", "step-", "zero-variance-", "test-before"):
        if found := [name for name in names if name.startswith(prefix)]:
            return found[-1]
    return None


def _command(*words: object) -> str:
    return shlex.join(map(str, words))
