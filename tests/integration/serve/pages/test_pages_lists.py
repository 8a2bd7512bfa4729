"""Lists across pipelines: runs, expectations, backfills and alerts, with their filters and actions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.auth.roles import Role
from headgate.pipelines.runs.rows import Run
from tests.integration.serve.health_rig import done
from tests.integration.serve.pages.test_pages_pipelines import TODAY, YESTERDAY, PipelineSite
from tests.integration.serve.pages.test_routes import HOSTILE, ORIGIN, Document, actions_of, text_of
from tests.unit.notify.rig import a_notice


class ListSite(PipelineSite):
    """Two pipelines: one with a failed and an open run, one with a done run, a missed deadline and a backfill."""

    failed: Run
    running: Run
    backfill_id: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListSite]:
    made = ListSite(tmp_path_factory.mktemp("lists") / "home")
    try:
        made.define("bronze", owner="shop@example.com")
        made.define("gold")
        made.failed = made.fail("bronze", YESTERDAY, reason=HOSTILE)
        made.running = made.start("bronze")
        made.succeed("gold", YESTERDAY)
        made.miss("gold")
        asked = {"from": "2026-01-10", "to": "2026-01-12", "reason": "new rates"}
        made.backfill_id = done(made.post("/pipelines/gold/backfills", asked), 202)["backfill_id"]
        yield made
    finally:
        made.is_stopping = True
        made.close()


def test_runs__listed__link_to_run_and_pipeline(site: ListSite) -> None:
    page = Document.read(site.page("/ui/runs"))

    assert f"/ui/runs/{site.failed.run_id}" in page.links
    assert "/ui/pipelines/gold" in page.links


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("status=FAILED", "failed", "running"),
        ("status=PENDING&status=TRIGGERING&status=RUNNING", "running", "failed"),
        ("pipeline=bronze&status=FAILED", "failed", "running"),
        ("owner=shop@example.com&tier=3&status=RUNNING", "running", "failed"),
    ],
)
def test_runs__filtered__show_only_those(site: ListSite, query: str, shown: str, hidden: str) -> None:
    links = Document.read(site.page(f"/ui/runs?{query}")).links

    assert f"/ui/runs/{getattr(site, shown).run_id}" in links
    assert f"/ui/runs/{getattr(site, hidden).run_id}" not in links


def test_runs__chip_of_a_state__keeps_the_other_filters_and_is_current(site: ListSite) -> None:
    page = Document.read(site.page("/ui/runs?status=FAILED&pipeline=bronze"))

    current = [each["href"] for tag, each in page.tags if tag == "a" and each.get("aria-current") == "true"]
    assert current == ["/ui/runs?status=FAILED&pipeline=bronze"]
    assert "/ui/runs?pipeline=bronze" in page.links


def test_runs__none_match__say_how_to_start_one(site: ListSite) -> None:
    page = text_of(site.page("/ui/runs?status=CANCELLED"))

    assert "No runs match" in page
    assert "headgate run start" in page


def test_runs__unknown_state__is_refused_with_the_field(site: ListSite) -> None:
    assert "status" in text_of(site.page("/ui/runs?status=NONE", status=400))


def test_runs__failed_and_open__offer_rerun_and_cancel(site: ListSite) -> None:
    rerun = actions_of(site.page("/ui/runs?status=FAILED"))["Rerun"]
    done(site.post(f"{ORIGIN}{rerun['path']}", {**rerun["body"], "note": "disk is larger"}), 202)
    cancel = actions_of(site.page("/ui/runs?status=RUNNING"))["Cancel"]
    done(site.post(f"{ORIGIN}{cancel['path']}", {"reason": "wrong input"}), 202)


def test_expectations__missed__are_listed_with_period_and_next_slots(site: ListSite) -> None:
    page = site.page("/ui/expectations")
    links = Document.read(page).links

    assert f"/ui/pipelines/gold?date={TODAY}&schedule=daily" in links
    assert "MISSED" in text_of(page)
    assert "Due in the next 24 hours" in text_of(page)
    assert "/ui/pipelines/bronze" in links


def test_expectations__none_with_the_verdict__say_so(site: ListSite) -> None:
    page = site.page("/ui/expectations?verdict=WAIVED&owner=shop@example.com")

    assert "No expectation is waived" in text_of(page)
    assert "headgate schedule upcoming --owner shop@example.com" in text_of(page)


def test_backfills__listed__link_to_their_pages_and_filter_by_state(site: ListSite) -> None:
    address = f"/ui/backfills/{site.backfill_id}"

    assert address in Document.read(site.page("/ui/backfills")).links
    none = site.page("/ui/backfills?state=COMPLETED")
    assert address not in Document.read(none).links
    assert "headgate backfill create" in text_of(none)


def test_backfills__of_a_pipeline__can_be_started(site: ListSite) -> None:
    start = actions_of(site.page("/ui/backfills?pipeline=bronze"))["Start a backfill"]

    body = {"from": "2026-01-10", "to": "2026-01-10", "concurrency": 1, "redo": False, "reason": "again"}
    done(site.post(f"{ORIGIN}{start['path']}", body), 202)
    assert "bronze" in text_of(site.page("/ui/backfills?pipeline=bronze"))


def test_backfill__running__can_be_paused_resumed_and_cancelled(site: ListSite) -> None:
    address = f"/ui/backfills/{site.backfill_id}"
    page = site.page(address)
    assert "0 of 3 periods succeeded" in text_of(page)
    assert "2026-01-11" in text_of(page)

    for label, after in (("Pause", "It is paused"), ("Resume", "at most 1 at once"), ("Cancel", "It was cancelled")):
        action = actions_of(site.page(address))[label]
        done(site.post(f"{ORIGIN}{action['path']}", {"reason": "trial"}), 200)
        assert after in text_of(site.page(address))
    assert actions_of(site.page(address)) == {}


def test_backfill__unknown__is_not_found(site: ListSite) -> None:
    assert "Not Found" in text_of(site.page("/ui/backfills/none", status=404))


def test_lists__of_a_caller_who_may_only_read__cannot_be_acted_on(site: ListSite) -> None:
    page = site.page("/ui/runs?status=FAILED", key=site.key("reader", Role.VIEWER))

    buttons = [each for tag, each in Document.read(page).tags if tag == "button" and each.get("data-action")]
    assert buttons
    assert all("disabled" in each and "operator" in str(each["title"]) for each in buttons)


@pytest.fixture
def alert_id(site: ListSite) -> str:
    """A new alert of the pipeline bronze."""
    notice = a_notice(
        site.pipelines.service.ids.ulid(), site.now_ms, pipeline_id="bronze", dedup_key=f"of-{site.now_ms}"
    )
    site.pipelines.notifier.take(notice)
    site.clock.advance(1)
    found = site.get("/alerts", params={"pipeline": "bronze"}).json()["alerts"]
    return str(found[0]["alert_id"])


def test_alerts__open__is_listed_and_can_be_acknowledged(site: ListSite, alert_id: str) -> None:
    page = site.page("/ui/alerts?status=OPEN&pipeline=bronze")
    assert f"/ui/alerts/{alert_id}" in Document.read(page).links
    assert "CRITICAL" in text_of(page)

    one = site.page(f"/ui/alerts/{alert_id}")
    assert "/ui/pipelines/bronze" in Document.read(one).links
    acknowledge = actions_of(one)["Acknowledge"]
    done(site.post(f"{ORIGIN}{acknowledge['path']}", {"note": "on it"}), 200)
    acknowledged = site.page(f"/ui/alerts/{alert_id}")
    assert "ACKNOWLEDGED" in text_of(acknowledged)
    assert "on it" in text_of(acknowledged)
    assert set(actions_of(acknowledged)) == {"Mute"}


def test_alerts__muted__show_the_mute_and_end_it(site: ListSite) -> None:
    mute = actions_of(site.page("/ui/alerts"))["Mute"]
    sent = {"pipeline": "silver-*", "event": "SLA_*", "severity_max": "warning", "duration": "2h", "reason": "move"}
    done(site.post(f"{ORIGIN}{mute['path']}", sent), 201)

    page = site.page("/ui/alerts")
    assert "silver-*" in text_of(page)
    end = actions_of(page)["End"]
    assert site.ask(end["method"], f"{ORIGIN}{end['path']}").status_code == 204
    assert "Nothing is muted" in text_of(site.page("/ui/alerts"))


def test_alerts__none_match__say_so_and_how_to_test_channels(site: ListSite) -> None:
    page = text_of(site.page("/ui/alerts?status=RESOLVED"))

    assert "No alerts match" in page
    assert "headgate alert channels" in page


def test_alerts__channel__can_be_tested(site: ListSite) -> None:
    """The test goes to the channel that is there without settings."""
    test = actions_of(site.page("/ui/alerts"))["Send a test"]

    assert test["path"].endswith("/test")
    done(site.post(f"{ORIGIN}{test['path']}", {}), 200)
