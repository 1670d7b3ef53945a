"""Next steps after a run: its best checkpoint, commands to evaluate and serve it, and its worst rows."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import UserError
from agent_rft.events import AlarmRaised
from agent_rft.rows.ownership import strip_owner
from agent_rft.trainer.loop.checkpoint import best_checkpoint

WORST = 3
FILES = ("test_file", "validation_file", "training_file")
"""Data files of a job, in order of preference for an evaluation."""


def next_steps(run: RunFolder, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of label and text. Each text is a shell command, except for the path of the best checkpoint.

    The first alarm of each rule comes first, because the model may be exploiting its grader.
    `given` is the job file with its options from the command line. If it is empty, no evaluation is suggested.
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
        yield "best checkpoint", f"{path}{_measured(job, state.valid_reward)}"
        file = next((name for name in FILES if job.get(name)), None)
        if given and file is not None and job.get("method", {}).get("type") == "reinforcement":
            yield "try it", _command("agent-rft", "eval", *given, "--file", file, "--model", path)
        config = f"aliases: {{tuned: {json.dumps(str(strip_owner(path.resolve())))}}}"  # JSON is YAML
        yield "serve it", f"{_command('echo', config)} > serve.yaml && agent-rft serve --config serve.yaml"
    if (name := _file_to_inspect(run)) is not None:
        yield "worst rows", _command("agent-rft", "traces", run.path, "--name", name, "--worst", WORST)


def _measured(job: Mapping[str, Any], valid_reward: float | None) -> str:
    """Format a checkpoint's validation result. Supervised jobs record the negative loss as the reward."""
    if valid_reward is None or math.isnan(valid_reward):
        return ""
    supervised = job.get("method", {}).get("type") == "supervised"
    return f" (validation loss {-valid_reward:.4f})" if supervised else f" (validation reward {valid_reward:.3f})"


def _file_to_inspect(run: RunFolder) -> str | None:
    """Return the newest rollout file of the most informative kind; the test after training is preferred."""
    names = run.rollout_names()
    for prefix in ("test-after", "eval-", "validation-", "step-", "zero-variance-", "test-before"):
        if found := [name for name in names if name.startswith(prefix)]:
            return found[-1]
    return None


def _command(*words: object) -> str:
    return shlex.join(map(str, words))
