"""The folders that an older version left behind, moved to where a test wants them.

The archives are made by scripts in tests/fixtures. What they hold names absolute paths and a port, as folders of a user
do; a user's stay where they are, so here the paths follow the folders.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import zstandard
from cryptography.fernet import Fernet

from tests.support.paths import ROOT

ARCHIVE = ROOT / "tests" / "fixtures" / "v0289249" / "old.tar.zst"
OLD_HOME = "/tmp/agent-rft-old"
OLD_URL = "http://127.0.0.1:18473"
TEXTS = (".json", ".jsonl", ".yaml")


@dataclass(frozen=True, slots=True)
class OldVersion:
    """What version 0289249 left behind.

    `keys` are texts of API keys by what they may do, `jobs` ids by the state they are in, `files` ids by content.
    """

    home: Path
    keys: Mapping[str, str]
    jobs: Mapping[str, str]
    files: Mapping[str, str]
    tool_token: str

    @property
    def server(self) -> Path:
        return self.home / "server"

    @property
    def job(self) -> Path:
        return self.home / "job" / "job.yaml"

    @property
    def run(self) -> Path:
        return self.home / "runs" / "reinforcement"


def old_version(home: Path, tool_url: str = OLD_URL) -> OldVersion:
    """Unpack the folders into `home`; the tool of their jobs is at `tool_url`, which has no path."""
    with (
        ARCHIVE.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        tar.extractall(home, filter="data")
    changes = {OLD_HOME: str(home), OLD_URL: tool_url}
    for path in home.rglob("*"):
        if path.suffix in TEXTS:
            path.write_text(_changed(path.read_text(), changes))
    _change_database(home / "server", changes)
    made = json.loads((home / "made.json").read_text())
    return OldVersion(home, made["keys"], made["jobs"], made["files"], made["tool_token"])


def _changed(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def _change_database(folder: Path, changes: Mapping[str, str]) -> None:
    """Change every text of the database, the sealed ones too."""
    fernet = Fernet((folder / "secret.key").read_text())

    def changed(text: str) -> str:
        return _changed(text, changes)

    def resealed(text: str) -> str:
        return fernet.encrypt(changed(fernet.decrypt(text.encode()).decode()).encode()).decode()

    with closing(sqlite3.connect(folder / "state.db")) as database, database:
        database.create_function("changed", 1, changed)
        database.create_function("resealed", 1, resealed)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
                function = "resealed" if column == "sealed_spec" else "changed"
                database.execute(f"UPDATE {table} SET {column} = {function}({column}) WHERE typeof({column}) = 'text'")
