"""Export of rollouts as a table: a Parquet file, or a folder of Parquet files for `datasets.load_dataset`.

One row per rollout. Nested values, such as messages and calls, are JSON text, which every table reader supports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from agent_rft.cluster.views.traces import Trace
from agent_rft.errors import UserError
from agent_rft.types import DiscardedRollout, Grade, Rollout

Kind = Literal["string", "int64", "double", "bool", "list<string>"]
BATCH = 1_000
"""Maximum rollouts in memory."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the table. Missing values, such as the grade of a discarded rollout, are null."""

    name: str
    kind: Kind
    about: str
    value: Callable[[str, Trace], Any]


def _rollout_value(value: Callable[[Rollout], Any]) -> Callable[[str, Trace], Any]:
    return lambda run, trace: value(trace.outcome) if isinstance(trace.outcome, Rollout) else None


def _grade_value(value: Callable[[Grade], Any]) -> Callable[[str, Trace], Any]:
    return _rollout_value(lambda rollout: value(rollout.grade))


def _finish_value(run: str, trace: Trace) -> str:
    return trace.outcome.finish if isinstance(trace.outcome, Rollout) else "discarded"


def _list_errors(run: str, trace: Trace) -> list[str]:
    if isinstance(trace.outcome, DiscardedRollout):
        return [trace.outcome.reason]
    return [result.error for result in trace.outcome.results if result.error]


def _turns_json(rollout: Rollout) -> str:
    return _to_json(
        [
            {"text": turn.text, "calls": [asdict(c) for c in turn.calls], "results": [asdict(r) for r in turn.results]}
            for turn in rollout.turns
        ]
    )


COLUMNS = (
    Column("run", "string", "name of the run's folder, or id of the job", lambda run, trace: run),
    Column("file", "string", "rollout file, such as step-000012 or test-after", lambda run, trace: trace.name),
    Column("purpose", "string", "train, validation or test", lambda run, trace: trace.request.purpose),
    Column(
        "row_id",
        "string",
        "the row's line number and a digest of its content",
        lambda run, trace: trace.outcome.row_id,
    ),
    Column("group", "int64", "number of the group, in order of admission", lambda run, trace: trace.request.index),
    Column("sample", "int64", "number within the group", lambda run, trace: trace.outcome.sample),
    Column("epoch", "int64", "pass over the training file", lambda run, trace: trace.request.epoch),
    Column(
        "trace_id",
        "string",
        "id of the rollout in requests to tools and graders",
        lambda run, trace: trace.outcome.trace_id,
    ),
    Column("finish", "string", "answer, max_steps, max_tokens, context, timeout or discarded", _finish_value),
    Column("grade", "double", "the grade, before penalties", _grade_value(lambda grade: grade.value)),
    Column("reward", "double", "the value used for training", _rollout_value(lambda rollout: rollout.reward)),
    Column("held_out", "double", "grade of the held-out grader", _grade_value(lambda grade: grade.held_out)),
    Column("guard", "string", "the guard that set the reward", _grade_value(lambda grade: grade.guard)),
    Column("train", "bool", "whether the rollout may be trained on", _grade_value(lambda grade: grade.train)),
    Column("reason", "string", "the grader's reason", _grade_value(lambda grade: grade.reason)),
    Column(
        "scores",
        "string",
        "JSON object with the grade of each part of a multi grader",
        _grade_value(lambda g: _to_json(g.scores)),
    ),
    Column("answer", "string", "the final answer", _rollout_value(lambda rollout: rollout.answer)),
    Column("tools", "list<string>", "tool of each call, in order", _rollout_value(lambda r: [c.name for c in r.calls])),
    Column("errors", "list<string>", "error of each failed call, or the discard reason", _list_errors),
    Column("num_turns", "int64", "turns", _rollout_value(lambda rollout: len(rollout.turns))),
    Column("num_calls", "int64", "tool calls", _rollout_value(lambda rollout: len(rollout.calls))),
    Column("sampled_tokens", "int64", "tokens that the model sampled", _rollout_value(lambda r: r.num_sampled)),
    Column("tokens", "int64", "all tokens, including prompts and tool results", _rollout_value(lambda r: r.num_tokens)),
    Column("busy_s", "double", "model and tool time", _rollout_value(lambda rollout: rollout.busy_s)),
    Column("wall_s", "double", "total time, including waits", _rollout_value(lambda rollout: rollout.wall_s)),
    Column("messages", "string", "JSON list: the prompt", lambda run, trace: _to_json(trace.request.task.messages)),
    Column("turns", "string", "JSON list: text, calls and results of each turn", _rollout_value(_turns_json)),
    Column("item", "string", "JSON object: the full row", lambda run, trace: _to_json(trace.request.task.item)),
)


def make_table_rows(traces: Iterable[Trace], run: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table. Non-finite numbers become null, and lone surrogates become question marks."""
    for trace in traces:
        yield {column.name: _replace_invalid(column.value(run, trace)) for column in COLUMNS}


def _to_json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _replace_invalid(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_replace_invalid(item) for item in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


# -- files -------------------------------------------------------------------------------------------------------------


class TableWriter(Protocol):
    """Table that is open for writing rows."""

    def write(self, rows: list[dict[str, Any]]) -> None: ...

    def close(self) -> None: ...


def export_traces(
    traces: Iterable[Trace],
    run: str,
    format: Literal["parquet", "hf"],
    out: Path,
    open_table: Callable[[Path], TableWriter] | None = None,
) -> int:
    """Write traces to a Parquet file, or to a dataset folder with one file per purpose; return the number of traces.

    Raises:
        UserError: The package pyarrow is not installed, or the dataset folder is not empty.
    """
    open_table = open_table or _parquet_writer()
    if format == "hf":
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is not an empty folder. Give a new or empty folder with --out.")
        (out / "data").mkdir(parents=True, exist_ok=True)
    count, tables = 0, dict[str, TableWriter]()
    with ExitStack() as stack:
        rows = make_table_rows(traces, run)
        while batch := list(islice(rows, BATCH)):
            for purpose in sorted({row["purpose"] for row in batch}):
                split = purpose if format == "hf" else ""
                if split not in tables:
                    path = out / "data" / f"{split}.parquet" if split else out
                    tables[split] = open_table(path)
                    stack.callback(tables[split].close)
                tables[split].write([row for row in batch if not split or row["purpose"] == purpose])
                if not split:
                    break
            count += len(batch)
    if format == "hf":
        (out / "README.md").write_text(_dataset_card(run, sorted(tables)))
    return count


def _parquet_writer() -> Callable[[Path], TableWriter]:
    try:
        from pyarrow import Table, bool_, float64, int64, list_, schema, string
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise UserError("--export needs the package pyarrow: pip install pyarrow (or agent-rft[export])") from error
    numbers = {"int64": int64(), "double": float64(), "bool": bool_()}
    kinds = {"string": string(), "list<string>": list_(string())} | numbers
    columns = schema([(column.name, kinds[column.kind]) for column in COLUMNS])

    class ParquetTable:
        def __init__(self, path: Path) -> None:
            self._writer = ParquetWriter(path, columns, compression="zstd")

        def write(self, rows: list[dict[str, Any]]) -> None:
            self._writer.write_table(Table.from_pylist(rows, schema=columns))

        def close(self) -> None:
            self._writer.close()

    return ParquetTable


def _dataset_card(run: str, splits: list[str]) -> str:
    files = "".join(f"  - split: {split}\n    path: data/{split}.parquet\n" for split in splits)
    table = "".join(f"| `{column.name}` | {column.kind} | {column.about} |\n" for column in COLUMNS)
    return (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n\n# Rollouts of {run}\n\n"
        f"Written by `agent-rft traces --export hf`. One row per rollout.\n\n"
        f"| column | type | |\n|---|---|---|\n{table}"
    )
