"""Secrets at rest: sealed for one purpose and one context, with a master secret that only its owner can read."""

from __future__ import annotations

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from agent_rft.errors import RftError, UnsealFailed, UserError
from agent_rft.serve.stores.sealed_secrets import (
    KEY_FILE,
    FileSecrets,
    FixedSecrets,
    MasterSecret,
    Purpose,
    SecretBox,
    find_master_secrets,
)


def box() -> SecretBox:
    return SecretBox(FixedSecrets((MasterSecret.generate(),)))


def test_a_sealed_text_can_be_opened_after_a_restart(tmp_path: Path) -> None:
    sealed = SecretBox.from_folder(tmp_path, {}).sealer("job", "a").seal("Bearer hunter2 ä")
    assert "hunter2" not in sealed
    assert SecretBox.from_folder(tmp_path, {}).sealer("job", "a").open(sealed) == "Bearer hunter2 ä"
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_the_key_in_the_environment_takes_precedence_and_no_file_is_created(tmp_path: Path) -> None:
    key = Fernet.generate_key().decode()
    sealed = SecretBox.from_folder(tmp_path, {"AGENT_RFT_SECRET_KEY": key}).sealer("job", "a").seal("x")
    opened = SecretBox(FixedSecrets((MasterSecret(key),))).sealer("job", "a").open(sealed)
    assert opened == "x" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("purpose", "context"), [("reasoning", "a"), ("job", "b"), ("job", ""), ("reasoning", "b")])
def test_a_text_opens_only_for_its_purpose_and_context(purpose: Purpose, context: str) -> None:
    one = box()
    sealed = one.sealer("job", "a").seal("hunter2")
    with pytest.raises(UnsealFailed):
        one.sealer(purpose, context).open(sealed)


def changed_at(i: int) -> Callable[[str], str]:
    return lambda text: text[:i] + ("A" if text[i] != "A" else "B") + text[i + 1 :]


@pytest.mark.parametrize(
    "change",
    [*(changed_at(i) for i in (0, 1, 4, 19, 20, 30, 40, -6)), lambda t: t[:-4], lambda t: t + "AAAA", lambda t: "",
     lambda t: t[:20], lambda t: t + "é", lambda t: t.replace("v1", "v2"), lambda t: "\ud800"],
)  # fmt: skip
def test_a_changed_text_does_not_open_and_reveals_nothing(change: Callable[[str], str]) -> None:
    sealer = box().sealer("job", "a")
    with pytest.raises(UnsealFailed, match="Restore the server's previous key") as failed:
        sealer.open(change(sealer.seal("hunter2")))
    assert "hunter2" not in str(failed.value)


def test_another_servers_text_does_not_open() -> None:
    with pytest.raises(UnsealFailed):
        box().sealer("job", "a").open(box().sealer("job", "a").seal("x"))


def test_equal_texts_are_sealed_differently() -> None:
    sealer = box().sealer("job", "a")
    assert sealer.seal("x") != sealer.seal("x")


@pytest.mark.parametrize("key", ["hunter2", "", "é" * 32, "B" * 40, "A" * 43])
def test_an_invalid_key_is_reported_without_revealing_it(key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="32 random bytes") as failed:
        SecretBox.from_folder(tmp_path, {"AGENT_RFT_SECRET_KEY": key})
    assert not key or key not in str(failed.value)
    (tmp_path / KEY_FILE).write_text(key)
    with pytest.raises(UserError, match="32 random bytes"):
        SecretBox.from_folder(tmp_path, {})


def test_a_master_secret_is_not_shown() -> None:
    master = MasterSecret.generate()
    secrets = FixedSecrets((master,))
    sealer = SecretBox(secrets).sealer("job", "a")
    assert master.text not in f"{master!r} {secrets!r} {sealer!r} {master.id}"


def test_a_new_key_alone_in_the_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="AGENT_RFT_SECRET_KEY is not"):
        find_master_secrets(tmp_path, {"AGENT_RFT_NEW_SECRET_KEY": Fernet.generate_key().decode()})


def test_a_key_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RftError, match="No such file"):
        FileSecrets(tmp_path / KEY_FILE).read()


def test_servers_that_start_at_the_same_time_use_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        sealed = list(threads.map(lambda _: SecretBox.from_folder(tmp_path, {}).sealer("job", "a").seal("x"), range(8)))
    sealer = SecretBox.from_folder(tmp_path, {}).sealer("job", "a")
    assert [sealer.open(text) for text in sealed] == ["x"] * 8
