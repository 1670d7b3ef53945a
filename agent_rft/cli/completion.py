"""Functions that list values for shell completion: names, profiles, run folders, checkpoints, and ids on a server.

If values cannot be listed, the functions return an empty list, and the shell offers files instead. Errors are not
printed, because the user is typing. Typer filters the values by the typed prefix.

Shells insert a value into the command line unchanged, and zsh evaluates the text that Typer prints. Values from a
server or a folder are therefore offered only if they contain no characters that are special to a shell.
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

from agent_rft.cli.api_commands.api_client import iter_pages, load_profiles, make_server_client, profiles_file
from agent_rft.errors import RftError

TIMEOUT_S = 1.0
"""Timeout for a server's response in seconds. It is short, because the user is waiting for the shell."""
MAX_OFFERED = 100
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""Pattern of values that need no quotes in a shell."""
_UNSAFE_CHARACTERS = re.compile(r"[^\w @%+=:,./()-]+", re.ASCII)
Completions = list[tuple[str, str]]
"""Values, each with a description that zsh and fish show next to it."""


def profile_names() -> list[str]:
    """Return the names of the profiles in profiles.yaml."""
    try:
        return [name for name in load_profiles(profiles_file()) if _SAFE.fullmatch(str(name))]
    except RftError:
        return []


def key_scopes() -> list[str]:
    """Return the scopes of API keys."""
    return ["read", "write", "admin"]


def explainable_names(incomplete: str) -> Completions:
    """Return the names that `agent-rft explain` accepts, each with its kind.

    Short names of settings are included only if `incomplete` is not empty.
    """
    from agent_rft.cli.reference.catalog import build_catalog  # imports pydantic, which other completions do not need
    from agent_rft.cli.reference.setting_list import list_settings

    entries = build_catalog(list_settings())
    ends = [(entry.name.rpartition(".")[2], entry.kind) for entry in entries if incomplete and "." in entry.name]
    return list(dict.fromkeys([*((entry.name, entry.kind) for entry in entries), *ends]))


def run_folders(incomplete: str) -> list[str]:
    """Return run folders whose path begins with the typed text. Two levels of folders are searched."""
    return _find_folders_with_file("events.jsonl", incomplete, "*", "*/*")


def checkpoints(incomplete: str) -> list[str]:
    """Return checkpoints whose path begins with the typed text.

    Two levels of folders are searched, both for checkpoints and for run folders that contain checkpoints.
    """
    return _find_folders_with_file("loop.json", incomplete, "*", "*/*", "*/checkpoints/*", "*/*/checkpoints/*")


def _find_folders_with_file(file: str, incomplete: str, *patterns: str) -> list[str]:
    found = (path for pattern in patterns for path in iglob(f"{escape(incomplete)}{pattern}/{file}"))
    folders = dict.fromkeys(str(Path(path).parent) for path in islice(found, MAX_OFFERED))
    return [folder for folder in folders if _SAFE.fullmatch(folder)]


def job_ids(context: typer.Context) -> Completions:
    """Return the ids of the server's latest jobs, with their status and model."""
    jobs = _list_entries(context, "/fine_tuning/jobs")
    return _filter_safe((job["id"], f"{job['status']} {job['fine_tuned_model'] or job['model']}") for job in jobs)


def file_ids(context: typer.Context) -> Completions:
    """Return the ids of the server's latest files, with their names."""
    return _filter_safe((file["id"], file["filename"]) for file in _list_entries(context, "/files"))


def _filter_safe(completions: Iterable[tuple[str, str]]) -> Completions:
    try:
        return [(value, _UNSAFE_CHARACTERS.sub(" ", text)) for value, text in completions if _SAFE.fullmatch(value)]
    except (LookupError, TypeError):  # the response is not from an agent-rft server
        return []


def _list_entries(context: typer.Context, path: str) -> list[dict[str, Any]]:
    """Return the first entries of an API list; empty if the request fails.

    The server is selected by the options typed so far, the environment or a profile.
    """
    options = context.parent.params if context.parent else {}
    server = options.get("base_url"), options.get("api_key"), options.get("profile") or "default"
    try:
        with make_server_client(*server, os.environ, profiles_file(), httpx.Timeout(TIMEOUT_S)) as client:
            return list(iter_pages(client, path, MAX_OFFERED))
    except (RftError, httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError):
        return []
