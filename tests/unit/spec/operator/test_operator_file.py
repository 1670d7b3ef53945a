"""The operator's configuration: where it is found, what it may contain, and that its secrets are never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.api_keys import KEY_FIX
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.spec.operator.operator_file import load_operator

GOOD = """
allowed_networks: [10.0.0.0/8, "fd00::/8"]
models:
  judge: {base_url: "https://judge.example/v1", api_key: "${JUDGE_KEY}", max_concurrency: 8}
"""


def problems_of(folder: Path, text: str, environment: dict[str, str] | None = None) -> list[Problem]:
    (folder / "operator.yaml").write_text(text)
    with pytest.raises(InvalidJob, match="in the operator's configuration") as raised:
        load_operator(folder / "operator.yaml", folder, environment or {})
    return raised.value.problems


def test_without_a_file_no_private_network_is_allowed(tmp_path: Path) -> None:
    assert load_operator(None, tmp_path, {}) == DEFAULT_CONFIG
    assert DEFAULT_CONFIG.allowed_networks == ()


def test_the_file_is_found_in_the_working_directory_or_at_the_given_path(tmp_path: Path) -> None:
    (tmp_path / "agent-rft.yaml").write_text(GOOD)
    (tmp_path / "other.json").write_text('{"allowed_networks": ["192.168.0.0/16"]}')
    operator = load_operator(None, tmp_path, {"JUDGE_KEY": "hunter2"})
    assert [str(entry) for entry in operator.allowed_networks] == ["10.0.0.0/8", "fd00::/8"]
    key = operator.models["judge"].api_key
    assert key is not None and key.get_secret_value() == "hunter2"
    (network,) = load_operator(tmp_path / "other.json", tmp_path, {}).allowed_networks
    assert str(network) == "192.168.0.0/16"
    (tmp_path / "empty.yaml").write_text("")
    assert load_operator(tmp_path / "empty.yaml", tmp_path, {}) == DEFAULT_CONFIG


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://rft.example.com", "https://rft.example.com"),
        (" https://RFT.example.com:443/ ", "https://rft.example.com"),
        ("http://rft.example.com:443", "http://rft.example.com:443"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://[FD00::5]:8443", "https://[fd00::5]:8443"),
    ],
)
def test_the_public_url_is_read_as_the_origin_that_browsers_send(tmp_path: Path, url: str, origin: str) -> None:
    (tmp_path / "agent-rft.yaml").write_text(f"public_url: '{url}'")
    assert load_operator(tmp_path / "agent-rft.yaml", tmp_path, {}).public_url == origin


def test_a_given_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="cannot be read"):
        load_operator(tmp_path / "none.yaml", tmp_path, {})


@pytest.mark.parametrize(
    ("text", "field", "line", "code"),
    [
        ("allowed_network: []", "allowed_network", 1, "invalid_extra_forbidden"),
        ("\nallowed_networks: [10.0.0.0/99]", "allowed_networks[0]", 2, "invalid_ip_any_network"),
        ("public_url: rft.example", "public_url", 1, "invalid_value_error"),
        ("public_url: https://rft.example/console", "public_url", 1, "invalid_value_error"),
        ("public_url: https://user@rft.example", "public_url", 1, "invalid_value_error"),
        ("public_url: ftp://rft.example", "public_url", 1, "invalid_value_error"),
        ("public_url: 'https://[::1'", "public_url", 1, "invalid_value_error"),
        ("models:\n  judge: {}", "models.judge.base_url", 2, "invalid_missing"),
        (
            'trackers:\n  mlflow: {tracking_uri: "http://x:y"}',
            "trackers.mlflow.tracking_uri",
            2,
            "invalid_value_error",
        ),
        ("unsandboxed_python: true\nunsandboxed_python: false", "unsandboxed_python", 2, "duplicate_key"),
        ("[1]", "config", None, "config_shape"),
        ("a: [", "config", 1, "config_syntax"),
        (GOOD, "models.judge.api_key", 4, "missing_variable"),
    ],
)
def test_a_mistake_names_its_field_and_line(tmp_path: Path, text: str, field: str, line: int | None, code: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert (problem.field, problem.line, problem.code) == (field, line, code)
    assert problem.fix


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("models.judge.api_key", "models: {judge: {base_url: http://a/v1, api_key: '{}'}}"),
        ("trackers.wandb.api_key", "trackers: {wandb: {api_key: '{}'}}"),
        ("trackers.mlflow.token", "trackers: {mlflow: {tracking_uri: http://a, token: '{}'}}"),
    ],
)
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(field: str, text: str, tmp_path: Path) -> None:
    config = tmp_path / "operator.yaml"
    for key, mistake in (
        ("“sk-secret”", "curly quotes"),
        ('"sk-secret"', "is enclosed in quotes"),
        ("a sk-secret", "a space"),
    ):
        config.write_text(text.replace("'{}'", json.dumps(key)))
        with pytest.raises(InvalidJob) as error:
            load_operator(config, environment={})
        (problem,) = error.value.problems
        assert (problem.field, problem.fix) == (field, KEY_FIX)
        assert mistake in problem.message and "secret" not in str(error.value)
    config.write_text(text.replace("'{}'", json.dumps("sk-1\n")))
    assert load_operator(config, environment={}) != DEFAULT_CONFIG


def test_no_key_is_shown(tmp_path: Path) -> None:
    bad = GOOD.replace('"${JUDGE_KEY}"', "4711471147")
    assert "4711471147" not in str(problems_of(tmp_path, bad))
