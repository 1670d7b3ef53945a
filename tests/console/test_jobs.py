"""The list of jobs and a job's page: live curves, what two people do, checkpoints, settings, and a chat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_rft.serve.stores.job_store import JobStore
from tests.console.conftest import Site, state_of
from tests.console.test_frame import Open
from tests.support.console_jobs import make_jobs
from tests.support.jobs import NEW_JOB


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, str]:
    """The ids of jobs in each state, by name; the admin's key has made them."""
    with state_of(site) as state:
        owner = state.keys.list()[0].id
        return make_jobs(site.folder, state.database, state.secrets, owner, "https://tools.example/", steps=10)


def tab(page: Any, name: str) -> Any:
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel")


def test_the_list_shows_state_progress_and_the_reward_against_before(opened: Open, jobs: dict[str, str]) -> None:
    page = opened("#/jobs")
    done = page.get_by_role("listitem").filter(has_text="ledger-done")
    done.get_by_text("step 10 of 10").wait_for()
    assert "succeeded" in done.inner_text() and "validation reward" in done.inner_text()
    assert "+" in done.inner_text() and done.get_by_role("button").count() == 0
    page.get_by_label("Find jobs").fill("first-try")
    assert page.get_by_role("listitem").count() == 1
    assert "training_file: line 7 has no messages" in page.get_by_role("listitem").inner_text()
    page.get_by_role("link", name="first-try").click()
    page.get_by_text("No step has finished yet.").wait_for()


def test_a_bend_in_a_curve_leads_to_the_rollouts_of_its_step(opened: Open, site: Site, jobs: dict[str, str]) -> None:
    page = opened(f"#/jobs/{jobs['ledger-done']}")
    page.get_by_role("heading", name="Learning").wait_for()
    assert page.locator("figure.chart").count() >= 12
    reward = page.get_by_role("application", name="Reward. train", exact=False)
    assert "validation" in reward.get_attribute("aria-label") and "held-out grade" in reward.get_attribute("aria-label")
    reward.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollouts?step=10")
    headers = {"authorization": f"Bearer {site.token}"}
    listed = page.request.get(f"{site.url}v1/fine_tuning/jobs/{jobs['ledger-done']}/events", headers=headers).json()
    done = next(event for event in listed["data"] if event["type"] == "metrics")
    for at, query in ((1_000 * (done["created_at"] + 60), "?step=10"), (1_000, "")):  # as dashboards link them, in ms
        page.goto(f"{site.url}#/jobs/{jobs['ledger-done']}/rollouts?at={at}")
        page.reload()
        page.wait_for_url(f"**/rollouts{query}")


def test_what_happens_and_what_another_person_does_is_shown_at_once(
    opened: Open, site: Site, jobs: dict[str, str]
) -> None:
    live = jobs["ledger-live"]
    page = opened(f"#/jobs/{live}")
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_role("button", name="Pause").click()
    with state_of(site) as state:
        JobStore(state.database).add_event(live, "warn", "search answers slowly")
        JobStore(state.database).move(live, "paused")
    page.get_by_role("button", name="Pause the job").click()
    page.get_by_role("alert").get_by_text("is paused and cannot become paused", exact=False).wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Resume").wait_for()
    tab(page, "Events").get_by_text("search answers slowly").first.wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Resume the job").click()
    page.get_by_text("queued", exact=True).wait_for()


def test_an_action_is_shown_before_the_list_answers_and_focus_stays_in_its_row(opened: Open, site: Site) -> None:
    lists = "**/v1/fine_tuning/jobs?*"
    page = opened("#/jobs")
    with state_of(site) as state:
        store = JobStore(state.database)

        def make(name: str) -> None:
            new = replace(NEW_JOB, owner=state.keys.list()[0].id, digest=name, suffix=name)
            made = store.create(new)[0].id
            for status in ("queued", "running"):
                store.move(made, status)
            store.next_attempt(made, 0, "handle", failures=0)

        make("own-job")
        page.reload()
        row = page.get_by_role("listitem").filter(has_text="own-job")
        row.get_by_role("button", name="Pause").wait_for()
        held: list[Any] = []
        page.route(lists, lambda route: held.append(route))  # Playwright marks what it is given
        row.get_by_role("button", name="Pause").press("Enter")
        page.get_by_role("button", name="Pause the job").press("Enter")
        row.get_by_text("paused", exact=True).wait_for()
        assert row.locator("button:focus").inner_text() == "Resume"
        make("made-meanwhile")
        for route in held:
            route.continue_()
        page.unroute(lists)
    page.get_by_role("link", name="made-meanwhile").wait_for()
    assert row.locator("button:focus").inner_text() == "Resume"
    row.get_by_role("button", name="Cancel").press("Enter")
    page.get_by_role("button", name="Cancel the job").press("Enter")
    row.get_by_text("cancelled", exact=True).wait_for()
    assert row.locator("a:focus").inner_text() == "own-job"


def test_two_checkpoints_are_compared_and_one_is_called(opened: Open, jobs: dict[str, str]) -> None:
    page = opened(f"#/jobs/{jobs['ledger-done']}?tab=checkpoints")
    panel = page.get_by_role("tabpanel")
    panel.get_by_text("best", exact=True).wait_for()
    for step in (4, 8):
        panel.get_by_label(f"Compare step {step}").check()
    differences = panel.get_by_role("region", name="Two checkpoints").inner_text()
    assert "Step 4 and step 8" in differences and "Tool calls per rollout" in differences and "Loss" not in differences
    panel.get_by_role("button", name="Call step 8").click()
    assert 'model="ft:gpt-5:local:ledger-done:1:ckpt-step-8"' in page.get_by_role("dialog").inner_text()


def test_settings_are_found_as_given_and_as_the_job_runs_with_them(opened: Open, jobs: dict[str, str]) -> None:
    page = opened(f"#/jobs/{jobs['ledger-done']}?tab=settings")
    panel = page.get_by_role("tabpanel")
    panel.get_by_text("plan.steps").wait_for()
    panel.get_by_label("Find a setting").fill("n_epochs")
    given = panel.get_by_role("row").filter(has_text="method.reinforcement.hyperparameters.n_epochs").inner_text()
    assert given.split() == ["method.reinforcement.hyperparameters.n_epochs", "2", "auto"]


def test_a_model_of_the_job_answers_the_question_of_a_row(opened: Open, jobs: dict[str, str]) -> None:
    page = opened(f"#/jobs/{jobs['ledger-done']}?tab=try&model=gpt-5")
    panel = page.get_by_role("tabpanel")
    panel.get_by_text("Tools: search, cat, list.", exact=False).wait_for()
    assert "what was net income" in panel.get_by_label("Question").input_value()
    panel.get_by_role("button", name="Ask").click()
    panel.get_by_role("region", name="Conversation").get_by_text("1", exact=True).wait_for()


def test_a_key_that_may_only_read_sees_no_records_of_others_and_changes_nothing(
    opened: Open, site: Site, jobs: dict[str, str]
) -> None:
    with state_of(site) as state:
        token = state.keys.create("reader", ["read"])[1]
    page = opened(f"#/jobs/{jobs['ledger-paused']}", token=token)
    page.get_by_text("This job belongs to another key.").wait_for()
    assert page.get_by_role("button", name="Resume").count() == 0
    assert "write scope" in tab(page, "Try").inner_text()
    page.goto(f"{site.url}#/jobs/ftjob-gone")
    page.get_by_role("alert").get_by_text("No such fine-tuning job").wait_for()
