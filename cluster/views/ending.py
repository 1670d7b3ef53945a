"""What to do with a run that has ended: its best checkpoint, how to try and serve it, and the rows it does worst on."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import UserError
from agent_rft.events import AlarmRaised
from agent_rft.rows.ownership import lasting
from agent_rft.trainer.loop.checkpoint import best_checkpoint

WORST = 3
FILES = ("test_file", "validation_file", "training_file")
"""Files of a job, the one that says most about a model first."""


def next_steps(run: RunFolder, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(label, text), where a text is a command of a shell except for that of the checkpoint.

    Alarms come first, the first of each rule: the model may have fooled its grader.
    `given` is the job on the command line, its file and options; if it is empty, evaluations cannot be proposed.
    """
    shown = set[str]()
    for event in run.events():
        if isinstance(alarm := event.event, AlarmRaised) and alarm.rule not in shown:
            shown.add(alarm.rule)
            look = [_command("agent-rft", "traces", run.path, "--trace", trace) for trace in alarm.traces[:1]]
            yield f"alarm {alarm.rule}", " && ".join([_command("agent-rft", "explain", alarm.rule), *look])
    try:
        best = best_checkpoint(run.path / "checkpoints")
    except UserError:  # damaged, which is told where it is used
        best = None
    if best is not None:
        path, state = best
        job = run.job().get("job", {})
        yield "best checkpoint", f"{path}{_measured(job, state.valid_reward)}"
        file = next((name for name in FILES if job.get(name)), None)
        if given and file is not None and job.get("method", {}).get("type") == "reinforcement":
            yield "try it", _command("agent-rft", "eval", *given, "--file", file, "--model", path)
        config = f"aliases: {{tuned: {json.dumps(str(lasting(path.resolve())))}}}"  # JSON is YAML
        yield "serve it", f"{_command('echo', config)} > serve.yaml && agent-rft serve --config serve.yaml"
    if (name := _graded(run)) is not None:
        yield "worst rows", _command("agent-rft", "traces", run.path, "--name", name, "--worst", WORST)


def _measured(job: Mapping[str, Any], valid_reward: float | None) -> str:
    """What the validation of a checkpoint gave: of a supervised job its loss, whose negative is kept as its reward."""
    if valid_reward is None or math.isnan(valid_reward):
        return ""
    supervised = job.get("method", {}).get("type") == "supervised"
    return f" (validation loss {-valid_reward:.4f})" if supervised else f" (validation reward {valid_reward:.3f})"


def _graded(run: RunFolder) -> str | None:
    """The file of rollouts in which bad ones say most: of the test after training, else the newest that is graded."""
    names = run.rollout_names()
    for prefix in ("test-after", "eval-", "validation-", "step-", "starved-", "test-before"):
        if found := [name for name in names if name.startswith(prefix)]:
            return found[-1]
    return None


def _command(*words: object) -> str:
    return shlex.join(map(str, words))
