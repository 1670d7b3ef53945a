"""What a shell offers for values when TAB is pressed: names, profiles, run folders, checkpoints, and a server's ids.

A list that cannot be made is empty and nothing is printed, since the user is in the middle of a line; the shell then
offers files. Typer keeps the values that begin as typed.

Shells put a value into the line as it is, and zsh evaluates what Typer prints. So what a server or a folder names is
offered only if it means nothing to a shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from glob import escape, iglob
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import typer

from agent_rft.cli.api_commands.api_client import client_of, pages, profiles_file, profiles_of
from agent_rft.errors import RftError

ANSWER_S = 1.0
"""How long a server may take to answer: after that, typing is faster."""
MAX_OFFERED = 100
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""Values that mean nothing to a shell; as in `shlex.quote`."""
_NOT_SHOWN = re.compile(r"[^\w @%+=:,./()-]+", re.ASCII)
Offers = list[tuple[str, str]]
"""Values with a text that zsh and fish show beside them."""


def profile_names() -> list[str]:
    """The names in profiles.yaml."""
    try:
        return [name for name in profiles_of(profiles_file()) if _SAFE.fullmatch(str(name))]
    except RftError:
        return []


def scopes() -> list[str]:
    """The scopes of API keys."""
    return ["read", "write", "admin"]


def explained_names(incomplete: str) -> Offers:
    """What `agent-rft explain` knows, with its kind; settings also by the last part of their path, once it is typed."""
    from agent_rft.cli.reference.catalogue import catalogue  # imports pydantic, which other completions do not need
    from agent_rft.cli.reference.settings import all_settings

    entries = catalogue(all_settings())
    ends = [(entry.name.rpartition(".")[2], entry.kind) for entry in entries if incomplete and "." in entry.name]
    return list(dict.fromkeys([*((entry.name, entry.kind) for entry in entries), *ends]))


def run_folders(incomplete: str) -> list[str]:
    """Run folders at the typed path and one folder below it, so that `runs/...` is offered before anything is typed."""
    return _folders_with("events.jsonl", incomplete, "*", "*/*")


def checkpoints(incomplete: str) -> list[str]:
    """Checkpoints at the typed path, and those of the run folders at it and one folder below it."""
    return _folders_with("loop.json", incomplete, "*", "*/*", "*/checkpoints/*", "*/*/checkpoints/*")


def _folders_with(file: str, incomplete: str, *patterns: str) -> list[str]:
    found = (path for pattern in patterns for path in iglob(f"{escape(incomplete)}{pattern}/{file}"))
    folders = dict.fromkeys(str(Path(path).parent) for path in islice(found, MAX_OFFERED))
    return [folder for folder in folders if _SAFE.fullmatch(folder)]


def job_ids(context: typer.Context) -> Offers:
    """The server's latest jobs, with their status and model."""
    jobs = _listed(context, "/fine_tuning/jobs")
    return _safe((job["id"], f"{job['status']} {job['fine_tuned_model'] or job['model']}") for job in jobs)


def file_ids(context: typer.Context) -> Offers:
    """The server's latest files, with their names."""
    return _safe((file["id"], file["filename"]) for file in _listed(context, "/files"))


def _safe(offers: Iterable[tuple[str, str]]) -> Offers:
    try:
        return [(value, _NOT_SHOWN.sub(" ", text)) for value, text in offers if _SAFE.fullmatch(value)]
    except (LookupError, TypeError):  # no entries as of a server
        return []


def _listed(context: typer.Context, path: str) -> list[dict[str, Any]]:
    """The first entries of a list of the server that the options typed so far, the environment or a profile name."""
    options = context.parent.params if context.parent else {}
    server = options.get("base_url"), options.get("api_key"), options.get("profile") or "default"
    try:
        with client_of(*server, os.environ, profiles_file(), httpx.Timeout(ANSWER_S)) as client:
            return list(pages(client, path, MAX_OFFERED))
    except (RftError, httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError):
        return []
