"""API keys: what a stolen database reveals, and what a key grants."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from agent_rft.errors import UserError
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.key_store import KeyRow, KeyStore, Scope


def test_a_key_is_found_by_its_token_and_stored_only_as_a_hash(any_database: Database) -> None:
    keys = KeyStore(any_database)
    key, token = keys.create("ci", ["write"], requests_per_minute=5)
    assert token.startswith("sk-rft-") and keys.find(token) == key
    assert (key.name, key.scopes, key.requests_per_minute) == ("ci", ("write",), 5)
    with any_database.session() as session:
        (row,) = session.scalars(select(KeyRow))
        stored = str(vars(row))
    assert token not in stored and token.removeprefix("sk-rft-") not in stored


@pytest.mark.parametrize("change", [lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"), lambda t: t + "x", lambda t: ""])
def test_a_changed_token_finds_no_key(any_database: Database, change: object) -> None:
    keys = KeyStore(any_database)
    _, token = keys.create("ci", ["read"])
    assert callable(change) and keys.find(change(token)) is None
    _, other = keys.create("other", ["admin"])
    assert keys.find(token[:23] + other[23:]) is None  # the id of one, the secret of the other


def test_a_revoked_key_is_not_found_but_stays_in_the_list(any_database: Database) -> None:
    keys = KeyStore(any_database)
    key, token = keys.create("left", ["read"])
    stays, _ = keys.create("stays", ["read"])
    revoked = keys.revoke(key.id)
    assert keys.find(token) is None
    assert keys.revoke(key.id) == revoked and revoked.revoked_at is not None
    assert {key.id: key.revoked_at is None for key in keys.list()} == {key.id: False, stays.id: True}
    with pytest.raises(UserError, match="the key 'x' does not exist"):
        keys.revoke("x")


@pytest.mark.parametrize(
    ("name", "scopes"), [("", ["read"]), ("x" * 101, ["read"]), ("a\nb", ["read"]), ("a", []), ("a", ["root"])]
)
def test_a_key_needs_a_printable_name_and_known_scopes(any_database: Database, name: str, scopes: list[Scope]) -> None:
    with pytest.raises(UserError):
        KeyStore(any_database).create(name, scopes)
    assert KeyStore(any_database).list() == []


def test_a_scope_includes_the_lesser_ones(any_database: Database) -> None:
    scopes: list[Scope] = ["read", "write", "admin"]
    keys = {scope: KeyStore(any_database).create(scope, [scope])[0] for scope in scopes}
    may = {name: [scope for scope in scopes if key.has_scope(scope)] for name, key in keys.items()}
    assert may == {"read": ["read"], "write": ["read", "write"], "admin": ["read", "write", "admin"]}


def test_a_key_works_until_it_expires(any_database: Database) -> None:
    now = [1_000.0]
    keys = KeyStore(any_database, lambda: now[0])
    key, token = keys.create("guest", ["read"], expires_after_s=60)
    assert key.expires_at == 1_060
    now[0] = 1_059.9
    assert keys.find(token) == key
    now[0] = 1_060.0
    assert keys.find(token) is None and keys.list() == [key]
