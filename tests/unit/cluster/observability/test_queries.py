"""Panels take their queries, names, units and descriptions from the list of metrics."""

from __future__ import annotations

import re

import pytest

from agent_rft.cluster.observability.dashboards.grafana import Dashboard, dashboard_json
from agent_rft.cluster.observability.dashboards.queries import (
    MetricQuery,
    build_rate_query,
    panel,
    query_gauge,
    query_mean,
    query_quantile,
)
from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from agent_rft.cluster.observability.promql import samples


def test_a_panel_of_one_metric_has_its_label_unit_and_help() -> None:
    shown = panel(query_gauge("checkpoint_bytes"))
    assert (shown.title, shown.unit, shown.about) == (
        "Checkpoint size",
        "bytes",
        "Size of the last checkpoint on disk.",
    )
    assert [query.legend for query in shown.queries] == ["checkpoint size"]


def test_a_panel_of_several_metrics_names_each_in_legend_and_description() -> None:
    shown = panel(
        build_rate_query("groups_trained", per="minute"), build_rate_query("groups_lost", per="minute"), title="Groups"
    )
    assert [query.legend for query in shown.queries] == ["trained", "lost"]
    assert [line.partition(":")[0] for line in shown.about.splitlines()] == ["- trained", "- lost"]


def test_legends_name_the_job_on_a_page_of_many() -> None:
    shown = panel(query_gauge("version"), many_jobs=True)
    assert [query.legend for query in shown.queries] == ["{{job}}"]
    assert query_quantile(0.95, "rollout_tokens/train/<kind>").legend(many_jobs=True) == "p95 {{kind}} {{job}}"


def test_a_baseline_is_a_dashed_line() -> None:
    shown = panel(query_gauge("train_mean_reward"), dashed=(query_gauge("baseline_valid_mean_reward"),), title="Reward")
    assert [(query.legend, query.dashed) for query in shown.queries] == [("train", False), ("baseline", True)]
    assert "- baseline: Mean reward over the validation file before training." in shown.about


def test_placeholders_become_labels_of_the_query_and_fixed_values_conditions() -> None:
    query = query_quantile(0.95, "rollout_tokens/train/<kind>")
    assert 'agent_rft_rollout_tokens_bucket{job=~"$job",split="train"}[$steps]' in query.expr
    assert "sum by (job, kind, le)" in query.expr
    assert query.legend() == "p95 {{kind}}"


@pytest.mark.parametrize(
    ("query", "unit"),
    [
        (build_rate_query("endpoint/<endpoint>/bytes_in"), "Bps"),
        (query_gauge("clipped_share"), "percentunit"),
        (query_gauge("learning_rate"), "sci"),
        (query_gauge("grad_norm"), "none"),
        (query_mean("time_wait_s"), "s"),
        (query_gauge("engine_slots"), "short"),
    ],
)
def test_a_query_is_shown_in_the_unit_of_its_metric(query: MetricQuery, unit: str) -> None:
    assert panel(query).unit == unit


def test_queries_that_prometheus_cannot_answer_are_refused() -> None:
    with pytest.raises(KeyError, match="made_up"):
        query_gauge("made_up")
    with pytest.raises(ValueError, match="not a counter"):
        build_rate_query("grad_norm")
    with pytest.raises(ValueError, match="histogram"):
        query_gauge("time_step_s")
    with pytest.raises(ValueError, match="file"):
        samples("tool/<tool>/calls_mean")


def test_panels_of_metrics_with_different_units_or_without_a_title_are_refused() -> None:
    with pytest.raises(ValueError, match="a single unit"):
        panel(query_gauge("loss"), query_mean("time_step_s"), title="Loss and time")
    with pytest.raises(ValueError, match="give it a title"):
        panel(query_gauge("loss"), query_gauge("grad_norm"))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_queries_use_only_variables_of_their_dashboard(dashboard: Dashboard) -> None:
    shown = dashboard_json(dashboard)
    known = {variable["name"] for variable in shown["templating"]["list"]}
    used = {name for _, expr in dashboard.named_expressions for name in re.findall(r"\$([a-z]\w*)", expr)}
    assert used <= known, "Grafana would send the name of the variable, and the panel would stay empty"
