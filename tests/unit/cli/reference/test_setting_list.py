"""The list of all settings: complete, with paths as in the file, and values as a user writes them."""

from __future__ import annotations

import re

import pytest
import yaml

from agent_rft.cli.reference.editor_schemas import MODELS
from agent_rft.cli.reference.setting_list import DocumentedSetting, list_sections, list_settings
from agent_rft.spec.job import JobSpec
from tests.support.builders import raw_job

BY_PATH = {(setting.file, setting.path): setting for setting in list_settings()}


def setting(path: str, file: str = "job") -> DocumentedSetting:
    return BY_PATH[file, path]


def test_each_setting_is_listed_once() -> None:
    assert len(BY_PATH) == len(list_settings()) > 150
    assert {setting.file for setting in list_settings()} == set(MODELS)


def test_a_setting_says_what_may_be_written() -> None:
    found = setting("method.reinforcement.limits.max_failure_rate")
    assert (found.type, found.default, found.bounds) == ("number", "0.5", "above 0, at most 1")
    found = setting("cluster.engine_gpus")
    assert (found.type, found.default, found.bounds) == ("integer or auto", "auto", "at least 0, at most 1,024")
    found = setting("method.reinforcement.algorithm.learning_rate")
    assert (found.type, found.default, found.bounds) == ("number or auto", "auto", "above 0")
    found = setting("method.reinforcement.tools[].server_url")
    assert (found.type, found.default, found.bounds) == ("string", None, None)
    found = setting("models.NAME.api_key", "operator")
    assert (found.type, found.default) == ("string or null", "null")


def test_graders_are_told_apart_by_their_type() -> None:
    assert setting("method.reinforcement.grader[string_check].operation").type == "eq, ne, like or ilike"
    assert setting("method.reinforcement.grader[score_model].range").default == "[0, 1]"
    assert setting("method.reinforcement.held_out_grader").type == "grader or null"
    assert not [path for _, path in BY_PATH if path.startswith("method.reinforcement.held_out_grader[")]


def test_sections_hold_all_settings_below_their_own() -> None:
    for file in MODELS:
        paths = {section.path for section in list_sections(file)}
        assert "" in paths
        of_sections = {re.sub(r"(\[\w*\]|\.NAME)$", "", path) for path in paths - {""}}
        assert of_sections <= {path for of, path in BY_PATH if of == file}
        assert all(section.description for section in list_sections(file))


@pytest.mark.parametrize("name", ["limits", "reward", "algorithm", "hyperparameters"])
def test_defaults_are_written_as_in_a_file(name: str) -> None:
    prefix = f"method.reinforcement.{name}."
    found = {path.removeprefix(prefix): setting.default for (_, path), setting in BY_PATH.items() if prefix in path}
    written = {name: default for name, default in found.items() if "." not in name}
    text = "\n".join(f"{key}: {value}" for key, value in written.items())
    assert JobSpec.model_validate(raw_job(**{name: yaml.safe_load(text)})) == JobSpec.model_validate(raw_job())
