"""The model registry: models are found by id only, with their training's settings, also after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import expanduser, relpath
from pathlib import Path

import pytest
from sqlalchemy import text

from agent_rft.chat.dialect import Dialect
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.model_registry import ModelRegistry, ProtectedModel, UnknownModel
from tests.support.jobs import database_with_tables

ALIASES = {"gpt-5": "models/large", "Qwen/Qwen3-4B": "Qwen/Qwen3-4B"}
TUNED = "ft:gpt-5:org:ledger:abc123"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = database_with_tables(tmp_path)
    yield database
    database.close()


@pytest.fixture
def registry(database: Database) -> ModelRegistry:
    return ModelRegistry(database, ALIASES, clock=iter(range(1000, 2000)).__next__)


@pytest.mark.parametrize("name", ALIASES)
def test_a_base_model_resolves_to_the_folder_the_operator_configured(registry: ModelRegistry, name: str) -> None:
    record = registry.resolve(name)
    assert (record.id, record.folder, record.job_id, record.owned_by) == (name, ALIASES[name], None, "system")


def test_a_dated_form_of_an_alias_is_the_same_model(database: Database) -> None:
    registry = ModelRegistry(database, {"o4-mini": "small", "o4-mini-2025-04-16": "exact"})
    dated, precise = registry.resolve("o4-mini-2025-05-01"), registry.resolve("o4-mini-2025-04-16")
    assert (dated.id, dated.base, dated.folder, dated.owned_by) == (*["o4-mini-2025-05-01"] * 2, "small", "system")
    assert precise.folder == "exact"
    assert [(found.id, found.folder) for found in registry.list()] == [
        ("o4-mini", "small"),
        ("o4-mini-2025-04-16", "exact"),
    ]
    with pytest.raises(ValueError, match="base model"):
        registry.add("o4-mini-2025-05-01", "a", "o4-mini", "ftjob-1")
    with pytest.raises(ProtectedModel):
        registry.delete("o4-mini-2025-05-01")


def test_a_tilde_in_the_folder_of_an_alias_is_the_home(database: Database, tmp_path: Path) -> None:
    here = f"~/{relpath(tmp_path, expanduser('~'))}"
    assert ModelRegistry(database, {"gpt-5": here}).resolve("gpt-5").folder == str(tmp_path)


def test_an_unknown_model_names_the_nearest_alias_and_how_to_add_one(registry: ModelRegistry) -> None:
    for ask in (registry.resolve, registry.delete):
        with pytest.raises(
            UnknownModel, match=r"'gpt5' does not exist: did you mean 'gpt-5'\?.* `aliases` in agent-rft.yaml"
        ):
            ask("gpt5")
    with pytest.raises(UnknownModel) as raised:
        registry.resolve("llama")
    assert "did you mean" not in raised.value.message and raised.value.fix.endswith("in agent-rft.yaml")


def test_a_tuned_model_keeps_its_training_settings_after_a_restart(registry: ModelRegistry, database: Database) -> None:
    dialect = Dialect("llama3", "llama3_json", ("<|eom_id|>",), ("<a>", "</a>"), {"enable_thinking": True}, "{{ x }}")
    settings = ServeSettings(dialect, 4096, 512, 100, 2048, 0.7)
    added = registry.add(TUNED, Path("runs/a/checkpoints/final"), "gpt-5", "ftjob-1", settings)
    found = ModelRegistry(database, ALIASES).resolve(TUNED)
    assert found == added
    assert found.settings == settings
    assert found.folder == "runs/a/checkpoints/final"


def test_settings_of_another_version_are_left_out(registry: ModelRegistry, database: Database) -> None:
    registry.add(TUNED, "a", "gpt-5", "ftjob-1", ServeSettings(context_length=64))
    with database.engine.begin() as connection:
        connection.execute(text("""UPDATE models SET settings = '{"context_length": 64, "naps": 3}'"""))
    assert registry.resolve(TUNED).settings == ServeSettings(context_length=64)


def test_the_list_has_base_models_first_then_tuned_models_newest_first(registry: ModelRegistry) -> None:
    for step in (1, 2):
        registry.add(f"{TUNED}:ckpt-step-{step}", f"c{step}", "gpt-5", "ftjob-1")
    ids = [record.id for record in registry.list()]
    assert ids == ["gpt-5", "gpt-5-2025-08-07", "Qwen/Qwen3-4B", f"{TUNED}:ckpt-step-2", f"{TUNED}:ckpt-step-1"]


def test_a_resumed_job_may_add_its_model_again_and_the_creation_date_stays(registry: ModelRegistry) -> None:
    first = registry.add(TUNED, "old", "gpt-5", "ftjob-1")
    again = registry.add(TUNED, "new", "gpt-5", "ftjob-1")
    assert (again.folder, again.created_at) == ("new", first.created_at)
    assert [record.id for record in registry.list()].count(TUNED) == 1


def test_a_job_cannot_take_the_id_of_another_jobs_model_or_of_a_base_model(registry: ModelRegistry) -> None:
    registry.add(TUNED, "a", "gpt-5", "ftjob-1")
    with pytest.raises(ValueError, match="ftjob-1"):
        registry.add(TUNED, "b", "gpt-5", "ftjob-2")
    with pytest.raises(ValueError, match="base model"):
        registry.add("gpt-5", "b", "gpt-5", "ftjob-2")


def test_a_deleted_model_is_unknown(registry: ModelRegistry) -> None:
    registry.add(TUNED, "a", "gpt-5", "ftjob-1")
    registry.delete(TUNED)
    for call in (registry.resolve, registry.delete):
        with pytest.raises(UnknownModel):
            call(TUNED)


def test_base_models_cannot_be_deleted(registry: ModelRegistry) -> None:
    with pytest.raises(ProtectedModel):
        registry.delete("gpt-5")
    assert registry.resolve("gpt-5")


@pytest.mark.parametrize("name", ["models/large", "../models/large", "/etc", "", "gpt-5:", "GPT-5", "a" * 5000, "\x01"])
def test_a_path_is_not_a_model_id(registry: ModelRegistry, name: str) -> None:
    with pytest.raises(UnknownModel):
        registry.resolve(name)


def test_a_relative_folder_resolves_to_an_absolute_path(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    registry = ModelRegistry(database, {"gpt-5": "base", "Qwen/Qwen3-4B": "Qwen/Qwen3-4B"})
    assert registry.resolve("gpt-5").folder == str(tmp_path / "base")
    assert registry.resolve("Qwen/Qwen3-4B").folder == "Qwen/Qwen3-4B"
