"""Secrets at rest: encrypted with a key file that only its owner can read."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from cluster.stores.secrets import KEY_FILE, SecretBox
from trainer.errors import UserError


def test_a_sealed_text_can_be_opened_after_a_restart(tmp_path: Path) -> None:
    sealed = SecretBox.of_folder(tmp_path, {}).seal("Bearer hunter2 ä")
    assert "hunter2" not in sealed
    assert SecretBox.of_folder(tmp_path, {}).open(sealed) == "Bearer hunter2 ä"
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_the_key_in_the_environment_takes_precedence_and_no_file_is_created(tmp_path: Path) -> None:
    key = Fernet.generate_key().decode()
    sealed = SecretBox.of_folder(tmp_path, {"AGENT_RFT_SECRET_KEY": key}).seal("x")
    assert SecretBox(key).open(sealed) == "x" and not list(tmp_path.iterdir())


def test_opening_with_another_key_or_a_changed_text_fails_without_revealing_the_secret(tmp_path: Path) -> None:
    box, other = SecretBox(Fernet.generate_key().decode()), SecretBox(Fernet.generate_key().decode())
    sealed = box.seal("hunter2")
    for opener, text in ((other, sealed), (box, sealed[:-4] + "AAAA"), (box, ""), (box, "hunter2")):
        with pytest.raises(UserError, match="cannot be decrypted") as failed:
            opener.open(text)
        assert "hunter2" not in str(failed.value)


def test_an_invalid_key_is_reported_without_revealing_it() -> None:
    with pytest.raises(UserError, match="32 random bytes") as failed:
        SecretBox("hunter2")
    assert "hunter2" not in str(failed.value)


def test_servers_that_start_at_the_same_time_use_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        sealed = list(threads.map(lambda _: SecretBox.of_folder(tmp_path, {}).seal("x"), range(8)))
    box = SecretBox.of_folder(tmp_path, {})
    assert [box.open(text) for text in sealed] == ["x"] * 8
