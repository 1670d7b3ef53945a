"""Selection of the evaluations to compare, from command-line arguments.

RUN                  newest evaluation of the test file or, if not all runs have one, of the validation file
RUN:test-before      rollouts with this name
MODEL FOLDER         recorded evaluation of this model, or a new evaluation if none is recorded
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_rft.cluster.checks.resumption.file_digests import digest_path
from agent_rft.cluster.records.redaction import public_job, to_plain_json
from agent_rft.cluster.records.run_folder import RunFolder, open_run
from agent_rft.cluster.views.comparison.loaded_evaluation import LoadedEvaluation, load_evaluation
from agent_rft.cluster.views.live_view import safe_text
from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.spec.job import JobSpec

FILES = ("test_file", "validation_file", "training_file")
"""Data files in order of preference. The test file is first because it does not influence training."""
COMPARED_ENGINE_SETTINGS: Final = ("context_length", "dtype")
"""Settings of `cluster` that affect a model's answers."""
_NAMES = {
    "test_file": r"test-(before|after)|eval-test",
    "validation_file": r"validation-\d+|eval-validation",
    "training_file": r"eval-training",
}
"""Patterns of evaluation names, by data file."""

Evaluate = Callable[[Path], Path]
"""Callback that evaluates a model folder and returns the run folder."""


@dataclass(frozen=True, slots=True)
class NamedEvaluation:
    """Evaluation as named on the command line: a path and an optional rollout name."""

    text: str
    path: Path
    name: str | None

    @classmethod
    def parse(cls, text: str, name: str | None) -> NamedEvaluation:
        """Parse the path of a folder, or `RUN:NAME`. `name` is the rollout name to use if `text` is a path.

        Raises:
            UserError: The folder does not exist.
        """
        path, found = Path(text), name
        if not path.exists():
            before, _, after = text.rpartition(":")
            path, found = Path(before or text), after
        if not path.is_dir():
            raise UserError(
                f"the folder {path} does not exist. Give a run folder, RUN:NAME, or a model folder with --job."
            )
        return cls(text, path, found)

    @property
    def is_model(self) -> bool:
        return any((self.path / name).exists() for name in ("config.json", "adapter_config.json"))


def load_evaluations(
    texts: Sequence[str], *, name: str | None, file: str | None, evaluate: Evaluate | None
) -> list[LoadedEvaluation]:
    """Load the evaluations that `texts` name, in this order.

    Args:
        texts: Run folders, `RUN:NAME` (the evaluation NAME in a run folder), or model folders.
        name: Evaluation to load from run folders without a NAME. If None, the newest evaluation of `file` is loaded.
        file: Data file. If None, the function `common_file` selects the data file.
        evaluate: Function that evaluates a model folder; None if model folders are not allowed.

    Raises:
        UserError: An evaluation does not exist or cannot be read.
    """
    named = [NamedEvaluation.parse(text, name) for text in texts]
    runs = []
    for side in named:
        if side.is_model and evaluate is None:
            raise UserError(
                f"{side.path} is a model, not a run. Add --job JOB.yaml to evaluate the model on the rows of this job."
            )
        runs.append(evaluate(side.path) if side.is_model and evaluate is not None else side.path)
    folders = [open_run(path) for path in runs]
    chosen = file or common_file([s.name if not s.is_model else None for s in named], folders)
    labels = _short_labels(texts)
    return [
        _load_side(label, folder, None if side.is_model else side.name, chosen)
        for label, side, folder in zip(labels, named, folders, strict=True)
    ]


def _load_side(label: str, run: RunFolder, name: str | None, file: str) -> LoadedEvaluation:
    names = run.rollout_names()
    if name is None:
        found = evaluation_names(run, file)
        if not found:
            has = f"only the rollouts {', '.join(sorted(names))}" if names else "and no other rollouts"
            raise UserError(
                f"{run.path} has no evaluation of its {file}, {has}. Choose rollouts with RUN:NAME or --name."
            )
        name = found[-1]
    elif counted := re.fullmatch(r"(step|validation)-(\d+)", name):
        name = f"{counted[1]}-{int(counted[2]):06d}"
    if name not in names:
        raise UserError(f"{run.path} has no rollouts named {name!r}; it has {', '.join(sorted(names)) or 'none'}")
    side = load_evaluation(label, str(run.path), run, name)
    if not side.rows:
        raise UserError(f"the rollouts {name} of {run.path} are damaged: no row can be read. Evaluate again.")
    return side


def evaluation_names(run: RunFolder, file: str) -> list[str]:
    """Return the names of a run's evaluations of the data file `file`, oldest first."""
    return [name for name in run.rollout_names() if re.fullmatch(_NAMES[file], name)]


def common_file(names: Sequence[str | None], runs: Sequence[RunFolder]) -> str:
    """Return the data file to compare.

    The name of an evaluation, such as `test-after`, identifies the evaluated data file. If `names` contains names of
    evaluations, return the data file of the first evaluation. Otherwise, return the first of FILES that was
    evaluated by all runs whose entry in `names` is None.
    """
    for name in names:
        for file, pattern in _NAMES.items():
            if name is not None and re.fullmatch(pattern, name):
                return file
    unnamed_runs = [run for run, name in zip(runs, names, strict=True) if name is None]
    return next((file for file in FILES if all(evaluation_names(run, file) for run in unnamed_runs)), FILES[0])


def _short_labels(texts: Sequence[str]) -> list[str]:
    """Return the shortest path suffixes that are distinct, as labels."""
    parts = [re.split(r"(?<=[/:])", safe_text(text).rstrip("/")) for text in texts]
    for length in range(1, max(map(len, parts)) + 1):
        labels = ["".join(part[-length:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{part[-1]} ({number})" for number, part in enumerate(parts, start=1)]


# -- existing evaluations ----------------------------------------------------------------------------------------------


def _settings_match(given: Any, recorded: Any) -> bool:
    """Return whether settings match the recorded settings of a run; `auto` matches any recorded value."""
    if isinstance(given, Mapping) and isinstance(recorded, Mapping):
        return all(_settings_match(value, recorded.get(name)) for name, value in given.items())
    return bool(given in ("auto", recorded))


def find_recorded_evaluation(runs: Path, job: JobSpec, model: Path, file: str, samples: int) -> Path | None:
    """Return the newest run folder in `runs` that has an evaluation of this model by this job, or None.

    The model and the data file are compared by content.
    """
    expected, given = (
        {"model": digest_path(model), file: digest_path(Path(getattr(job, file)))},
        to_plain_json(public_job(job)),
    )
    name = f"eval-{file.removesuffix('_file')}"
    for path in sorted(runs.glob("*/job.resolved.json"), reverse=True):
        try:
            run = open_run(path.parent)
            found, evaluation = run.job(), run.evaluations().get(name)
        except (OutdatedFormat, ValueError, TypeError, KeyError, OSError):
            continue  # unreadable, so evaluate again
        digests, recorded = found.get("digests", {}), found.get("job", {})
        same = {field: digests.get(field) for field in expected} == expected
        same = same and all(_settings_match(given[part], recorded.get(part)) for part in ("method", "seed"))
        same = same and _settings_match(given["model_options"], recorded.get("model_options", {}))
        same = same and _settings_match(
            {part: given["cluster"][part] for part in COMPARED_ENGINE_SETTINGS}, recorded.get("cluster", {})
        )
        if same and evaluation is not None and evaluation.samples == samples:
            return run.path
    return None
