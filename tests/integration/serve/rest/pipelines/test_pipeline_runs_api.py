"""Runs over HTTP: begun by hand, completed from outside, cancelled, done again, explained and tried out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from headgate.triggers.contract import JobState
from tests.integration.serve.durable_api import problem
from tests.integration.serve.pipeline_rig import SILVER, TODAY, PipelineApi, done, pipeline_api

CRON: dict[str, Any] = {**SILVER, "id": "gold", "schedules": [{"cron": "0 6 * * *"}]}
LOG = f"/pipelines/silver/run-logs/{TODAY}"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PipelineApi]:
    with pipeline_api(tmp_path) as made:
        made.defined()
        yield made


def _start(api: PipelineApi, **more: Any) -> dict[str, Any]:
    begun = done(api.post("/pipelines/silver/runs", {"date": TODAY, "reason": "it is late", **more}), 202)
    api.settle()
    return begun


def _ready(api: PipelineApi, count: int = 12) -> None:
    done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": count}}), 201)
    api.settle()


def _running(api: PipelineApi) -> str:
    """Have a run whose job is under way, and return its id."""
    _start(api)
    _ready(api)
    (run,) = done(api.get("/pipelines/silver/runs"))["runs"]
    assert run["status"] == "RUNNING"
    return str(run["run_id"])


# Beginning.


def test_start__by_hand__pursues_the_period_in_the_name_of_who_asked(api: PipelineApi) -> None:
    key = api.key("ada", Role.OPERATOR)

    answer = api.post("/pipelines/silver/runs", {"date": "20250615", "reason": "it is late"}, key=key)
    api.settle()

    begun = done(answer, 202)
    assert (begun["date"], begun["schedule_id"], begun["created"]) == (TODAY, "stream", True)
    assert answer.headers["location"] == f"/api/v1{LOG}?schedule=stream"
    log = done(api.get(answer.headers["location"].removeprefix("/api/v1")))
    assert (log["status"], log["cause"], log["by"], log["execution"]) == (
        "PENDING",
        "manual",
        "ada",
        begun["execution"],
    )
    assert api.jobs.started == []
    assert api.service.asl.executions.describe(begun["execution_id"]).status == "RUNNING"


def test_start__forced__starts_the_job_though_nothing_is_ready(api: PipelineApi) -> None:
    _start(api, force=True)

    (run,) = done(api.get("/pipelines/silver/runs"))["runs"]
    assert (run["status"], api.jobs.started) == ("RUNNING", [run["run_id"]])
    assert "RUN_FORCED" in api.events()
    order = done(api.get(LOG))["order"]
    assert (order["order"], order["by"], order["reason"]) == ("force", "local", "it is late")


def test_start__while_under_way_or_done__is_a_conflict(api: PipelineApi) -> None:
    run_id = _running(api)
    body = {"date": TODAY, "reason": "again"}

    found = problem(api.post("/pipelines/silver/runs", body), 409, "illegal_transition")
    done(api.post(f"/runs/{run_id}/complete", {"status": "success"}))
    api.settle()
    over = problem(api.post("/pipelines/silver/runs", body), 409, "illegal_transition")

    assert "holds its lock" in found["detail"]
    assert "ask for a rerun" in over["detail"]
    assert api.jobs.started == [run_id]


def test_start__same_idempotency_key__begins_once(api: PipelineApi) -> None:
    headers = {"idempotency-key": "deploy-7"}
    body = {"date": TODAY, "reason": "it is late"}

    first = api.post("/pipelines/silver/runs", body, headers=headers)
    again = api.post("/pipelines/silver/runs", body, headers=headers)
    api.settle()

    assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
    assert "local-deploy-7" in first.json()["execution"]
    assert len(done(api.get("/pipelines/silver/runs"))["runs"]) == 1


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"date": TODAY}, "reason"),
        ({"date": TODAY, "reason": ""}, "reason"),
        ({"date": TODAY, "reason": "  "}, "reason"),
        ({"reason": "x"}, "date"),
        ({"date": "tomorrow", "reason": "x"}, "date"),
        ({"date": "2025-06-15T07", "reason": "x"}, "date"),
        ({"date": TODAY, "reason": "x", "schedule": "none"}, "schedule"),
        ({"date": TODAY, "reason": "x", "force": "yes"}, "force"),
    ],
)
def test_start__what_cannot_be__names_the_field_and_begins_nothing(
    api: PipelineApi, body: dict[str, Any], word: str
) -> None:
    assert word in problem(api.post("/pipelines/silver/runs", body), 400, "bad_payload")["detail"]
    api.settle()
    assert done(api.get("/pipelines/silver/runs"))["runs"] == []


def test_runs__of_none__are_not_found(api: PipelineApi) -> None:
    problem(api.post("/pipelines/none/runs", {"date": TODAY, "reason": "x"}), 404, "not_found")
    problem(api.get("/pipelines/none/runs"), 404, "not_found")
    problem(api.get("/pipelines/none/run-logs"), 404, "not_found")
    problem(api.get(LOG), 404, "not_found")
    problem(api.get("/runs/run_none"), 404, "not_found")
    problem(api.post("/runs/run_none/cancel", {"reason": "x"}), 404, "not_found")
    problem(api.post("/runs/run_none/complete", {"status": "success"}), 404, "not_found")
    problem(api.get("/reruns/rerun_none"), 404, "not_found")


# Ending.


def test_complete__reported_twice_and_otherwise__counts_once(api: PipelineApi) -> None:
    run_id = _running(api)

    first = done(api.post(f"/runs/{run_id}/complete", {"status": "success"}))
    done(api.post(f"/runs/{run_id}/complete", {"status": "success"}))
    done(api.post(f"/runs/{run_id}/complete", {"status": "failed", "reason": "no"}))
    api.settle()

    assert (first["status"], first["event"]) == ("RUNNING", "success")
    shown = done(api.get(f"/runs/{run_id}"))
    assert (shown["status"], shown["event"], shown["reason"]) == ("COMPLETED", "success", "")
    assert api.events().count("CALLBACK_RECEIVED") == 1
    assert [each["event"] for each in done(api.get(f"{LOG}/jobs"))["entries"]] == ["success"]


def test_complete__failed__keeps_category_and_reason(api: PipelineApi) -> None:
    run_id = _running(api)

    done(api.post(f"/runs/{run_id}/complete", {"status": "failed", "reason": "disk full", "category": "PERMANENT"}))
    api.settle()

    shown = done(api.get(f"/runs/{run_id}"))
    assert (shown["status"], shown["category"], shown["reason"]) == ("FAILED", "PERMANENT", "disk full")
    (entry,) = done(api.get(f"{LOG}/jobs"))["entries"]
    assert (entry["event"], entry["error"]) == ("fail", "disk full")
    for bad in ({}, {"status": "maybe"}, {"status": "failed", "category": "BAD"}):
        problem(api.post(f"/runs/{run_id}/complete", bad), 400, "bad_payload")


def test_cancel__run_and_job__end_with_who_and_why(api: PipelineApi) -> None:
    run_id = _running(api)
    key = api.key("ada", Role.OPERATOR)

    cancelled = done(api.post(f"/runs/{run_id}/cancel", {"reason": "wrong input"}, key=key), 202)
    again = done(api.post(f"/runs/{run_id}/cancel", {"reason": "wrong input"}, key=key), 202)
    api.settle()

    assert (cancelled["status"], again["version"]) == ("CANCELLED", cancelled["version"])
    assert "ada" in cancelled["reason"]
    assert "wrong input" in cancelled["reason"]
    assert api.jobs.cancelled == [run_id]
    assert api.events().count("RUN_CANCELLED") == 1
    problem(api.post(f"/runs/{run_id}/cancel", {}), 400, "bad_payload")


def test_cancel__one_that_is_done__is_a_conflict(api: PipelineApi) -> None:
    run_id = _running(api)
    done(api.post(f"/runs/{run_id}/complete", {"status": "success"}))
    api.settle()

    problem(api.post(f"/runs/{run_id}/cancel", {"reason": "late"}), 409, "illegal_transition")


def test_run_logs__by_dates__are_those_that_begin_so(api: PipelineApi) -> None:
    _start(api)
    done(api.post("/pipelines/silver/runs", {"date": "2025-05-31", "reason": "x"}), 202)
    api.settle()

    def dates(prefix: str) -> list[str]:
        found = done(api.get("/pipelines/silver/run-logs", params={"dates": prefix}))["run_logs"]
        return [each["date"] for each in found]

    assert dates("") == [TODAY, "2025-05-31"]
    assert dates("2025-05") == ["2025-05-31"]
    page = done(api.get("/pipelines/silver/runs?limit=1"))
    rest = done(api.get("/pipelines/silver/runs", params={"limit": 1, "cursor": page["cursor"]}))
    assert [each["date"] for each in (*page["runs"], *rest["runs"])] == ["2025-05-31", TODAY]


# Doing it again.


def test_rerun__of_what_is_done__is_judged_and_done_again(api: PipelineApi) -> None:
    run_id = _running(api)
    done(api.post(f"/runs/{run_id}/complete", {"status": "success"}))
    api.settle()
    key = api.key("ada", Role.OPERATOR)

    asked = api.post("/pipelines/silver/reruns", {"date": TODAY, "note": "source corrected", "force": True}, key=key)
    api.settle()

    rerun = done(asked, 202)
    assert (rerun["status"], rerun["reason"], rerun["by"], rerun["note"]) == (
        "REQUESTED", "manual", "ada", "source corrected",
    )  # fmt: skip
    accepted = done(api.get(asked.headers["location"].removeprefix("/api/v1")))
    assert (accepted["status"], accepted["rule"]) == ("ACCEPTED", "forced")
    assert len(api.jobs.started) == 2
    (listed,) = done(api.get("/pipelines/silver/reruns"))["reruns"]
    assert listed["rerun_id"] == done(api.get("/reruns"))["reruns"][0]["rerun_id"] == rerun["rerun_id"]


def test_rerun__without_anything_new__is_rejected_with_the_rule(api: PipelineApi) -> None:
    run_id = _running(api)
    api.env.clock.advance(1)
    done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 12, "updatedAt": 1_749_000_000}}))
    done(api.post(f"/runs/{run_id}/complete", {"status": "success"}))
    api.settle()

    rerun = done(api.post("/pipelines/silver/reruns", {"date": TODAY, "reason": "why not", "note": "so"}), 202)
    api.settle()

    judged = done(api.get(f"/reruns/{rerun['rerun_id']}"))
    assert (judged["reason"], judged["status"], judged["rule"]) == ("manual", "REJECTED", "nothing-new")
    problem(api.post("/pipelines/silver/reruns", {"date": TODAY}), 400, "bad_payload")


# Knowing.


def test_why__at_every_stage__says_what_is_in_the_way(api: PipelineApi) -> None:
    def why() -> tuple[str, str]:
        found = done(api.get(f"/pipelines/silver/why?date={TODAY}"))
        return found["standing"], found["sentence"]

    assert why()[0] == "awaiting"
    _start(api)
    waiting = why()
    assert waiting[0] == "waiting"
    assert "orders is missing" in waiting[1]
    _ready(api)
    assert why()[0] == "running"
    tree = done(api.get("/pipelines/silver/why?schedule=stream"))["tree"]
    assert {each["label"].split(" ")[0] for each in tree["children"]} == {"due", "lock", "evaluation", "attempts"}


def test_why__bad_date_or_schedule__names_it(api: PipelineApi) -> None:
    assert "date" in problem(api.get("/pipelines/silver/why?date=2025-W01"), 400, "bad_payload")["detail"]
    assert "schedule" in problem(api.get("/pipelines/silver/why?schedule=x"), 400, "bad_payload")["detail"]
    problem(api.get("/pipelines/none/why"), 404, "not_found")


def test_readiness__before_and_after_an_evaluation__is_as_it_was_found(api: PipelineApi) -> None:
    problem(api.get("/pipelines/silver/readiness"), 404, "not_found")
    problem(api.get(f"/pipelines/silver/readiness?date={TODAY}"), 404, "not_found")
    _start(api)

    cached = done(api.get("/pipelines/silver/readiness"))
    dated = done(api.get(f"/pipelines/silver/readiness?date={TODAY}"))
    api.env.clock.advance(301)

    assert (cached["result"], cached["is_cached"], cached["date"]) == ("not_ready", True, TODAY)
    assert cached["blocking"][0]["name"] == "orders.count"
    assert (dated["is_cached"], dated["evaluation_id"]) == (False, cached["evaluation_id"])
    problem(api.get("/pipelines/silver/readiness"), 404, "not_found")


def test_evaluate__as_a_trial__is_kept_apart_and_starts_nothing(api: PipelineApi) -> None:
    _ready(api)

    tried = done(api.post("/pipelines/silver/evaluate", {"date": TODAY}))
    now = done(api.post("/pipelines/silver/evaluate"))
    api.settle()

    assert (tried["purpose"], tried["result"], tried["rules"][0]["verdict"]) == ("trial", "proceed", "PASS")
    assert now["date"] == TODAY
    assert api.jobs.started == []
    assert done(api.get("/pipelines/silver/runs"))["runs"] == []
    problem(api.get(f"/pipelines/silver/readiness?date={TODAY}"), 404, "not_found")
    listed = done(api.get(f"/pipelines/silver/evaluations?date={TODAY}&purpose=trial"))["evaluations"]
    assert [each["evaluation_id"] for each in listed] == [now["evaluation_id"], tried["evaluation_id"]]
    assert done(api.get(f"/pipelines/silver/evaluations?date={TODAY}"))["evaluations"] == []


def test_simulate__sensor_that_came_in_the_window__would_have_started_then(api: PipelineApi) -> None:
    path = api.defined(CRON)
    # Half past six of the next day: thirty minutes after it is due.
    api.env.clock.advance(55_400)
    done(api.post(f"{path}/sensors/orders", {"data": {"count": 12}, "period": "2025-06-16"}), 201)
    api.env.clock.advance(86_400)

    found = done(api.post(f"{path}/simulate", {"date": "2025-06-16"}))
    missing = done(api.post(f"{path}/simulate", {"date": "2025-06-15"}))

    assert (found["outcome"], found["opens_at"], found["ready_at"]) == (
        "ready", "2025-06-16T06:00:00.000Z", "2025-06-16T06:30:00.000Z",
    )  # fmt: skip
    assert [each["result"] for each in found["looks"]] == ["not_ready", "proceed"]
    assert (missing["outcome"], missing["closes_at"]) == ("exhausted", "2025-06-15T07:00:00.000Z")
    assert missing["blocking"][0]["name"] == "orders.count"
    api.settle()
    assert done(api.get(f"{path}/runs"))["runs"] == []
    assert api.jobs.started == []


def test_simulate__not_begun_and_excluded__says_so(api: PipelineApi) -> None:
    path = api.defined({**CRON, "schedules": [{"cron": "0 6 * * *", "exclude": {"weekends": True}}]})

    assert done(api.post("/pipelines/silver/simulate", {"date": TODAY}))["outcome"] == "not-begun"
    assert done(api.post(f"{path}/simulate", {"date": "2025-06-14"}))["outcome"] == "excluded"
    assert done(api.post(f"{path}/simulate", {"date": "2025-06-16"}))["outcome"] == "not-begun"
    assert "date" in problem(api.post(f"{path}/simulate", {}), 400, "bad_payload")["detail"]


def test_simulate__stable_rule__needs_several_looks(api: PipelineApi) -> None:
    rule = {"key": "orders", "check": "gte", "field": "count", "value": 10, "stable_for": 3}
    path = api.defined({**CRON, "readiness": {"rules": [rule]}})
    api.env.clock.advance(50_000)
    done(api.post(f"{path}/sensors/orders", {"data": {"count": 12}, "period": "2025-06-16"}), 201)
    api.env.clock.advance(86_400)

    found = done(api.post(f"{path}/simulate", {"date": "2025-06-16"}))

    # It is due at six, and is looked at every five minutes.
    assert (found["outcome"], found["ready_at"]) == ("ready", "2025-06-16T06:10:00.000Z")


def test_poll__job_that_ends_by_itself__is_seen(api: PipelineApi) -> None:
    run_id = _running(api)
    api.jobs.state = JobState.SUCCEEDED
    api.env.advance("40s")
    api.settle()

    shown = done(api.get(f"/runs/{run_id}"))
    assert shown["status"] == "COMPLETED"
    assert shown["duration_ms"] >= 30_000
    assert [each["status"] for each in shown["transitions"]] == ["PENDING", "TRIGGERING", "RUNNING", "COMPLETED"]
