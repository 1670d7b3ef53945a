"""`agent-rft keys` and the state of a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.stores.migrate import open_database
from serve.cli.keys import app
from serve.host.state import ServerState, StateLocations
from trainer.errors import UserError
from trainer.spec.operator import NOTHING_ALLOWED


def keys(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--folder", str(folder)])


def test_a_key_is_created_listed_and_revoked(tmp_path: Path) -> None:
    made = keys(tmp_path, "create", "ci", "--scope", "read", "--requests-per-minute", "7")
    token = made.stdout.strip()
    assert token.startswith("sk-rft-") and "\n" not in token  # scripts read it
    state = ServerState(StateLocations(tmp_path), NOTHING_ALLOWED)
    key = state.keys.find(token)
    assert key is not None and (key.name, key.scopes, key.requests_per_minute) == ("ci", ("read",), 7)
    listed = keys(tmp_path, "list", "--json").stdout
    assert json.loads(listed)["id"] == key.id and token not in listed
    assert key.id in keys(tmp_path, "list").stdout
    assert "is revoked" in keys(tmp_path, "revoke", key.id).stdout
    assert state.keys.find(token) is None
    state.close()


def test_unknown_scopes_and_unknown_keys_are_refused(tmp_path: Path) -> None:
    assert isinstance(keys(tmp_path, "create", "ci", "--scope", "root").exception, UserError)
    assert isinstance(keys(tmp_path, "revoke", "nobody").exception, UserError)


def test_a_folder_that_does_not_exist_is_reported_and_not_created(tmp_path: Path) -> None:
    for command in (["list"], ["revoke", "x"]):
        assert "--folder" in str(keys(tmp_path / "typo", *command).exception)
    assert not (tmp_path / "typo").exists()


def test_only_the_first_start_creates_a_key(tmp_path: Path) -> None:
    state = ServerState(StateLocations(tmp_path), NOTHING_ALLOWED)
    token = state.first_key()
    assert token is not None and state.first_key() is None
    key = state.keys.find(token)
    assert key is not None and key.scopes == ("admin",)
    state.close()


@pytest.mark.parametrize(
    "url", ["no url", "mysql://u:hunter2@h/d", "postgresql://u:hunter2@127.0.0.1:1/d?connect_timeout=2"]
)
def test_an_unusable_database_is_reported_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="database") as failed:
        open_database(tmp_path, url)
    assert "hunter2" not in str(failed.value) and "\n" not in str(failed.value)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used: Not a directory"):
        ServerState(StateLocations(tmp_path / "file" / "folder"), NOTHING_ALLOWED)
