"""Bad situations in a real browser: no connection, a key that is revoked, a job that others change or that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import delete

from agent_rft.serve.host.server_state import ServerState
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRow
from tests.console.conftest import Site
from tests.console.test_frame import Open
from tests.console.test_jobs import state_of
from tests.support.jobs import NEW_JOB


class Owned:
    """Jobs of a key of its own, in a server's stores."""

    def __init__(self, state: ServerState, name: str) -> None:
        self.state = state
        self.store = JobStore(state.database)
        self.key, self.token = state.keys.create(name, ["write"])

    def job(self, name: str, *moves: Any) -> str:
        new = replace(NEW_JOB, owner=self.key.id, digest=name, suffix=name)
        made = self.store.create(new)[0].id
        for move in moves:
            self.store.move(made, move)
        return made


@contextmanager
def owner(site: Site, name: str) -> Iterator[Owned]:
    with state_of(site) as state:
        yield Owned(state, name)


def test_a_lost_connection_is_said_and_live_values_come_back_by_themselves(opened: Open, site: Site) -> None:
    with owner(site, "traveller") as bob:
        job = bob.job("far-away", "queued", "running")
        page = opened(f"#/jobs/{job}", token=bob.token)
        page.get_by_text("live", exact=True).wait_for()
        page.context.set_offline(True)
        bob.store.add_event(job, "info", "the training goes on")
        page.get_by_text("connection lost, trying again").wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_text("You are still logged in.").wait_for()
        page.context.set_offline(False)
        page.get_by_text("the training goes on").wait_for()
        page.get_by_text("live", exact=True).wait_for()
        assert page.get_by_text("connection lost").count() == 0


def test_a_server_that_does_not_answer_is_said_and_asked_again(opened: Open, site: Site) -> None:
    with owner(site, "patient") as bob:
        job = bob.job("unreached", "queued", "running")
        page = opened(token=bob.token)
        page.route("**/stream*", lambda route: route.abort())
        page.goto(f"{site.url}#/jobs/{job}")
        page.get_by_text("connection lost, trying again").wait_for()
        page.unroute("**/stream*")
        page.get_by_text("live", exact=True).wait_for()


def test_of_two_people_on_a_job_each_sees_what_the_other_does(opened: Open, site: Site) -> None:
    with owner(site, "pair") as pair:
        job = pair.job("for-two", "queued", "running", "paused")
        ann, bob = (opened(f"#/jobs/{job}", token=pair.token) for _ in range(2))
        bob.get_by_role("button", name="Resume").click()
        bob.get_by_role("button", name="Resume the job").click()
        ann.get_by_text("queued", exact=True).wait_for()
        ann.get_by_role("button", name="Cancel").click()
        bob.get_by_role("button", name="Cancel").click()
        ann.get_by_role("button", name="Cancel the job").click()
        ann.get_by_text("cancelled", exact=True).wait_for()
        bob.get_by_text("cancelled", exact=True).wait_for()
        bob.get_by_role("button", name="Cancel the job").click()
        bob.get_by_role("alert").get_by_text("is cancelled", exact=False).wait_for()
        bob.keyboard.press("Escape")
        assert bob.get_by_role("button", name="Cancel").count() == 0


def test_a_job_that_is_gone_while_its_page_is_open_is_told(opened: Open, site: Site) -> None:
    with owner(site, "careless") as bob:
        job = bob.job("short-lived", "queued", "running")
        page = opened(f"#/jobs/{job}", token=bob.token)
        page.get_by_text("live", exact=True).wait_for()
        with bob.state.database.session() as session:
            session.execute(delete(JobRow).where(JobRow.id == job))
        page.get_by_role("alert").get_by_text("No such fine-tuning job").wait_for()
        assert page.get_by_text("connection lost").count() == 0


def test_a_key_revoked_while_an_ended_job_is_open_leads_to_the_login_and_back(opened: Open, site: Site) -> None:
    with owner(site, "leaver") as bob:
        job = bob.job("long-done", "queued", "running", "succeeded")
        page = opened(f"#/jobs/{job}?tab=events", token=bob.token)
        page.clock.install()
        page.reload()
        page.get_by_role("tab", name="Events").wait_for()
        bob.state.keys.revoke(bob.key.id)
        status = "fetch('/v1/console/session').then((answer) => answer.status)"
        while page.evaluate(status) != 401:  # the server asks its database about a key once in a second
            page.wait_for_timeout(100)
        page.clock.fast_forward(30_000)  # an ended job's page asks for nothing else
        page.get_by_text("its key was revoked").wait_for()
        page.get_by_label("API key").fill(site.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="long-done").wait_for()
        assert page.url.endswith(f"#/jobs/{job}?tab=events")


def test_all_jobs_that_are_shown_are_kept_up_to_date(opened: Open, site: Site) -> None:
    with owner(site, "diligent") as bob:
        oldest = bob.job("oldest", "queued")
        for number in range(25):
            bob.job(f"later-{number}", "queued")
        page = opened("#/jobs", token=bob.token)
        page.clock.install()
        page.reload()
        page.get_by_role("link", name="later-24").wait_for()
        assert page.get_by_role("link", name="oldest").count() == 0
        page.get_by_role("button", name="Load older jobs").click()
        entry = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="oldest"))
        entry.get_by_text("queued").wait_for()
        bob.store.move(oldest, "running")
        page.clock.fast_forward(10_000)
        entry.get_by_text("running").wait_for()


def test_focus_goes_into_a_dialog_and_back_to_its_button(opened: Open, site: Site) -> None:
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.tagName"
    with owner(site, "typist") as bob:
        job = bob.job("by-keyboard", "queued", "running", "paused")
        page = opened(f"#/jobs/{job}", token=bob.token)
        page.get_by_role("button", name="Cancel").focus()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").locator(":focus").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        assert page.evaluate(focused) == "Cancel by-keyboard"
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Resume the job").click()
        page.get_by_text("queued", exact=True).wait_for()
        page.get_by_role("dialog").wait_for(state="detached")
        assert page.evaluate(focused) == "MAIN", "a queued job has no button Resume any more"


def test_a_question_that_is_being_typed_is_kept_when_the_rows_arrive(opened: Open, site: Site) -> None:
    page = opened()
    asked: list[Any] = []
    page.route("**/rollouts?*", lambda route: asked.append(route))
    page.goto(f"{site.url}#/jobs/{site.job}?tab=try")
    question = page.get_by_label("Question")
    question.fill("How much is it?")
    while not asked:
        page.wait_for_timeout(50)
    asked.pop().continue_()
    page.get_by_label("Row").wait_for()
    assert question.input_value() == "How much is it?"
    page.get_by_label("Row").select_option(index=1)
    assert "what was net income" in question.input_value()
