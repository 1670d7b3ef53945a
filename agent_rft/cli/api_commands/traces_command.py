"""Command `agent-rft traces`: shows the rollouts of a run folder or of a server's job as text, JSON or a table."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import httpx
import typer
from rich.console import Console

from agent_rft.cli import completion
from agent_rft.cli.api_commands.api_client import iter_pages, make_server_client, profiles_file
from agent_rft.cli.api_commands.server_commands import BaseUrl, Key, Profile
from agent_rft.cluster.records.rollout_filter import RecordedFinish, RolloutFilter
from agent_rft.errors import UserError

if TYPE_CHECKING:
    from agent_rft.cluster.records.rollout_index import Order
    from agent_rft.cluster.views.traces import Trace


def traces_command(
    run: Annotated[
        str,
        typer.Argument(help="run folder, or id of a server's job, ftjob-...", autocompletion=completion.run_folders),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="rollout file, such as step-12 or test-before. By default, the newest file is shown; with another "
            "filter or --export, all files"
        ),
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="only this step and its validation")] = None,
    row: Annotated[str | None, typer.Option(help="only the row with this id or line number")] = None,
    trace: Annotated[str | None, typer.Option(help="only rollouts whose trace id starts with this text")] = None,
    min_grade: Annotated[float | None, typer.Option(help="only rollouts with at least this grade")] = None,
    max_grade: Annotated[float | None, typer.Option(help="only rollouts with at most this grade")] = None,
    min_reward: Annotated[float | None, typer.Option(help="only rollouts with at least this reward")] = None,
    max_reward: Annotated[float | None, typer.Option(help="only rollouts with at most this reward")] = None,
    finish: Annotated[RecordedFinish | None, typer.Option(help="only rollouts that ended in this way")] = None,
    error: Annotated[
        str | None,
        typer.Option(help="only rollouts with this error of a call (such as tool_error) or with this discard reason"),
    ] = None,
    tool: Annotated[str | None, typer.Option(help="only rollouts that called this tool")] = None,
    text: Annotated[
        str | None,
        typer.Option(help="only rollouts with this text in the prompt, turns, answer or the grade's reason"),
    ] = None,
    best: Annotated[int | None, typer.Option(min=1, help="number of rollouts to show, highest grades first")] = None,
    worst: Annotated[int | None, typer.Option(min=1, help="number of rollouts to show, lowest grades first")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="BEFORE AFTER",
            help="two rollout files to compare row by row, such as test-before test-after",
        ),
    ] = None,
    export: Annotated[
        Literal["parquet", "hf"] | None,
        typer.Option(
            help="format of the table to write to --out: parquet (a file) or hf (a folder for datasets.load_dataset)"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="file or folder to write with --export")] = None,
    base_url: BaseUrl = None,
    api_key: Key = None,
    profile: Profile = "default",
) -> None:
    """Show the rollouts of a run with their messages, tool calls, results and grades."""
    from agent_rft.cluster.views.traces import print_traces, trace_json

    selected = [
        name for name, value in (("--best", best), ("--worst", worst), ("--compare", compare)) if value is not None
    ]
    if len(selected) > 1:
        raise typer.BadParameter(f"give only one of {' and '.join(selected)}")
    if (export is None) != (out is None):
        raise typer.BadParameter("give --export and --out together")
    if compare is not None and name is not None:
        raise typer.BadParameter("give --compare or --name, not both")
    rollout_filter = RolloutFilter(
        name=name,
        step=step,
        row=row,
        trace=trace,
        min_grade=min_grade,
        max_grade=max_grade,
        min_reward=min_reward,
        max_reward=max_reward,
        finish=finish,
        error=error,
        tool=tool,
        text=text,
    )
    if (folder := Path(run)).exists() or not re.fullmatch(r"ftjob-[\w-]+", run):
        source: LocalTraces | ServerTraces = LocalTraces(folder)
    else:
        source = ServerTraces(make_server_client(base_url, api_key, profile, os.environ, profiles_file()), run)
    if compare is not None:
        _compare(source, rollout_filter, *compare)
        return
    if export is None and rollout_filter == RolloutFilter():
        rollout_filter = RolloutFilter(name=source.newest_file())
    found = source.find(
        rollout_filter, "best" if best is not None else "worst" if worst is not None else "oldest", best or worst
    )
    if export is not None and out is not None:
        from agent_rft.cluster.views.trace_export import export_traces

        typer.echo(f"{export_traces(found, folder.resolve().name, export, out):,} rollouts written to {out}")
    elif as_json:
        for one in found:
            typer.echo(trace_json(one))
    else:
        print_traces(found, Console(emoji=False))
    for problem in source.damaged_file_problems(rollout_filter):
        typer.echo(f"warning: {problem}", err=True)


class LocalTraces:
    """Traces in a run folder. Memory use does not grow with the number of traces."""

    def __init__(self, folder: Path) -> None:
        from agent_rft.cluster.records.run_folder import open_run

        self._run = open_run(folder)

    def newest_file(self) -> str:
        from agent_rft.cluster.views.traces import newest_file

        return newest_file(self._run)

    def find(self, rollout_filter: RolloutFilter, order: Order, limit: int | None) -> Iterator[Trace]:
        from agent_rft.cluster.views.traces import find_traces

        return find_traces(self._run, rollout_filter, order, limit)

    def damaged_file_problems(self, rollout_filter: RolloutFilter) -> list[str]:
        from agent_rft.cluster.views.traces import damaged_file_problems

        return damaged_file_problems(self._run, rollout_filter)


class ServerTraces:
    """Traces of a server's job, requested page by page."""

    def __init__(self, client: httpx.Client, job_id: str) -> None:
        self._client = client
        self._path = f"/fine_tuning/jobs/{job_id}/rollouts"

    def newest_file(self) -> str:
        for value in iter_pages(self._client, self._path, 1):
            return str(value["file"])
        raise UserError("the job has no rollouts yet: check its status with agent-rft jobs get")

    def find(self, rollout_filter: RolloutFilter, order: Order, limit: int | None) -> Iterator[Trace]:
        from agent_rft.cluster.views.traces import trace_from_json

        filters = {
            name: value for name, value in asdict(rollout_filter).items() if value is not None and name != "name"
        }
        query = filters | {"order": order} | ({} if rollout_filter.name is None else {"file": rollout_filter.name})
        empty = True
        for value in iter_pages(self._client, self._path, sys.maxsize if limit is None else limit, query):
            empty = False
            yield trace_from_json(value["file"], value["request"], value["rollout"])
        if empty and order == "oldest":
            raise UserError(f"the job has no rollout{rollout_filter}")

    def damaged_file_problems(self, rollout_filter: RolloutFilter) -> list[str]:
        return []


def _compare(source: LocalTraces | ServerTraces, rollout_filter: RolloutFilter, before: str, after: str) -> None:
    from agent_rft.cluster.views.traces import pair_traces, print_pairs

    sides = (source.find(replace(rollout_filter, name=name), "oldest", None) for name in (before, after))
    if not print_pairs(pair_traces(*sides), Console(emoji=False)):
        raise UserError(f"{before} and {after} have no row in common{rollout_filter}")
