"""Folders of a server and of a killed run, written by version 0.2.0 for the tests that later versions read them.

`python -m tests.support.version_folders` writes them. A released version's folders are never written again.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from agent_rft.cluster.records.run_folder import RunFolder
from tests.support.builders import job, plan
from tests.support.fakes_http import FakeEndpoint, says
from tests.support.recorded_answers import JOBS, READINESS, RecordedServer
from tests.support.recorded_run import live
from tests.support.tiny_model import write_tiny_model

FOLDERS = Path(__file__).parents[1] / "fixtures" / "v0.2.0"
SERVER, RUN = FOLDERS / "server.tar.gz", FOLDERS / "run.tar.gz"
PAGES = FOLDERS / "pages.json"
"""The key of the server's admin, and its answers to GET requests: {"key": ..., "pages": {path: answer}}."""
KILLED_AFTER_UPDATES = 5
"""The run is killed in its next update. Its last checkpoint is that of step 3, so the journal has two updates more."""
OF_A_JOB = ("", "/events", "/checkpoints", "/log", "/rollouts", "/evaluations", "/metrics", "/settings")


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack one of the archives in `folder`, and return the folder that it contains."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


async def read_pages(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return the answers to GET requests for all that the server has stored, by path."""
    pages: dict[str, Any] = {}

    async def read(path: str) -> Any:
        answer = await client.get(path)
        is_json = answer.headers["content-type"] == "application/json"
        pages[path] = {"status": answer.status_code, "body": answer.json() if is_json else answer.text}
        return pages[path]["body"]

    for path in ("/v1/models", "/v1/api_keys"):
        await read(path)
    for file in (await read("/v1/files"))["data"]:
        await read(f"/v1/files/{file['id']}/content")
    for found in (await read(f"{JOBS}?include=progress"))["data"]:
        for part in OF_A_JOB:
            await read(f"{JOBS}/{found['id']}{part}")
    for found in (await read(READINESS))["data"]:
        await read(f"{READINESS}/{found['id']}/events")
    return pages


def list_differences(before: Any, now: Any, at: str = "") -> Iterator[str]:
    """Yield where `now` lacks a value of `before`. Objects may have more keys than before."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            yield from list_differences(value, now.get(key, "<missing>"), f"{at}.{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, value in enumerate(before):
            yield from list_differences(value, now[index], f"{at}[{index}]")
    elif before != now:
        yield f"{at}: {str(before)[:200]} -> {str(now)[:200]}"


async def write_server(folder: Path) -> None:
    """Write a server with files, models, keys, and jobs in all states, and PAGES."""
    async with RecordedServer(folder) as server, FakeEndpoint(says({"output": "1", "score": 0.5})) as endpoint:
        await server.jobs(await server.files(), endpoint.url)
        server.state.models.add("ft:gpt-5:local:one", "folder", "gpt-5", "ftjob-1")
        await server.keys()
        _, key = server.state.keys.create("later", ["admin"])
        PAGES.write_text(json.dumps({"key": key, "pages": await read_pages(server.client)}) + "\n")


def write_run(folder: Path) -> None:
    """Write a run that was killed in an update, with its model and job."""
    model = write_tiny_model(folder / "model", hidden_size=16)
    context = multiprocessing.get_context("spawn")
    reports, writer = context.Pipe(duplex=False)
    process = context.Process(target=live, args=(folder, model, writer))
    process.start()
    writer.close()
    updates = 0
    while updates <= KILLED_AFTER_UPDATES:
        updates += reports.recv() == ("update", True)
    process.kill()
    process.join()
    run = RunFolder(folder)
    run.write_job(job(model=str(model)), plan(), {})
    run.close()


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder without its reports, which have megabytes of JavaScript."""

    def select(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.name.endswith(".html") else member.replace(uid=0, gid=0, uname="", gname="", deep=False)

    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, folder.name, filter=select)


def main() -> None:
    FOLDERS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        server, run = Path(temporary) / "server", Path(temporary) / "run"
        asyncio.run(write_server(server))
        write_run(run)
        pack(server, SERVER)
        pack(run, RUN)


if __name__ == "__main__":
    main()
