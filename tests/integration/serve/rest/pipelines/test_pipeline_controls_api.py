"""Controls over HTTP: pauses, orders for periods, backfills, events, expectations and calendars."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.pipelines.watchdog.verdicts import Verdicts
from tests.integration.serve.durable_api import problem
from tests.integration.serve.pipeline_rig import SILVER, TODAY, PipelineApi, done, pipeline_api

CRON: dict[str, Any] = {**SILVER, "id": "gold", "schedules": [{"cron": "0 6 * * *"}]}
PERIOD = f"/pipelines/silver/periods/{TODAY}"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PipelineApi]:
    with pipeline_api(tmp_path) as made:
        made.defined()
        yield made


def _landed(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/landed", {"data": {"date": TODAY}}), 201)
    api.settle()


def _statuses(api: PipelineApi) -> list[str]:
    return [each["status"] for each in done(api.get("/pipelines/silver/runs"))["runs"]]


# Pipelines.


def test_pause__and_resume__say_who_and_why(api: PipelineApi) -> None:
    key = api.key("ada", Role.OPERATOR)

    paused = done(api.post("/pipelines/silver/pause", {"reason": "migration"}, key=key))
    _landed(api)
    assert _statuses(api) == []
    resumed = done(api.post("/pipelines/silver/resume", {"reason": "over"}, key=key))

    assert (paused["state"], paused["by"], paused["reason"]) == ("PAUSED", "ada", "migration")
    assert (resumed["state"], resumed["reason"]) == ("ACTIVE", "over")
    assert done(api.get("/pipelines/silver/control"))["version"] == 2
    assert [each for each in api.events() if each in ("PIPELINE_PAUSED", "PIPELINE_RESUMED")] == [
        "PIPELINE_PAUSED",
        "PIPELINE_RESUMED",
    ]


def test_pause__until_a_moment__ends_by_itself(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/pause", {"reason": "migration", "until": "2025-06-15T17:00:00+01:00"}))

    assert done(api.get("/pipelines/silver/control"))["until"] == "2025-06-15T16:00:00.000Z"
    api.env.clock.advance(3_600)
    assert done(api.get("/pipelines/silver/control"))["state"] == "ACTIVE"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "reason"),
        ({"reason": " "}, "reason"),
        ({"reason": "x", "until": "2025-06-15T15:00:00Z"}, "until"),
        ({"reason": "x", "until": "2025-06-16T15:00:00"}, "until"),
        ({"reason": "x", "until": "soon"}, "until"),
    ],
)
def test_pause__what_cannot_be__names_the_field(api: PipelineApi, body: dict[str, Any], word: str) -> None:
    assert word in problem(api.post("/pipelines/silver/pause", body), 400, "bad_payload")["detail"]
    assert done(api.get("/pipelines/silver/control"))["state"] == "ACTIVE"


# Periods.


def test_hold__run_that_becomes_ready__waits_until_it_is_approved(api: PipelineApi) -> None:
    key = api.key("ada", Role.OPERATOR)
    _landed(api)
    held = done(api.post(f"{PERIOD}/hold", {"reason": "look first"}, key=key))
    done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 12}}), 201)
    api.settle()
    assert (_statuses(api), api.jobs.started) == (["PENDING"], [])

    done(api.post(f"{PERIOD}/approve", {"reason": "fine"}, key=key))
    api.settle()

    assert (held["hold"]["by"], held["hold"]["reason"]) == ("ada", "look first")
    assert _statuses(api) == ["RUNNING"]
    assert [each for each in api.events() if each in ("RUN_HELD", "RUN_APPROVED")] == ["RUN_HELD", "RUN_APPROVED"]


def test_approve__what_came_while_it_was_held__begins_then(api: PipelineApi) -> None:
    done(api.post(f"{PERIOD}/hold", {"reason": "look first"}))
    _landed(api)
    assert _statuses(api) == []

    done(api.post(f"{PERIOD}/approve", {"reason": "fine"}))
    api.settle()

    assert _statuses(api) == ["PENDING"]


@pytest.mark.parametrize(("date", "count"), [("2025-06-15", 1), ("2025-06-16", 0)])
def test_approve__by_the_clock__begins_what_is_due_and_no_other(api: PipelineApi, date: str, count: int) -> None:
    path = api.defined(CRON)
    done(api.post(f"{path}/periods/{date}/hold", {"reason": "look first"}))

    done(api.post(f"{path}/periods/{date}/approve", {"reason": "fine"}))
    api.settle()

    assert len(done(api.get(f"{path}/runs"))["runs"]) == count


def test_approve__marker_came_while_it_was_held__begins_then(api: PipelineApi) -> None:
    done(api.post(f"{PERIOD}/hold", {"reason": "look first"}))
    done(api.post("/pipelines/silver/markers", {"date": TODAY}), 201)
    api.settle()
    done(api.post(f"{PERIOD}/approve", {"reason": "fine"}))
    api.settle()

    assert [each["cause"] for each in done(api.get("/pipelines/silver/runs"))["runs"]] == ["marker"]


def test_skip__nothing_is_begun__and_nothing_begins(api: PipelineApi) -> None:
    skipped = done(api.post(f"{PERIOD}/skip", {"reason": "no data today", "schedule": "stream"}))
    _landed(api)

    assert (skipped["status"], skipped["order"]["order"]) == ("CANCELLED", "skip")
    assert _statuses(api) == []
    assert "RUN_SKIPPED" in api.events()
    found = problem(api.post("/pipelines/silver/runs", {"date": TODAY, "reason": "x"}), 409, "illegal_transition")
    assert "skipped it" in found["detail"]


def test_mark_success__takes_the_period_for_done(api: PipelineApi) -> None:
    marked = done(api.post(f"{PERIOD}/mark-success", {"reason": "done by hand"}))

    assert (marked["status"], marked["by"]) == ("COMPLETED", "local")
    assert "PIPELINE_COMPLETED" in api.events()
    problem(api.post(f"{PERIOD}/mark-success", {"reason": "again"}), 409, "illegal_transition")


def test_force__run_that_waits__starts_its_job(api: PipelineApi) -> None:
    _landed(api)
    assert _statuses(api) == ["PENDING"]

    done(api.post(f"{PERIOD}/force", {"reason": "the sensor is broken"}))
    api.settle()

    assert (_statuses(api), len(api.jobs.started)) == (["RUNNING"], 1)


def test_force__nothing_is_begun__begins_it(api: PipelineApi) -> None:
    done(api.post(f"{PERIOD}/force", {"reason": "the sensor is broken"}))
    api.settle()

    assert (_statuses(api), len(api.jobs.started)) == (["RUNNING"], 1)


@pytest.mark.parametrize("word", ["hold", "approve", "skip", "mark-success", "force"])
def test_orders__what_cannot_be__names_the_field(api: PipelineApi, word: str) -> None:
    assert "reason" in problem(api.post(f"{PERIOD}/{word}", {}), 400, "bad_payload")["detail"]
    bad = f"/pipelines/silver/periods/soon/{word}"
    assert "date" in problem(api.post(bad, {"reason": "x"}), 400, "bad_payload")["detail"]
    problem(api.post(f"{PERIOD}/{word}", {"reason": "x", "schedule": "none"}), 400, "bad_payload")
    problem(api.post(f"/pipelines/none/periods/{TODAY}/{word}", {"reason": "x"}), 404, "not_found")


def test_approve__no_one_holds_it__is_a_conflict(api: PipelineApi) -> None:
    problem(api.post(f"{PERIOD}/approve", {"reason": "x"}), 409, "illegal_transition")


# Backfills.


def test_backfill__dry_run__says_what_it_would_do_and_asks_for_nothing(api: PipelineApi) -> None:
    path = api.defined({**CRON, "schedules": [{"cron": "0 6 * * *", "exclude": {"weekends": True}}]})
    done(api.post(f"{path}/periods/2025-06-03/mark-success", {"reason": "by hand"}))
    body = {"from": "2025-06-01", "to": "2025-06-05", "reason": "new rules", "dry_run": True, "order": "newest-first"}

    planned = done(api.post(f"{path}/backfills", body))

    assert planned["begins"] == ["2025-06-05", "2025-06-04", "2025-06-02"]
    assert planned["skips"] == ["2025-06-03"]
    assert planned["excluded"] == {"2025-06-01": "2025-06-01: weekend"}
    assert done(api.get(f"{path}/backfills"))["backfills"] == []


def test_backfill__asked_for__is_steered_until_it_is_over(api: PipelineApi) -> None:
    path = api.defined(CRON)
    key = api.key("ada", Role.OPERATOR)
    body = {"from": "2025-06-01", "to": "2025-06-05", "reason": "new rules", "concurrency": 2}

    asked = api.post(f"{path}/backfills", body, key=key)

    made = done(asked, 202)
    one = asked.headers["location"].removeprefix("/api/v1")
    assert (made["by"], made["concurrency"], made["dates_count"], made["state"]) == ("ada", 2, 5, "RUNNING")
    assert done(api.get(one))["dates"] == [f"2025-06-0{day}" for day in range(1, 6)]
    assert done(api.post(f"{one}/pause", {"reason": "load"}, key=key))["state"] == "PAUSED"
    assert done(api.post(f"{one}/resume", {"reason": "night"}, key=key))["state"] == "RUNNING"
    over = done(api.post(f"{one}/cancel", {"reason": "enough"}, key=key))
    assert (over["state"], over["reason"]) == ("CANCELLED", "enough")
    problem(api.post(f"{one}/resume", {"reason": "more"}), 409, "illegal_transition")
    problem(api.post("/backfills/none/pause", {"reason": "more"}), 404, "not_found")
    assert [each["dates"] for each in done(api.get(f"{path}/backfills"))["backfills"]] == [[]]
    assert "BACKFILL_STARTED" in api.events("gold")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"from": None}, "from"),
        ({"to": "2025-05-01"}, "to"),
        ({"to": "2025-W20"}, "to"),
        ({"from": "1990-01-01"}, "periods"),
        ({"concurrency": 0}, "concurrency"),
        ({"schedule": "none"}, "schedule"),
        ({"reason": ""}, "reason"),
        ({"order": "random"}, "order"),
    ],
)
def test_backfill__what_cannot_be__names_the_field(api: PipelineApi, change: dict[str, Any], word: str) -> None:
    path = api.defined(CRON)
    body = {"from": "2025-06-01", "to": "2025-06-05", "reason": "new rules", **change}

    assert word in problem(api.post(f"{path}/backfills", body), 400, "bad_payload")["detail"]


def test_backfill__nothing_but_excluded_days__is_refused(api: PipelineApi) -> None:
    path = api.defined({**CRON, "schedules": [{"cron": "0 6 * * *", "exclude": {"weekends": True}}]})
    body = {"from": "2025-06-14", "to": "2025-06-15", "reason": "x"}

    problem(api.post(f"{path}/backfills", body), 400, "bad_payload")


# Events and expectations.


def test_events__by_name_and_time__are_narrowed(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/pause", {"reason": "one"}))
    api.env.clock.advance(60)
    done(api.post("/pipelines/silver/resume", {"reason": "two"}))

    def names(**query: Any) -> list[str]:
        return [each["name"] for each in done(api.get("/pipelines/silver/events", params=query))["events"]]

    assert names() == ["PIPELINE_RESUMED", "PIPELINE_PAUSED", "PIPELINE_DEFINED"]
    assert names(name="pipeline_paused") == ["PIPELINE_PAUSED"]
    assert names(name=["PIPELINE_PAUSED", "PIPELINE_RESUMED"]) == ["PIPELINE_RESUMED", "PIPELINE_PAUSED"]
    assert names(since="2025-06-15T15:07:00Z") == ["PIPELINE_RESUMED"]
    assert names(until="2025-06-15T15:07:00Z", limit=1) == ["PIPELINE_PAUSED"]
    bad = problem(api.get("/pipelines/silver/events?name=PIPELINE_PAUSE"), 400, "bad_payload")
    assert "PIPELINE_PAUSED" in bad["detail"]
    problem(api.get("/pipelines/none/events"), 404, "not_found")


def test_pipeline_events__of_all__are_followed_by_their_cursor(api: PipelineApi) -> None:
    api.env.clock.advance(1)
    api.defined(CRON)
    api.env.clock.advance(1)
    done(api.post("/pipelines/gold/pause", {"reason": "one"}))

    first = done(api.get("/pipeline-events", params={"since": "2025-06-15T00:00:00Z", "limit": 2}))
    rest = done(api.get("/pipeline-events", params={"cursor": first["cursor"]}))
    paused = done(api.get("/pipeline-events?name=PIPELINE_PAUSED"))

    assert [(each["pipeline_id"], each["name"]) for each in first["events"]] == [
        ("silver", "PIPELINE_DEFINED"),
        ("gold", "PIPELINE_DEFINED"),
    ]
    assert [each["name"] for each in rest["events"]] == ["PIPELINE_PAUSED"]
    assert done(api.get("/pipeline-events", params={"cursor": rest["cursor"]}))["events"] == []
    assert [each["detail"]["reason"] for each in paused["events"]] == ["one"]
    problem(api.get("/pipeline-events?cursor=x&since=2025-06-15T00:00:00Z"), 400, "bad_payload")


def test_expectations__by_verdict_and_by_pipeline__are_listed(api: PipelineApi) -> None:
    pipelines = api.pipelines
    verdicts = Verdicts(pipelines.store, pipelines.clock, pipelines.event_writer)
    for day, verdict in ((13, ExpectationVerdict.MET), (14, ExpectationVerdict.MISSED)):
        due_at = datetime.fromisoformat(f"2025-06-{day}T09:00:00+00:00")
        expected = Expectation(
            kind=ExpectationKind.COMPLETION_SLA,
            schedule_id="stream",
            date=f"2025-06-{day}",
            due_at=due_at,
            ready_at=due_at,
        )
        assert verdicts.judge_once("silver", expected, ExpectationJudgement(verdict=verdict, reason="told"))

    def dates(**query: Any) -> list[str]:
        return [each["date"] for each in done(api.get("/expectations", params=query))["expectations"]]

    assert dates(verdict="MISSED") == ["2025-06-14"]
    assert dates(pipeline="silver") == ["2025-06-14", "2025-06-13"]
    assert dates(pipeline="silver", verdict="MET") == ["2025-06-13"]
    assert dates(pipeline="silver", since="2025-06-14T00:00:00Z") == ["2025-06-14"]
    assert dates(verdict="MISSED", since="2025-06-15T00:00:00Z") == []
    assert "verdict" in problem(api.get("/expectations"), 400, "bad_payload")["detail"]
    problem(api.get("/expectations?verdict=LATE"), 400, "bad_payload")
    problem(api.get("/expectations?pipeline=none"), 404, "not_found")


# Calendars.


def test_calendar__kept_changed_and_used__is_seen_by_pipelines_at_once(api: PipelineApi) -> None:
    key = api.key("ada", Role.ADMIN)
    kept = api.put("/calendars/company", {"holidays": "DE", "dates": ["2025-06-16"]}, key=key)
    same = api.put("/calendars/company", {"holidays": "DE", "dates": ["2025-06-16"]})
    path = api.defined({**CRON, "schedules": [{"cron": "0 6 * * *", "exclude": {"calendar": "company"}}]})

    assert (kept.status_code, kept.json()["version"], kept.json()["by"]) == (201, 1, "ada")
    assert (same.status_code, same.headers["etag"]) == (200, '"1"')
    assert done(api.get(f"{path}/why?date=2025-06-16"))["standing"] == "excluded"
    done(api.put("/calendars/company", {"holidays": "DE"}), 201)
    assert done(api.get(f"{path}/why?date=2025-06-16"))["standing"] == "not-due"
    assert [each["name"] for each in done(api.get("/calendars"))["calendars"]] == ["company"]


def test_calendar__in_use__is_not_deleted(api: PipelineApi) -> None:
    done(api.put("/calendars/company", {"weekends": True}), 201)
    done(api.put("/calendars/team", {"calendar": "company"}), 201)
    api.defined({**CRON, "schedules": [{"cron": "0 6 * * *", "exclude": {"calendar": "team"}}]})

    assert "pipeline gold" in problem(api.delete("/calendars/team"), 409, "conflict")["detail"]
    assert "calendar team" in problem(api.delete("/calendars/company"), 409, "conflict")["detail"]
    api.defined(CRON)
    assert api.delete("/calendars/team").status_code == 204
    problem(api.get("/calendars/team"), 404, "not_found")
    problem(api.delete("/calendars/team"), 404, "not_found")
    assert done(api.put("/calendars/team", {"weekends": True}), 201)["version"] == 3


def test_calendar__if_match__changes_only_what_was_seen(api: PipelineApi) -> None:
    tag = api.put("/calendars/company", {"weekends": True}).headers["etag"]
    done(api.put("/calendars/company", {"days": ["friday"]}, headers={"if-match": tag}), 201)

    late = api.put("/calendars/company", {"weekends": True}, headers={"if-match": tag})

    problem(late, 412, "precondition_failed")
    problem(api.delete("/calendars/company", headers={"if-match": tag}), 412, "precondition_failed")


@pytest.mark.parametrize(
    ("name", "body", "word"),
    [
        ("company", {"dates": ["soon"]}, "dates"),
        ("company", {"days": ["someday"]}, "days"),
        ("company", {"holidays": "XX"}, "holidays"),
        ("company", {"calendar": "none"}, "calendar"),
        ("company", {"nonsense": 1}, "nonsense"),
        ("a b", {}, "calendar"),
    ],
)
def test_calendar__what_cannot_be__names_the_field(
    api: PipelineApi, name: str, body: dict[str, Any], word: str
) -> None:
    answer = api.put(f"/calendars/{name}", body)

    assert answer.status_code == 400, answer.text
    assert word in answer.json()["detail"]
    assert done(api.get("/calendars"))["calendars"] == []
