"""Pages of pipelines and runs: trouble first, in few calls of the store, to whom may see it, and updated on changes."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pytest

from headgate.auth.roles import Role
from headgate.durable.bus.events import Event
from headgate.durable.model.duration import from_json_type
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.sources import RangeSource
from headgate.pipelines.definition.model import Pipeline, Rule
from headgate.pipelines.enums import (
    Cause,
    ExpectationKind,
    ExpectationVerdict,
    FailureCategory,
    JobEvent,
    RunStatus,
    Verdict,
)
from headgate.pipelines.events.names import EventName
from headgate.pipelines.overview.status import sla_status
from headgate.pipelines.readiness.evaluation_log import Outlook
from headgate.pipelines.rules.facts import DatasetFact, Facts
from headgate.pipelines.rules.readiness import readiness_of
from headgate.pipelines.rules.rules import compile_rules, evaluate
from headgate.pipelines.rules.sensor_keys import sensor_keys
from headgate.pipelines.runs.rows import Run, RunLog, Slot, run_log_put
from headgate.pipelines.runs.store import RunStart
from headgate.pipelines.schedule.sla import SlaMoments
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.serve.pages.labels import sla_text
from headgate.serve.pages.pipelines.period_grid import DURATION_HEIGHT, HEIGHT, Mark, PeriodStrip, cells
from headgate.serve.pages.pipelines.run import WIDTH, phases
from headgate.serve.pages.pipelines.summary import definition_facts
from headgate.settings import Settings
from tests.integration.serve.graphql_board import Stream
from tests.integration.serve.health_rig import ORDERS, done
from tests.integration.serve.pages.test_routes import (
    HOSTILE,
    ORIGIN,
    Document,
    Site,
    actions_of,
    changed_kinds,
    following,
    graph_of,
    text_of,
)

TODAY: Final = "2026-01-16"
YESTERDAY: Final = "2026-01-15"
DEFINITION: Final[dict[str, Any]] = {
    "owner": "data@example.com",
    "schedules": [{"name": "daily", "cron": "0 6 * * *"}],
    "readiness": {"rules": [{"key": "landed", "check": "gte", "field": "count", "value": 10}]},
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/x"}},
    "sla": {"deadline": "08:00"},
}


class PipelineSite(Site):
    """The application with its pages, and pipelines in every state that there is."""

    def __init__(self, home: Path, *, is_required: bool = False, settings: Settings | None = None) -> None:
        super().__init__(home, is_required=is_required, has_pipelines=True, settings=settings)
        self.stores = self.pipelines.service.stores
        self.reader = self.pipelines.service.reader
        self.known = self.pipelines.service.known
        self.evaluations = self.pipelines.service.evaluations
        self.event_writer = self.pipelines.service.event_writer
        self.store = self.pipelines.service.store

    def define(self, name: str, **changes: Any) -> None:
        done(self.put(f"/pipelines/{name}", {"id": name, **DEFINITION, **changes}), 201)

    def begin(self, name: str, date: str = TODAY, *, cause: Cause = Cause.CRON, **more: Any) -> Run:
        return self.stores.runs.create(
            RunStart(slot=Slot(name, "daily", date), cause=cause, definition_version=1, **more)
        )

    def start(self, name: str, date: str = TODAY, **more: Any) -> Run:
        run = self.stores.runs.move(self.begin(name, date, **more), RunStatus.TRIGGERING)
        self.clock.advance(2)
        return self.stores.runs.move(run, RunStatus.RUNNING, job_id="job-7")

    def end(self, run: Run, to: RunStatus, **changes: Any) -> Run:
        pipeline = self.known.at(run.pipeline_id, 1)
        return self.pipelines.service.completion.end(run, to, pipeline, is_final=True, **changes)

    def fail(self, name: str, date: str = TODAY, reason: str = "disk full") -> Run:
        run = self.start(name, date)
        self.clock.advance(60)
        return self.end(run, RunStatus.FAILED, event=JobEvent.FAIL, category=FailureCategory.PERMANENT, reason=reason)

    def succeed(self, name: str, date: str = TODAY) -> Run:
        return self.end(self.start(name, date), RunStatus.COMPLETED, event=JobEvent.SUCCESS)

    def evaluate(self, run: Run) -> None:
        """Evaluate the rules of a run, as the lifecycle does."""
        pipeline = self.known.at(run.pipeline_id, 1)
        tried = self.pipelines.service.simulator.evaluate(pipeline, run.slot)
        outlook = Outlook(run_id=run.run_id, next_at_ms=self.now_ms + 300_000)
        stored = self.evaluations.put(run.slot, tried.evaluation, tried.verdict, outlook=outlook)
        self.stores.runs.change(run, evaluation_id=stored.evaluation_id)

    def miss(self, name: str, date: str = TODAY) -> None:
        """Have the watchdog's verdict: it was not done in time."""
        at = datetime(2026, 1, 16, 8, tzinfo=UTC)
        expected = Expectation(
            kind=ExpectationKind.COMPLETION_SLA, schedule_id="daily", date=date, due_at=at, ready_at=at
        )
        verdicts = Verdicts(self.store, self.clock, self.event_writer)
        assert verdicts.judge_once(name, expected, ExpectationJudgement(verdict=ExpectationVerdict.MISSED))

    def states(self, path: str = "/ui/pipelines") -> list[tuple[str, str]]:
        """The state of each pipeline of the list, in its order."""
        rows = self.page(path).split("<tr>\n")[1:]
        found = [re.search(r'class="badge [a-z]+">([A-Z]+)<.*?href="/ui/pipelines/([^"]+)"', row, re.S) for row in rows]
        return [(each[2], each[1]) for each in found if each is not None]


EXPECTED: Final = {
    "p-failed": "FAILED",
    "p-late": "LATE",
    "p-stuck": "STUCK",
    "p-held": "HELD",
    "p-paused": "PAUSED",
    "p-running": "RUNNING",
    "p-waiting": "WAITING",
    "p-well": "HEALTHY",
}


@contextmanager
def opened(home: Path) -> Iterator[PipelineSite]:
    made = PipelineSite(home)
    try:
        yield made
    finally:
        made.is_stopping = True
        made.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PipelineSite]:
    with opened(tmp_path / "home") as made:
        yield made


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineSite]:
    """One pipeline in each state, at half past six in the morning of the day after they were defined."""
    with opened(tmp_path_factory.mktemp("troubled") / "home") as made:
        made.define("a-gone")
        for name in EXPECTED:
            made.define(name, **({"owner": "finance@example.com"} if name == "p-late" else {}))
        made.clock.advance(20.5 * 3600)
        made.fail("a-gone")
        assert made.delete("/pipelines/a-gone").status_code == 204
        made.fail("p-failed")
        made.begin("p-late")
        made.miss("p-late")
        stuck = made.start("p-stuck")
        made.event_writer.publish(
            EventName.RUN_STUCK, stuck.slot, run_id=stuck.run_id, status="RUNNING", since="2026-01-16T05:00:00Z"
        )
        done(made.post(f"/pipelines/p-held/periods/{TODAY}/hold", {"reason": "ann looks first"}), 200)
        done(made.post("/pipelines/p-paused/pause", {"reason": "the warehouse moves"}), 200)
        made.evaluate(made.begin("p-waiting"))
        made.start("p-running")
        made.succeed("p-well")
        yield made


# The list.


def test_list__a_pipeline_in_each_state__has_trouble_first_and_leaves_out_what_is_gone(troubled: PipelineSite) -> None:
    assert troubled.states() == list(EXPECTED.items())


def test_list__each_row__says_why_in_a_sentence_with_its_deadline_and_what_is_next(troubled: PipelineSite) -> None:
    page = troubled.page("/ui/pipelines")
    said = text_of(page)

    for fact in (
        "2026-01-16 failed at 06:32 UTC, attempt 1 (PERMANENT): disk full",
        "0 of 1 rules hold; landed is missing",
        "local holds it since 06:",
        "paused the pipeline at 06:",
        "ann looks first",
        "1 h 27 min left 08:00 UTC",
        "before the deadline",
        "in 23 h 27 min",
        "headgate pipeline ls",
    ):
        assert fact in said, fact
    assert 'class="failed" x=' in page
    assert "<title>2026-01-16: FAILED at 2026-01-16 06:32:04 UTC</title>" in page
    assert 'aria-label="The latest periods: 1 failed; latest: 2026-01-16: FAILED' in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("owner=finance%40example.com", ["p-late"]),
        ("search=P-STU", ["p-stuck"]),
        *((f"status={state.lower().replace('healthy', 'well')}", [name]) for name, state in EXPECTED.items()),
        ("status=stopped", []),
        ("search=nothing-like-it", []),
    ],
)
def test_list__filters__narrow_it(troubled: PipelineSite, query: str, found: list[str]) -> None:
    assert [name for name, _ in troubled.states(f"/ui/pipelines?{query}")] == found


def test_list__nothing_matches_or_there_are_none__says_what_to_do(troubled: PipelineSite, site: PipelineSite) -> None:
    assert "No pipeline matches" in text_of(troubled.page("/ui/pipelines?search=nothing-like-it"))
    said = text_of(site.page("/ui/pipelines"))
    assert "No pipelines yet" in said
    assert "headgate init shop" in said


def test_list__a_pipeline_of_another_time_zone__has_one_labelled_zone_in_its_row(site: PipelineSite) -> None:
    site.define("berlin", timezone="Europe/Berlin")
    site.clock.advance(19.2 * 3600)
    site.fail("berlin")
    (row,) = [each for each in site.page("/ui/pipelines").split("<tr>\n")[1:] if "berlin" in each]
    shown = re.sub(r'datetime="[^"]*"', "", row)

    # The title of the cell, the sentence, the deadline and the title of the next due time.
    assert re.findall(r"[0-9]{2}:[0-9]{2}(?::[0-9]{2})?([ A-Z]*)", shown) == [" CET"] * 5
    assert "UTC" not in shown


def test_list__due_before_it_was_defined__is_nobodys_fault(site: PipelineSite) -> None:
    # Ten in the morning: its slot at six and its deadline at eight have passed.
    site.define("fresh")

    assert site.states() == [("fresh", "HEALTHY")]
    said = text_of(site.page("/ui/pipelines"))
    assert "2026-01-15 was due before the current definition" in said
    assert "is the engine running" not in said


def test_list__breaker_opens__is_stopped_and_reported_on_the_board(site: PipelineSite) -> None:
    site.define("broken", budgets={"breaker": 1})
    site.clock.advance(86_400)
    site.fail("broken")

    assert site.states() == [("broken", "STOPPED")]
    assert "1 STOPPED pipelines" in text_of(site.page("/ui"))


def test_list__succeeds_after_a_failure_or_a_late_run__is_healthy_again(site: PipelineSite) -> None:
    site.define("p-well")
    site.define("p-late")
    site.clock.advance(86_400)
    site.fail("p-well", YESTERDAY)
    site.miss("p-late", YESTERDAY)
    assert [state for _, state in site.states()] == ["FAILED", "LATE"]
    site.succeed("p-well")
    site.succeed("p-late", YESTERDAY)
    site.succeed("p-late")

    assert [state for _, state in site.states()] == ["HEALTHY", "HEALTHY"]


def test_list__a_period_was_missed_and_a_later_one_is_done__stays_visible_until_it_is_run(site: PipelineSite) -> None:
    site.define("gap")
    site.clock.advance(86_400)
    site.miss("gap", "2026-01-14")
    site.miss("gap", YESTERDAY)
    site.succeed("gap")
    page = site.page("/ui/pipelines")

    assert site.states() == [("gap", "MISSED")]
    assert f"2 periods were missed, the last: {YESTERDAY}" in text_of(page)
    assert page.count('<rect class="missed"') == 2
    assert "1 MISSED pipelines" in text_of(site.page("/ui"))
    assert site.page("/ui/pipelines/gap").count('class="missed"') == 2

    site.begin("gap", "2026-01-17")
    assert site.states() == [("gap", "MISSED")]
    site.succeed("gap", "2026-01-14")
    done(site.post(f"/pipelines/gap/periods/{YESTERDAY}/skip", {"reason": "no data that day"}), 200)
    assert site.states() == [("gap", "WAITING")]


def test_board__a_run_waits_beyond_its_deadline_without_a_verdict__is_late_as_in_the_list(site: PipelineSite) -> None:
    site.define("transform")
    site.clock.advance(86_400)
    site.evaluate(site.begin("transform"))
    site.clock.advance(86_400)

    assert site.states() == [("transform", "LATE")]
    assert "1 LATE pipelines" in text_of(site.page("/ui"))


def test_board__a_gate_holds_a_run_without_a_deadline__is_held_there_and_in_the_list(site: PipelineSite) -> None:
    site.define("reader", readiness={"rules": [{"dataset": "urn:dp:orders"}]}, sla=None)
    site.clock.advance(86_400)
    run = site.begin("reader")
    blocked = DatasetFact(verdict=Verdict.FAIL, reason="FRESHNESS is CRITICAL")
    compiled = compile_rules([Rule(dataset="urn:dp:orders")])
    evaluation = evaluate(compiled, Facts(datasets={"urn:dp:orders": blocked}), site.clock.now())
    verdict = readiness_of(evaluation, {}, site.known.at("reader", 1))
    stored = site.evaluations.put(run.slot, evaluation, verdict, outlook=Outlook(run_id=run.run_id))
    site.stores.runs.change(run, evaluation_id=stored.evaluation_id)

    assert site.states() == [("reader", "HELD")]
    assert "1 HELD pipelines" in text_of(site.page("/ui"))


def test_holds__an_incident_keeps_runs_waiting__they_are_on_its_card_its_page_and_the_page_of_its_dataset(
    site: PipelineSite,
) -> None:
    site.define("reader", readiness={"rules": [{"dataset": ORDERS}]}, sla=None)
    site.define("gold", readiness={"rules": [{"upstream": {"pipeline": "reader"}}]}, sla=None)
    site.clock.advance(86_400)
    incident = site.trouble(ORDERS)
    for name in ("reader", "gold"):
        site.evaluate(site.begin(name))
    board = text_of(site.page("/ui"))

    assert "Holds reader , gold" in board
    # What follows from the card is not listed again.
    assert "Held now 2 held by the incidents above" in board
    for page in (site.incident_page(incident), site.dataset_page(ORDERS)):
        said = text_of(page)
        assert f"reader of 2026-01-16 , waiting since just now 10:00 UTC for {ORDERS}" in said
        assert "gold of 2026-01-16 , waiting since just now 10:00 UTC for reader" in said
        assert {"/ui/pipelines/reader", "/ui/pipelines/gold"} <= set(Document.read(page).links)


def test_incident__its_producer_was_changed_before_it__has_the_change_in_its_timeline(site: PipelineSite) -> None:
    site.define("orders-service")
    site.define("another")
    site.clock.advance(3600)
    incident = site.trouble()
    said = text_of(site.incident_page(incident))

    since, before = said.index("Timeline"), said.index("Before it opened")
    end = said.index("Held by this incident")
    assert "pipeline put orders-service by local" in said[before:end]
    assert "another" not in said[before:end]
    assert "OK → CRITICAL" in said[since:before]
    assert "last good: " in said[before:end]


def test_list__a_backfill_of_long_ago__is_not_late(site: PipelineSite) -> None:
    site.define("filled")
    site.clock.advance(86_400)
    site.succeed("filled")
    site.begin("filled", "2025-12-01", cause=Cause.BACKFILL)

    assert site.states() == [("filled", "WAITING")]


def _calls(site: PipelineSite, path: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what a page asks of the store."""
    counted: Counter[str] = Counter()
    store = site.opened.store
    inside = threading.local()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted_call(*given: Any, **more: Any) -> Any:
            # What a call makes of itself is the backend's own affair.
            if getattr(inside, "call", False):
                return call(*given, **more)
            counted[name] += 1
            inside.call = True
            try:
                return call(*given, **more)
            finally:
                inside.call = False

        return counted_call

    with monkeypatch.context() as patch:
        for name in ("get", "get_many", "query", "query_many", "put", "transact"):
            patch.setattr(store, name, counting(name, getattr(store, name)))
        site.page(path)
    return counted


def _fill(site: PipelineSite, numbers: range, periods: int) -> None:
    for number in numbers:
        name = f"p-{number:03d}"
        pipeline = msgspec.convert({"id": name, **DEFINITION}, Pipeline, dec_hook=from_json_type)
        site.pipelines.service.definitions.put(pipeline, "", "test")
        day = datetime(2026, 1, 16, tzinfo=UTC)
        site.opened.store.transact(
            [
                run_log_put(
                    RunLog(
                        pipeline_id=name,
                        schedule_id="daily",
                        date=f"{day - timedelta(days=back):%Y-%m-%d}",
                        status=RunStatus.COMPLETED,
                        version=1,
                        created_at_ms=site.now_ms,
                        updated_at_ms=site.now_ms,
                    )
                )
                for back in range(periods)
            ]
        )


def test_list__many_pipelines_of_many_periods__asks_the_store_as_often_as_for_one(
    site: PipelineSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(site, range(1), 1)
    site.page("/ui/pipelines")
    few = _calls(site, "/ui/pipelines", monkeypatch)
    _fill(site, range(1, 60), 30)
    many = _calls(site, "/ui/pipelines", monkeypatch)
    page = site.page("/ui/pipelines")

    assert many == few
    assert many.total() <= 12
    (link,) = [each for each in Document.read(page).links if "page_token" in each]
    assert len(site.states(link)) == 10
    assert page.count('class="done" x=') == 1 + 49 * 24
    # A filter goes through the list in parts, and not through pipelines.
    assert _calls(site, "/ui/pipelines?search=p-059", monkeypatch).total() <= 13


# One pipeline.


def test_pipeline__that_waits__is_reported_whole(troubled: PipelineSite) -> None:
    page = troubled.page("/ui/pipelines/p-waiting")
    said = text_of(page)

    for fact in (
        "p-waiting of 2026-01-16 has not started: 0 of 1 rules hold",
        "UNKNOWN landed.count : landed is missing",
        "landed UNKNOWN no value received",
        'daily: at "0 6 * * *" in UTC, catches up the last missed slot',
        "landed.count gte 10",
        "http https://jobs.example.org/x",
        "done by 08:00 (UTC)",
        "DUE 1 h 27 min left",
        "PIPELINE_DEFINED",
        "headgate period why p-waiting --date 2026-01-16",
    ):
        assert fact in said, fact
    assert list(actions_of(page)) == ["Hold", "Force", "Skip", "Mark as successful", "Pause", "Backfill"]
    assert actions_of(page)["Force"]["cli"] == "headgate period force p-waiting 2026-01-16 --reason {reason}"
    assert 'href="/api/v1/pipelines/p-waiting"' in page
    assert 'data-changes="/ui/changes?pipeline_id=p-waiting"' in page


def test_pipeline__another_period_is_chosen__is_about_that_one(troubled: PipelineSite) -> None:
    page = troubled.page("/ui/pipelines/p-failed?date=2026-01-10&schedule=daily")
    said = text_of(page)

    assert "p-failed of 2026-01-10 has not started" in said
    start = actions_of(page)["Start a run"]
    assert [each["value"] for each in start["fields"] if each["name"] == "date"] == ["2026-01-10"]
    assert "to the current period" in said


def test_pipeline__in_between_others__links_to_both_and_shows_what_it_goes_by(site: PipelineSite) -> None:
    upstream = {"upstream": {"pipeline": "bronze", "periods": "all"}, "name": "all hours"}
    site.define("bronze", period="hourly")
    site.define("silver", readiness={"rules": [upstream]})
    site.define("gold", schedules=[{"upstream": [{"pipeline": "silver"}]}, {"name": "by-hand", "cron": "0 9 * * 1"}])
    done(site.post("/pipelines/bronze/sensors/landed", {"data": {"count": 3}, "period": "2026-01-15T09"}), 201)
    links = Document.read(site.page("/ui/pipelines/silver")).links
    bronze = text_of(site.page("/ui/pipelines/bronze"))
    page = site.page(f"/ui/pipelines/gold?date={TODAY}&schedule=stream")
    gold = text_of(page)

    assert {"/ui/pipelines/bronze", "/ui/pipelines/gold"} <= set(links)
    assert 'landed of 2026-01-15T09 just now by local {"count": 3}' in bronze
    assert "all hours: bronze of all its periods within ours" in text_of(site.page("/ui/pipelines/silver"))
    assert "stream: after silver of the same period" in gold
    assert "--schedule stream" in actions_of(page)["Hold"]["cli"]


def test_pipeline__each_action_on_a_period__does_what_it_says(site: PipelineSite) -> None:
    site.pipelines.service.put_machine()
    site.define("loads")
    site.clock.advance(86_400)

    def press(label: str, status: int, date: str = TODAY, **fields: Any) -> dict[str, Any]:
        page = site.page(f"/ui/pipelines/loads?date={date}&schedule=daily")
        action = actions_of(page)[label]
        given = {each["name"]: each["value"] for each in action["fields"] if each["name"] in ("date", "from", "to")}
        found: dict[str, Any] = done(site.post(ORIGIN + action["path"], {**action["body"], **given, **fields}), status)
        return found

    assert press("Pause", 200, reason="maintenance")["state"] == "PAUSED"
    assert press("Resume", 200, reason="over")["state"] == "ACTIVE"
    assert press("Hold", 200, reason="ann checks first")["hold"]["reason"] == "ann checks first"
    assert press("Approve", 200, reason="checked")["hold"] is None
    assert press("Skip", 200, "2026-01-10", reason="no data")["status"] == "CANCELLED"
    assert press("Mark as successful", 200, "2026-01-11", reason="loaded by hand")["status"] == "COMPLETED"
    assert press("Force", 200, "2026-01-12", reason="the sensor is broken")["order"] is not None
    assert press("Start a run", 202, "2026-01-13", reason="early")["date"] == "2026-01-13"
    assert press("Backfill", 202, "2026-01-08", reason="new column", concurrency=1)["pipeline_id"] == "loads"
    failed = site.fail("loads", "2026-01-14")
    assert press("Rerun", 202, "2026-01-14", note="fixed")["date"] == failed.date
    run = site.start("loads", "2026-01-09")
    assert press("Cancel", 202, "2026-01-09", reason="wrong input")["run_id"] == run.run_id


def test_pipeline__changed_twice__has_its_history_with_what_each_version_changed(site: PipelineSite) -> None:
    site.define("loads")
    done(site.put("/pipelines/loads?reason=moved", {"id": "loads", **DEFINITION, "owner": HOSTILE[:20]}), 201)
    done(site.put("/pipelines/loads", {"id": "loads", **DEFINITION, "tier": 1}), 201)
    said = text_of(site.page("/ui/pipelines/loads"))

    history = said[said.index("History of the definition") : said.index("Runs No run yet")]
    assert [history.index(f"Version {number}") for number in (3, 2, 1)] == sorted(
        history.index(f"Version {number}") for number in (3, 2, 1)
    )
    assert "+ tier: 1" in history
    assert f"~ owner: data@example.com → {HOSTILE[:20]}" in history
    assert ": moved 1 change" in history
    assert "the first version" in history


def test_pipeline__a_run_was_checked_often__has_one_line_of_its_checks(site: PipelineSite) -> None:
    site.define("loads")
    run = site.begin("loads")
    for _ in range(118):
        site.clock.advance(10)
        detail = {"run_id": run.run_id, "status": "WAIT"}
        site.store.transact(site.event_writer.writes(EventName.READINESS_CHECKED, run.slot, detail))
    said = text_of(site.page("/ui/pipelines/loads"))

    assert said.count("READINESS_CHECKED") == 1
    assert "checked 118 times, first 19 min ago , last just now" in said
    assert "PIPELINE_DEFINED" in said


def test_pipeline__reruns_of_a_period__count_against_its_budget(site: PipelineSite) -> None:
    site.pipelines.service.put_machine()
    site.define("loads")
    site.fail("loads")
    before = text_of(site.page("/ui/pipelines/loads"))
    slot = Slot("loads", "daily", TODAY)
    log = site.stores.runs.log(slot)
    assert log is not None
    site.store.transact(
        [run_log_put(msgspec.structs.replace(log, reruns={"manual": 1}, version=log.version + 1), replaces=log.version)]
    )
    after = text_of(site.page("/ui/pipelines/loads"))

    assert "Reruns used 0 of 1 manual · 0 of 1 drift" in before
    assert "Reruns used 1 of 1 manual (used up: the next needs force)" in after


def test_pipeline__strip__has_a_linked_bar_a_period_as_high_as_its_job_took(site: PipelineSite) -> None:
    site.define("loads")
    quick = site.start("loads", YESTERDAY)
    site.clock.advance(10)
    site.end(quick, RunStatus.COMPLETED, event=JobEvent.SUCCESS)
    site.fail("loads")
    page = site.page(f"/ui/pipelines/loads?date={YESTERDAY}&schedule=daily")
    tags = Document.read(page).tags
    heights = {str(each["class"]): int(str(each["height"])) for tag, each in tags if tag == "rect"}
    links = [each for tag, each in tags if tag == "a" and "the job took" in str(each.get("aria-label"))]

    assert heights["failed"] == DURATION_HEIGHT - 16
    assert heights["done"] < heights["failed"] / 2
    assert [each["href"] for each in links] == [
        f"/ui/pipelines/loads?date={YESTERDAY}&schedule=daily",
        f"/ui/pipelines/loads?date={TODAY}&schedule=daily",
    ]
    assert [each.get("aria-current") for each in links] == ["true", None]


def test_pipeline__with_datasets_and_runs__is_drawn_with_links_and_charts(site: PipelineSite) -> None:
    site.dataset("urn:dp:orders:created")
    site.define("loads", reads=["urn:dp:orders:created"], writes=["urn:dp:orders:unknown"])
    site.define("gold", readiness={"rules": [{"upstream": {"pipeline": "loads"}}]})
    site.clock.advance(72_000)
    site.succeed("loads")
    page = site.page("/ui/pipelines/loads")
    graph = graph_of(page)
    charts = [
        msgspec.json.decode(str(each["data-chart"])) for tag, each in Document.read(page).tags if tag == "hg-chart"
    ]

    assert {tuple(each) for each in graph["edges"]} == {
        ("urn:dp:orders:created", "pipeline:loads"),
        ("pipeline:loads", "urn:dp:orders:unknown"),
        ("pipeline:loads", "pipeline:gold"),
    }
    assert [each.get("href", "") for each in graph["nodes"] if each["kind"] == "dataset"] == [
        "/ui/datasets/urn%3Adp%3Aorders%3Acreated",
        "",
    ]
    durations, margins = charts
    assert [each["name"] for each in durations["series"]] == ["succeeded"]
    # Done at 06:00 and some seconds, two hours before the deadline.
    assert 115 < margins["series"][0]["points"][0][1] < 121


@pytest.mark.parametrize("path", ["/ui/pipelines/none", "/ui/runs/run_none", "/ui/pipelines/a/b", "/ui/runs/a/b"])
def test_page__of_nothing__says_so_as_a_page(troubled: PipelineSite, path: str) -> None:
    assert "Not Found" in text_of(troubled.page(path, status=404))


def test_page__of_a_period_that_is_none__says_what_is_wrong(troubled: PipelineSite) -> None:
    assert "p-well" in text_of(troubled.page("/ui/pipelines/p-well?date=someday", status=400))


# One run.


def test_run__that_failed_twice__has_its_phases_attempts_job_log_and_events(site: PipelineSite) -> None:
    site.define("loads")
    site.clock.advance(86_400)
    first = site.fail("loads")
    site.clock.advance(30)
    run = site.begin("loads", cause=Cause.RERUN, execution="p-daily-again")
    site.evaluate(run)
    site.clock.advance(600)
    run = site.stores.runs.move(site.stores.runs.get(run.run_id), RunStatus.TRIGGERING)
    run = site.stores.runs.move(run, RunStatus.RUNNING, job_id="job-8")
    site.clock.advance(60)
    site.end(run, RunStatus.FAILED, event=JobEvent.TIMEOUT, category=FailureCategory.TIMEOUT, reason="took too long")
    page = site.page(f"/ui/runs/{run.run_id}")
    said = text_of(page)

    for fact in (
        "attempt 2",
        "TIMEOUT The job failed took too long",
        "PENDING 11 min ago",
        "10 min",
        "UNKNOWN landed.count : landed is missing",
        "FAILED attempt 1 cron",
        "job-8",
        "JOB_TIMEOUT",
        "headgate-lifecycle:p-daily-again",
        "headgate asl history headgate-lifecycle:p-daily-again",
        f"headgate run show {run.run_id}",
    ):
        assert fact in said, fact
    assert f"/ui/runs/{first.run_id}" in page
    assert actions_of(page)["Rerun"]["cli"] == f"headgate run rerun loads --date {TODAY} --reason {{note}}"
    (gantt,) = [each["data-gantt"] for tag, each in Document.read(page).tags if tag == "hg-gantt"]
    rows = {each["label"]: each for each in msgspec.json.decode(str(gantt))["rows"]}
    assert list(rows) == ["waiting", "landed.count", "trigger", "job", "events"]
    assert [each["tone"] for each in rows["landed.count"]["spans"]] == ["odd"]
    assert [each["tone"] for each in rows["job"]["spans"]] == ["bad"]
    assert "disk full" not in said[said.index("Job log") : said.index("Timeline")]
    assert "disk full" not in said[said.index("Job and execution") :]


def test_run__failed__has_the_failure_first_then_its_log_and_a_link_to_each_part(site: PipelineSite) -> None:
    site.define("loads")
    run = site.fail("loads", reason="KeyError: 'amount'")
    page = site.page(f"/ui/runs/{run.run_id}")
    ids = [str(each["id"]) for tag, each in Document.read(page).tags if tag == "section" and each.get("id")]

    assert ids == ["failure", "log", "why", "attempts", "execution", "events", "definition"]
    assert {f"#{each}" for each in ids[1:]} <= set(Document.read(page).links)
    assert text_of(page).index("KeyError: 'amount'") < text_of(page).index("Timeline")


def test_run__definition_changed_since__shows_it_as_of_the_run_and_the_difference(site: PipelineSite) -> None:
    site.define("loads")
    run = site.succeed("loads")
    assert "Version 1, which is in force" in text_of(site.page(f"/ui/runs/{run.run_id}"))
    done(site.put("/pipelines/loads", {"id": "loads", **DEFINITION, "sla": {"deadline": "09:30"}}), 201)
    said = text_of(site.page(f"/ui/runs/{run.run_id}"))

    then = said[said.index("Definition as of this run") :]
    assert "Version 1; version 2 is in force and differs:" in then
    assert "~ sla.deadline: 08:00 → 09:30" in then
    assert "done by 08:00 (UTC)" in then


def test_run__of_a_fan_out_with_chunks__shows_their_states(site: PipelineSite) -> None:
    body = {**DEFINITION, "id": "loads", "trigger": {"type": "fan-out", "config": {"handler": "resize"}}}
    pipeline = msgspec.convert(body, Pipeline, dec_hook=from_json_type)
    site.pipelines.service.definitions.put(pipeline, "", "test")
    order = Order(group="nightly", chunk_size=10, handler="jobs:process")
    site.service.fanouts.splitter.split(order, RangeSource(0, 60), run_id="job-7")
    run = site.start("loads")
    page = site.page(f"/ui/runs/{run.run_id}")

    assert "0 of 6 chunks are done, 0 running. Open the fan-out" in text_of(page)
    assert "6 queued" in text_of(page)
    assert "#chunks" in Document.read(page).links


def test_run__of_a_fan_out__names_the_command_that_shows_its_chunks(site: PipelineSite) -> None:
    body = {**DEFINITION, "id": "loads", "trigger": {"type": "fan-out", "config": {"handler": "resize"}}}
    pipeline = msgspec.convert(body, Pipeline, dec_hook=from_json_type)
    site.pipelines.service.definitions.put(pipeline, "", "test")
    run = site.start("loads")

    page = site.page(f"/ui/runs/{run.run_id}")
    assert "headgate fanout show job-7" in text_of(page)
    assert "/ui/fanouts/job-7" in Document.read(page).links
    assert list(actions_of(page)) == ["Report the end", "Cancel"]
    site.end(run, RunStatus.FAILED, event=JobEvent.FAIL, category=FailureCategory.PERMANENT, reason="3 chunks failed")
    actions = actions_of(site.page(f"/ui/runs/{run.run_id}"))
    assert list(actions) == ["Redrive its chunks", "Rerun", "Mark as successful"]
    assert actions["Redrive its chunks"]["path"] == "/api/v1/fanouts/job-7/redrive"


def test_run__each_action__does_what_it_says(site: PipelineSite) -> None:
    site.pipelines.service.put_machine()
    site.define("loads")
    site.clock.advance(86_400)

    def press(run: Run, label: str, code: int, **fields: Any) -> dict[str, Any]:
        action = actions_of(site.page(f"/ui/runs/{run.run_id}"))[label]
        found: dict[str, Any] = done(site.post(ORIGIN + action["path"], {**action["body"], **fields}), code)
        return found

    waiting = site.begin("loads", "2026-01-10")
    assert press(waiting, "Force", 200, reason="the sensor is broken")["order"] is not None
    assert press(waiting, "Cancel", 202, reason="wrong input")["run_id"] == waiting.run_id
    assert press(site.start("loads", "2026-01-12"), "Report the end", 200, status="success")["date"] == "2026-01-12"
    failed = site.fail("loads", "2026-01-13")
    assert press(failed, "Mark as successful", 200, reason="loaded by hand")["status"] == "COMPLETED"
    assert press(site.fail("loads", "2026-01-14"), "Rerun", 202, note="fixed")["date"] == "2026-01-14"


# What users wrote, and who sees what.


def test_pages__markup_in_all_that_users_write__is_shown_and_never_runs(site: PipelineSite) -> None:
    site.define(
        "loads",
        description=HOSTILE,
        owner=HOSTILE,
        labels={"team": HOSTILE},
        readiness={"rules": [{"key": "landed", "check": "equals", "field": "a", "value": HOSTILE, "name": HOSTILE}]},
    )
    site.clock.advance(86_400)
    done(site.post("/pipelines/loads/sensors/landed", {"data": {"a": HOSTILE, HOSTILE: 1}}), 201)
    run = site.begin("loads", note=HOSTILE, by=HOSTILE)
    site.evaluate(run)
    site.stores.runs.move(site.stores.runs.get(run.run_id), RunStatus.CANCELLED, reason=HOSTILE)
    site.fail("loads", YESTERDAY, reason=HOSTILE)
    done(site.post("/pipelines/loads/pause", {"reason": HOSTILE}), 200)
    done(site.post("/pipelines/loads/periods/2026-01-20/hold", {"reason": HOSTILE}), 200)

    asked = quote(HOSTILE, safe="")
    for path in (
        "/ui/pipelines",
        f"/ui/pipelines?search={asked}&owner={asked}",
        "/ui/pipelines/loads",
        f"/ui/pipelines/loads?date={TODAY}",
        f"/ui/runs/{run.run_id}",
    ):
        page = site.page(path)
        assert "<script>" not in page, path
        assert "<img" not in page, path
        assert HOSTILE in Document.read(page).text or HOSTILE in str(Document.read(page).tags), path


def test_scope__a_role_that_may_not_read_pipelines__sees_none_of_them_anywhere(troubled: PipelineSite) -> None:
    key = troubled.key("gate", Role.ENFORCER)

    for path in ("/ui/pipelines", "/ui/pipelines/p-failed", "/ui/runs/run_none"):
        assert "pipeline.read" in text_of(troubled.page(path, status=403, key=key))
    assert "p-failed" not in troubled.page("/ui", key=key)
    assert "1 FAILED" not in text_of(troubled.page("/ui", key=key))
    assert troubled.get(f"{ORIGIN}/ui/changes?of=pipelines", key=key).status_code == 403


def test_board__pipelines_in_trouble__are_counted_with_links_to_them(troubled: PipelineSite) -> None:
    document = Document.read(troubled.page("/ui"))

    counts = " ".join(f"1 {state} pipelines" for state in ("FAILED", "LATE", "STUCK", "HELD", "PAUSED"))
    assert counts in document.text
    for panel in ("Failed or stuck FAILED p-failed", "Held now HELD p-held", "Late or missed LATE p-late"):
        assert panel in document.text
    assert "p-running of 2026-01-16" in document.text
    assert "pipeline pause p-paused by local: the warehouse moves" in document.text
    assert "/ui/pipelines?status=late" in document.links


def test_board__time_range__counts_what_happened_within_it(site: PipelineSite) -> None:
    site.define("loads")
    site.fail("loads", YESTERDAY)
    site.clock.advance(2 * 3600)
    site.miss("loads")
    day = text_of(site.page("/ui"))
    hour = site.page("/ui?within=1h")

    assert "In the last 24h: 0 incidents opened , 1 run failed , 1 expectation missed" in day
    assert "0 runs failed , 1 expectation missed" in text_of(hour)
    assert "/ui/runs?status=FAILED&within=1h" in Document.read(hour).links
    assert "pipeline put loads" in day[day.index("What changed in the last 24h") :]
    assert "loads" not in text_of(hour)[text_of(hour).index("What changed in the last 1h") :]
    assert "use one of 1h, 6h, 24h, 7d" in text_of(site.page("/ui?within=2h", status=400))


def test_board__more_jobs_run_than_it_names__links_to_the_running_runs(site: PipelineSite) -> None:
    for number in range(11):
        site.define(f"loads-{number}")
        site.start(f"loads-{number}")

    assert "/ui/runs?status=RUNNING&status=TRIGGERING" in Document.read(site.page("/ui")).links


def test_pages__all_links__lead_somewhere(troubled: PipelineSite) -> None:
    seen: set[str] = set()
    waiting = ["/ui/pipelines"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = troubled.get(ORIGIN + path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        if answer.headers["content-type"].startswith("text/html"):
            found = [each.partition("#")[0] for each in Document.read(answer.text).links]
            waiting += [each for each in dict.fromkeys(found) if each and each not in seen and each not in waiting]

    assert any(each.startswith("/api/v1/runs/run_") for each in seen)


def test_fragment__asked_for__is_the_inside_of_the_page_alone(troubled: PipelineSite) -> None:
    for path in ("/ui/pipelines", "/ui/pipelines/p-failed"):
        answer = troubled.get(ORIGIN + path, headers={"headgate-fragment": "main"})
        assert "<html" not in answer.text
        content = answer.text.partition("</template>")[2].strip()
        assert content in troubled.page(path)


# Staying up to date.


def test_changes__of_one_pipeline__are_reported_to_its_page_and_not_those_of_others(site: PipelineSite) -> None:
    site.define("loads")
    site.define("other")
    site.clock.advance(86_400)

    async def talk(stream: Stream, apart: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        await apart(site.event_writer.publish, EventName.RUN_STUCK, Slot("other", "daily", TODAY), **STUCK)
        # What anyone may say is not what pipelines say.
        forged = Event(type="headgate.pipeline.run_stuck", source="/elsewhere", data={"pipeline_id": "loads", **STUCK})
        await apart(site.service.bus.emit, forged)
        await apart(
            site.pipelines.service.event_writer.publish, EventName.RUN_HELD, Slot("loads", "daily", TODAY), **HELD
        )
        # Either of the others would be listed as a run too.
        assert await changed_kinds(stream) == ["pipeline"]

    following(site, talk, query="pipeline_id=loads")


def test_changes__of_all_pipelines_or_of_everything__report_runs_to_whom_may_see_them(site: PipelineSite) -> None:
    site.define("loads")
    site.clock.advance(86_400)

    async def talk(stream: Stream, apart: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        await apart(site.event_writer.publish, EventName.RUN_STUCK, Slot("loads", "daily", TODAY), **STUCK)
        assert await changed_kinds(stream) == ["run"]

    following(site, talk, query="of=pipelines")
    site.clock.advance(600)
    following(site, talk)


STUCK: Final = {"run_id": "run_1", "status": "RUNNING", "since": "2026-01-16T05:00:00Z"}
HELD: Final = {"by": "ann", "reason": "she looks first"}


# Words, strips and phases.


def _log(date: str, status: RunStatus, **more: Any) -> RunLog:
    given = {"version": 1, "created_at_ms": 0, "updated_at_ms": 0, "begun_at_ms": 0, **more}
    return RunLog(pipeline_id="p", schedule_id="daily", date=date, status=status, **given)


def test_cells__periods_of_all_kinds__are_in_order_and_distinguished_without_colour() -> None:
    logs = [
        _log("2026-01-04", RunStatus.RUNNING),
        _log("2026-01-03", RunStatus.FAILED, ended_at_ms=5_000),
        _log("2026-01-01", RunStatus.COMPLETED, ended_at_ms=5_000, attempts=2),
        _log("2026-01-05", RunStatus.PENDING),
        _log("2026-01-06", RunStatus.CANCELLED, ended_at_ms=5_000),
    ]
    found = cells(logs, [Slot("p", "daily", "2026-01-02"), Slot("p", "daily", "2026-01-03")], 90_000)

    marks = [Mark.DONE, Mark.MISSED, Mark.FAILED, Mark.RUNNING, Mark.WAITING, Mark.SKIPPED]
    assert [each.mark for each in found] == marks
    assert len({each.sign for each in found}) == len(marks)
    assert found[0].title == "2026-01-01: COMPLETED at 1970-01-01 00:00:05 UTC, attempt 2"
    assert found[3].title == "2026-01-04: RUNNING for 1 min"
    strip = PeriodStrip(tuple(found), 10)
    assert strip.placed[-1][0] + strip.cell_width <= strip.width
    assert max(each.height for each in found) == HEIGHT


def _at(minute: int) -> str:
    return f"2026-01-16T06:{minute:02d}:00.000Z"


def test_phases__of_a_run_that_is_over__fill_the_line_however_short_some_are() -> None:
    passed = [("PENDING", 0), ("TRIGGERING", 30), ("RUNNING", 30), ("COMPLETED", 50)]
    found = phases([{"status": status, "at": _at(minute)} for status, minute in passed], 0, is_open=False)

    assert [each.lasted for each in found] == ["30 min", "0 ms", "20 min", ""]
    assert all(each.width >= 4 for each in found[:3])
    assert found[-1].width == 0
    assert found[2].x + found[2].width == pytest.approx(WIDTH, abs=0.2)


def test_phases__of_a_run_that_goes_on__reach_until_now() -> None:
    (only,) = phases([{"status": "PENDING", "at": "1970-01-01T00:00:00.000Z"}], 90_000, is_open=True)

    assert (only.lasted, only.x, only.width) == ("1 min", 0, WIDTH)


@pytest.mark.parametrize(
    ("now_hour", "succeeded_hour", "said"),
    [
        (5, None, ("due", "3 h left")),
        (7, None, ("at risk", "1 h left")),
        (10, None, ("breached", "2 h overdue")),
        (10, 6, ("met", "2 h before the deadline")),
        (10, 9, ("breached", "1 h late")),
    ],
)
def test_sla__of_a_period__is_reported_as_it_stands(now_hour: int, succeeded_hour: int | None, said: Any) -> None:
    day = datetime(2026, 1, 16, tzinfo=UTC)
    moments = SlaMoments(day.replace(hour=8), day.replace(hour=7))
    done_ms = None if succeeded_hour is None else int(day.replace(hour=succeeded_hour).timestamp() * 1000)
    log = _log("2026-01-16", RunStatus.RUNNING, succeeded_at_ms=done_ms)
    found = sla_status(moments, log, day.replace(hour=now_hour))

    assert (found.state, sla_text(found)) == said


def test_definition__of_every_kind_of_rule_and_schedule__is_reported_in_words() -> None:
    body = {
        "id": "p",
        "period": "daily",
        "schedules": [
            {"cron": "0 6 * * 1-5", "timezone": "Europe/Berlin", "exclude": {"weekends": True, "holidays": "DE"}},
            {"name": "landed", "sensor": {"key": "orders"}},
            {"name": "told", "event": "shop.closed"},
        ],
        "readiness": {
            "rules": [
                {"all": [{"key": "a"}, {"not": {"key": "b", "check": "equals", "field": "x", "value": 1}}]},
                {"n_of": {"n": 1, "rules": [{"trait": "fresh"}, {"dataset": "urn:dp:x"}]}},
                {"key": "c", "field": "count", "history": {"periods": 7, "within": 0.2}, "severity": "warn"},
            ]
        },
        "trigger": {"type": "command", "config": {"command": ["make", "all"]}, "callback": True},
        "sla": {"max_duration": 3600, "evaluation_deadline": "07:00", "deadline": "2h", "critical": True},
        "dry_run": True,
    }
    pipeline = msgspec.convert(body, Pipeline, dec_hook=from_json_type)
    said = "\n".join(line for fact in definition_facts(pipeline) for line in fact.lines)

    for fact in (
        'cron: at "0 6 * * 1-5" in Europe/Berlin',
        "not on weekends, holidays of DE",
        "landed: when sensor orders arrives",
        "told: on event shop.closed",
        "(a exists and not (b.x equals 1))",
        "1 of (trait fresh, dataset urn:dp:x may be read)",
        "c.count as in the last 7 periods (warning only)",
        'command ["make","all"]; callback',
        "done within 1 h of the first sensor or the start",
        "ready by 07:00 (UTC)",
        "done within 2h of the due time, critical",
        "dry run: no job is started",
    ):
        assert fact in said, fact
    assert sensor_keys(pipeline) == ["a", "b", "c", "orders"]
