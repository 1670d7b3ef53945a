"""`agent-rft keys` and the state of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent_rft.cli.api_commands.key_commands import app
from agent_rft.cli.main import app as main_app
from agent_rft.errors import UserError
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.stores.audit_log import MAX_FULL_ENTRIES
from agent_rft.serve.stores.migration import open_database
from agent_rft.serve.stores.sealed_secrets import NEW_VARIABLE, VARIABLE, MasterSecret
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG


def keys(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    return CliRunner(env=environment).invoke(app, [*arguments, "--folder", str(folder)])


def test_a_key_is_created_listed_and_revoked(tmp_path: Path) -> None:
    made = keys(tmp_path, "create", "ci", "--scope", "read", "--requests-per-minute", "7")
    token = made.stdout.strip()
    assert token.startswith("sk-rft-") and "\n" not in token  # scripts read it
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
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
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
    token = state.create_first_key()
    assert token is not None and state.create_first_key() is None
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
        ServerState(StateLocations(tmp_path / "file" / "folder"), DEFAULT_CONFIG)


def test_a_key_is_created_for_some_time(tmp_path: Path) -> None:
    made = keys(tmp_path, "create", "guest", "--expires", "90d")
    assert "valid until 20" in made.stderr
    key = json.loads(keys(tmp_path, "list", "--json").stdout)
    assert key["expires_at"] == key["created_at"] + 90 * 86_400 and key["scopes"] == ["write"]
    refused = keys(tmp_path / "new", "create", "guest", "--expires", "soon")
    assert "such as 90d" in str(refused.exception) and not (tmp_path / "new").exists()


# -- the audit log -----------------------------------------------------------------------------------------------------


def audit(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    listed = CliRunner().invoke(main_app, ["audit", "list", "--json", "--folder", str(folder), *arguments])
    assert listed.exit_code == 0, listed.exception
    return [json.loads(line) for line in listed.stdout.splitlines()]


def test_what_the_commands_do_is_in_the_audit_log(tmp_path: Path) -> None:
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
    state.create_first_key()
    state.close()
    keys(tmp_path, "create", "ci")
    id = json.loads(keys(tmp_path, "list", "--json").stdout.splitlines()[-1])["id"]
    keys(tmp_path, "revoke", id)
    keys(tmp_path, "rotate-master")
    entries = audit(tmp_path)
    assert [entry["action"] for entry in entries] == ["keys.rotate_master", "key.revoke", "key.create", "key.create"]
    assert {entry["actor"] for entry in entries} == {"operator"}
    assert [entry["action"] for entry in audit(tmp_path, "--object", id, "--limit", "1")] == ["key.revoke"]
    assert audit(tmp_path, "--action", "key.create", "--outcome", "failed") == []
    table = CliRunner(env={"COLUMNS": "200"}).invoke(main_app, ["audit", "list", "--folder", str(tmp_path)])
    assert id in table.stdout and "key.revoke" in table.stdout


def test_an_entry_that_stands_for_several_requests_shows_their_number(tmp_path: Path) -> None:
    state = ServerState(StateLocations(tmp_path), DEFAULT_CONFIG)
    for _ in range(MAX_FULL_ENTRIES + 7):
        state.audit.append("key-1", "file.delete", "file-1", outcome="refused", status=403, countable=True)
    state.close()
    counted = audit(tmp_path, "--limit", "1")[0]
    assert (counted["num_requests"], counted["object"], counted["client_request_id"]) == (7, None, None)
    table = CliRunner(env={"COLUMNS": "200"}).invoke(main_app, ["audit", "list", "--folder", str(tmp_path)])
    assert table.stdout.count("refused 403") == MAX_FULL_ENTRIES + 1
    assert table.stdout.count("refused 403 (7 requests)") == 1


def test_an_unknown_outcome_and_a_folder_that_does_not_exist_are_refused(tmp_path: Path) -> None:
    for arguments, why in (["--outcome", "bad"], "done, refused, failed"), ([], "does not exist"):
        given = ["audit", "list", "--folder", str(tmp_path / "typo"), *arguments]
        assert why in str(CliRunner().invoke(main_app, given).exception)


# -- the master secret -------------------------------------------------------------------------------------------------


def test_the_master_secret_of_the_folder_is_changed_and_not_printed(tmp_path: Path) -> None:
    ServerState(StateLocations(tmp_path), DEFAULT_CONFIG).close()
    before = (tmp_path / "secret.key").read_text()
    done = keys(tmp_path, "rotate-master")
    after = (tmp_path / "secret.key").read_text()
    assert done.exit_code == 0 and after != before and after.strip() not in done.output
    assert "headers of 0 jobs are now encrypted" in done.stdout and "back up this file" in done.stdout


def test_the_master_secret_of_the_environment_is_changed_by_setting_a_new_one(tmp_path: Path) -> None:
    ServerState(StateLocations(tmp_path), DEFAULT_CONFIG).close()
    old, new = MasterSecret.generate().text, MasterSecret.generate().text
    refused = keys(tmp_path, "rotate-master", environment={VARIABLE: old})
    assert f"{NEW_VARIABLE} is not set" in str(refused.exception)
    done = keys(tmp_path, "rotate-master", environment={VARIABLE: old, NEW_VARIABLE: new})
    assert f"now set {VARIABLE} to the value of {NEW_VARIABLE}" in done.stdout
    assert old not in done.output and new not in done.output


def test_a_folder_without_a_key_is_not_given_one(tmp_path: Path) -> None:
    assert "secret.key cannot be read" in str(keys(tmp_path, "rotate-master").exception)
    assert not (tmp_path / "secret.key").exists()
