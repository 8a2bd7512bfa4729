"""How runs end: what is recorded together, what follows, and that asking twice is asking once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Budgets, Monitoring, PostRun, Readiness, RetryPolicy, Trait
from headgate.pipelines.enums import ControlState, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from tests.pipeline_rig import Rig, pipeline, slot_of

SLOT = slot_of()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.define(pipeline())
        yield opened


def started(rig: Rig, execution: str = "e1", **fields: Any) -> dict[str, Any]:
    """Begin a run and its job, and return what further calls carry."""
    if fields:
        rig.define(pipeline(**fields))
    token = rig.call(SLOT, action="acquireLock", executionName=execution)["lockToken"]
    found = rig.call(SLOT, action="resolvePipeline", executionName=execution, lockToken=token, cause="sensor")
    carried = {"runId": found["runId"], "lockToken": token}
    rig.call(SLOT, mode="trigger", **carried)
    return carried


def log_result(rig: Rig, carried: dict[str, Any], status: str = "FAILED", **fields: Any) -> dict[str, Any]:
    return rig.call(SLOT, action="logResult", status=status, **carried, **fields)


def test_log_result__success_said_twice__is_one(rig: Rig) -> None:
    # bug 35
    carried = started(rig)
    first, second = (log_result(rig, carried, "COMPLETED") for _ in range(2))

    assert first == second
    assert rig.run(SLOT).status is RunStatus.COMPLETED
    assert rig.event_names("silver", EventName.JOB_COMPLETED) == ["JOB_COMPLETED"]
    assert [entry.event for entry in rig.stores.job_log.ls(SLOT).entries] == [JobEvent.SUCCESS]


def test_log_result__failure_said_twice__is_one_and_answers_the_same(rig: Rig) -> None:
    carried = started(rig)
    first, second = (log_result(rig, carried, reason="exit 1") for _ in range(2))

    assert first == second
    assert first["retryable"] is True
    assert first["retryBackoffSeconds"] == 60
    assert rig.log(SLOT).failures == 1
    assert rig.event_names("silver", EventName.JOB_FAILED) == ["JOB_FAILED"]


def test_log_result__success_after_a_failure_was_recorded__changes_nothing(rig: Rig) -> None:
    carried = started(rig)
    log_result(rig, carried)
    answer = log_result(rig, carried, "COMPLETED")
    assert answer["monitor"] is False
    assert rig.run(SLOT).status is RunStatus.FAILED
    assert rig.event_names("silver", EventName.JOB_COMPLETED) == []


def test_log_result__no_run__answers_all_that_the_machine_reads(rig: Rig) -> None:
    answer = rig.call(SLOT, action="logResult", status="FAILED", runId="", reason="no trigger")
    assert answer["retryable"] is False
    assert answer["retryBackoffSeconds"] == 0
    assert answer["monitor"] is False


@pytest.mark.parametrize(
    ("category", "attempts", "permanent_retries", "retries"),
    [
        (FailureCategory.TRANSIENT, 3, 0, 2),
        (FailureCategory.TIMEOUT, 2, 0, 1),
        (FailureCategory.TRANSIENT, 1, 5, 0),
        (FailureCategory.PERMANENT, 3, 0, 0),
        (FailureCategory.PERMANENT, 3, 1, 1),
    ],
)
def test_log_result__failures_of_one_kind__as_many_retries_as_it_has(
    rig: Rig, category: FailureCategory, attempts: int, permanent_retries: int, retries: int
) -> None:
    policy = RetryPolicy(attempts=attempts, permanent_retries=permanent_retries, backoff=Seconds(1))
    rig.define(pipeline(retry=policy))
    answers = []
    for _ in range(retries + 1):
        carried = started(rig)
        answers.append(log_result(rig, carried, failureCategory=category.value)["retryable"])
        rig.call(SLOT, action="releaseLock", lockToken=carried["lockToken"])

    assert answers == [True] * retries + [False]


def test_log_result__paused_meanwhile__is_not_tried_again(rig: Rig) -> None:
    carried = started(rig)
    rig.stores.controls.pause("silver", by="ana", reason="stop")
    assert log_result(rig, carried)["retryable"] is False


def test_log_result__what_it_reports__says_whether_a_retry_follows(rig: Rig) -> None:
    carried = started(rig, retry=RetryPolicy(attempts=2))
    log_result(rig, carried)
    first = rig.event_names("silver", EventName.RETRY_SCHEDULED, EventName.RETRY_EXHAUSTED, EventName.PIPELINE_FAILED)
    rig.call(SLOT, action="releaseLock", lockToken=carried["lockToken"])
    log_result(rig, started(rig))

    assert first == ["RETRY_SCHEDULED"]
    events = rig.event_names("silver", EventName.RETRY_SCHEDULED, EventName.RETRY_EXHAUSTED, EventName.PIPELINE_FAILED)
    assert sorted(events[1:]) == ["PIPELINE_FAILED", "RETRY_EXHAUSTED"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, EventName.JOB_FAILED),
        ({"jobEvent": "timeout"}, EventName.JOB_TIMEOUT),
        ({"jobEvent": "validation-exhausted"}, EventName.VALIDATION_TIMEOUT),
    ],
)
def test_log_result__kind_of_failure__has_an_event_of_its_own(
    rig: Rig, fields: dict[str, str], name: EventName
) -> None:
    log_result(rig, started(rig), **fields)
    assert rig.event_names("silver", name) == [name.value]


def test_breaker__failures_in_a_row__stops_the_pipeline_and_reports_once(rig: Rig) -> None:
    rig.define(pipeline(budgets=Budgets(breaker=2)))
    states = []
    for _ in range(3):
        carried = started(rig)
        log_result(rig, carried)
        rig.call(SLOT, action="releaseLock", lockToken=carried["lockToken"])
        states.append(rig.stores.controls.get("silver").state)

    assert states == [ControlState.ACTIVE, ControlState.TRIPPED, ControlState.TRIPPED]
    assert rig.event_names("silver", EventName.CIRCUIT_BREAKER_TRIPPED) == ["CIRCUIT_BREAKER_TRIPPED"]


def test_breaker__a_success_between__begins_to_count_anew(rig: Rig) -> None:
    rig.define(pipeline(budgets=Budgets(breaker=2)))
    for status in ("FAILED", "COMPLETED"):
        carried = started(rig)
        log_result(rig, carried, status)
        rig.call(SLOT, action="releaseLock", lockToken=carried["lockToken"])
    assert rig.stores.controls.get("silver").failures_in_a_row == 0


def test_completed__with_monitoring_and_traits__is_watched_for_its_time(rig: Rig) -> None:
    watch = PostRun(monitoring=Monitoring(enabled=True, duration=Seconds(600)))
    carried = started(rig, readiness=Readiness(traits={"fresh": Trait(evaluator="push")}), post_run=watch)
    assert log_result(rig, carried, "COMPLETED")["monitor"] is True
    assert rig.run(SLOT).status is RunStatus.COMPLETED_MONITORING
    assert rig.run(SLOT).monitor_until_ms == rig.now_ms + 600_000
    assert log_result(rig, carried, "COMPLETED")["monitor"] is True


def test_completed__with_monitoring_and_nothing_to_watch__is_over(rig: Rig) -> None:
    carried = started(rig, post_run=PostRun(monitoring=Monitoring(enabled=True)))
    assert log_result(rig, carried, "COMPLETED")["monitor"] is False


def test_completed__without_monitoring__the_duration_is_that_of_the_run(rig: Rig) -> None:
    carried = started(rig)
    rig.env.clock.advance(90)
    log_result(rig, carried, "COMPLETED")

    ended = rig.events("silver", EventName.JOB_COMPLETED, EventName.PIPELINE_COMPLETED)
    assert [each.detail["duration_seconds"] for each in ended] == [90.0, 90.0]


def test_completed__with_monitoring__each_event_has_its_own_duration(rig: Rig) -> None:
    watch = PostRun(monitoring=Monitoring(enabled=True, duration=Seconds(600)))
    carried = started(rig, readiness=Readiness(traits={"fresh": Trait(evaluator="push")}), post_run=watch)
    rig.env.clock.advance(90)
    log_result(rig, carried, "COMPLETED")

    ended = rig.events("silver", EventName.PIPELINE_COMPLETED, EventName.MONITORING_STARTED)
    assert {each.name: each.detail["duration_seconds"] for each in ended} == {
        EventName.PIPELINE_COMPLETED: 90.0,
        EventName.MONITORING_STARTED: 600.0,
    }


# Alerts.


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("INFRA_FAILURE", EventName.INFRA_FAILURE),
        ("EVALUATOR_ERROR", EventName.EVALUATOR_FAILED),
        ("LOCK_NOT_RELEASED", EventName.LOCK_NOT_RELEASED),
        ("CASCADE_FAILED", EventName.CASCADE_FAILED),
        ("SLA_SCHEDULING_FAILED", EventName.INFRA_FAILURE),
        ("MONITORING_FAILED", EventName.INFRA_FAILURE),
        ("something new", EventName.INFRA_FAILURE),
    ],
)
def test_alert__of_any_kind__is_reported_with_what_is_known(rig: Rig, kind: str, name: EventName) -> None:
    # bug 69: every error is reported.
    for error in ({"Error": "Down", "Cause": "no answer"}, {}, None, "text"):
        rig.call(SLOT, action="alertError", kind=kind, error=error, runId="")
    assert rig.event_names("silver") == [name.value] * 4


def test_alert__that_is_final__ends_the_run(rig: Rig) -> None:
    carried = started(rig)
    error = {"Error": "States.Runtime", "Cause": "no such path"}
    rig.call(SLOT, action="alertError", kind="INFRA_FAILURE", error=error, final=True, runId=carried["runId"])
    assert rig.run(SLOT).status is RunStatus.FAILED
    assert "no such path" in rig.run(SLOT).reason


def test_alert__that_is_final_for_a_run_that_is_done__leaves_it_done(rig: Rig) -> None:
    carried = started(rig)
    log_result(rig, carried, "COMPLETED")
    rig.call(SLOT, action="alertError", kind="INFRA_FAILURE", error={}, final=True, runId=carried["runId"])
    assert rig.run(SLOT).status is RunStatus.COMPLETED


def test_dry_run__said_twice__is_reported_once(rig: Rig) -> None:
    # bug 70
    rig.define(pipeline(dry_run=True))
    token = rig.call(SLOT, action="acquireLock", executionName="e1")["lockToken"]
    run_id = rig.call(SLOT, action="resolvePipeline", executionName="e1", lockToken=token, cause="sensor")["runId"]
    for _ in range(2):
        assert rig.call(SLOT, action="dryRun", runId=run_id, lockToken=token) == {"dryRun": True}
    assert rig.event_names("silver", EventName.DRY_RUN_WOULD_TRIGGER) == ["DRY_RUN_WOULD_TRIGGER"]
    assert rig.jobs.orders == []
