"""How `agent-rft explain` finds what a name stands for."""

from __future__ import annotations

import pytest

from agent_rft.cli import main
from agent_rft.cli.api_commands import server_commands
from agent_rft.cli.readiness_command import NOT_READY
from agent_rft.cli.reference.catalog import EXIT_CODES, build_catalog, find_entries, similar_names
from agent_rft.cli.reference.setting_list import DocumentedSetting
from agent_rft.cluster.run.stop_signals import STOPPED_EXIT_CODE
from agent_rft.errors import DiscardError


def setting(path: str, file: str = "job") -> DocumentedSetting:
    return DocumentedSetting(
        file=file, path=path, type="integer", default="1", bounds="at least 1", description=f"About {path}."
    )


GRADER = "method.reinforcement.grader"
ENTRIES = build_catalog(
    [
        setting("seed"),
        setting("method.reinforcement.limits.max_tool_calls"),
        setting("method.reinforcement.tools[].timeout_s"),
        setting(f"{GRADER}[python].timeout_s"),
        setting(f"{GRADER}[endpoint].url"),
        setting("models.NAME.base_url", "operator"),
    ]
)


def found(name: str) -> list[tuple[str, str]]:
    return [(entry.kind, entry.name) for entry in find_entries(name, ENTRIES)]


@pytest.mark.parametrize(
    ("name", "kind", "listed"),
    [
        ("duplicate_key", "problem code", "duplicate_key"),
        ("invalid_int_parsing", "problem code", "invalid_<type>"),
        ("nodes_syntax", "problem code", "<file>_syntax"),
        ("grad_norm", "metric", "grad_norm"),
        ("tool/search/errors", "metric", "tool/<tool>/errors"),
        ("agent_rft_grad_norm", "metric", "grad_norm"),
        ("agent_rft_tool_errors_total", "metric", "tool/<tool>/errors"),
        ('agent_rft_tool_errors_total{tool="search"}', "metric", "tool/<tool>/errors"),
        ("agent_rft_sync_pause_seconds_bucket", "metric", "sync_pause_s"),
        ("agent_rft_sync_pause_seconds", "metric", "sync_pause_s"),
        ("rollouts_throttled", "event", "rollouts_throttled"),
        ("diverged", "alarm rule", "diverged"),
        ("rollout_timeout", "discard reason", "rollout_timeout"),
        ("3", "exit code", "3"),
        ("too_easy", "readiness reason", "too_easy"),
        ("seed", "setting", "seed"),
        ("max_tool_calls", "setting", "method.reinforcement.limits.max_tool_calls"),
        ("limits.max_tool_calls", "setting", "method.reinforcement.limits.max_tool_calls"),
        ("method.reinforcement.tools[3].timeout_s", "setting", "method.reinforcement.tools[].timeout_s"),
        (f"{GRADER}.url", "setting", f"{GRADER}[endpoint].url"),
        (f"{GRADER}[endpoint].url", "setting", f"{GRADER}[endpoint].url"),
        (f"{GRADER}.graders.tests.url", "setting", f"{GRADER}[endpoint].url"),
        ("method.reinforcement.guards[0].grader.url", "setting", f"{GRADER}[endpoint].url"),
        ("method.reinforcement.held_out_grader.url", "setting", f"{GRADER}[endpoint].url"),
        ("models.gpt-5.base_url", "setting", "models.NAME.base_url"),
    ],
)
def test_a_name_is_found_as_it_is_written_in_each_place(name: str, kind: str, listed: str) -> None:
    assert found(name) == [(kind, listed)]


def test_a_name_with_several_meanings_has_several_entries() -> None:
    assert found("tool_failed") == [("problem code", "tool_failed"), ("discard reason", "tool_failed")]
    assert found("timeout_s") == [
        ("setting", "method.reinforcement.tools[].timeout_s"),
        ("setting", f"{GRADER}[python].timeout_s"),
    ]


@pytest.mark.parametrize(
    "name", ["invalid_nothing", "max_tool", "tools[x].timeout_s", "gpt.base_url", "", ".", "[", "5"]
)
def test_other_names_are_unknown(name: str) -> None:
    assert found(name) == []


def test_names_that_are_spelled_alike_are_suggested() -> None:
    assert similar_names("forbiden_address", ENTRIES)[0] == "forbidden_address"
    assert similar_names("max_tol_calls", ENTRIES)[0] == "method.reinforcement.limits.max_tool_calls"
    assert similar_names("xyzzy", ENTRIES) == []


def test_every_reason_to_discard_a_rollout_says_what_to_do() -> None:
    entries = [entry for entry in ENTRIES if entry.kind == "discard reason"]
    assert {entry.name for entry in entries} == {cls.reason for cls in DiscardError.__subclasses__()}
    assert all(len(entry.meaning) > 80 for entry in entries)


def test_a_metric_says_its_unit_and_where_it_is_shown() -> None:
    (entry,) = find_entries("sync_pause_s", ENTRIES)
    assert entry.facts["unit"] == "s"
    assert "report, 'Weight sync'" in entry.facts["shown in"]


def test_the_exit_codes_of_the_commands_are_listed() -> None:
    assert {0, 1, 2, server_commands.CANCELLED, NOT_READY, STOPPED_EXIT_CODE} == EXIT_CODES.keys()
    assert all(f"{code} " in str(main.__doc__) for code in EXIT_CODES)
