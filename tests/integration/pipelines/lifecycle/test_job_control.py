"""One run and its job, call by call: started once, asked after, ended, and never lost between two who act at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.errors import (
    IllegalTransitionError,
    NotFoundError,
    OutcomeUnknownError,
    StaleClaimError,
    StoreBusyError,
)
from headgate.pipelines.definition.model import JOB_CHECK_SECONDS_MAX, TriggerSpec
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.completion import RunCompletion
from headgate.pipelines.lifecycle.drift import RunBaselines
from headgate.pipelines.lifecycle.job_control import JobControl, order_of
from headgate.pipelines.lifecycle.messages import Call, read_call
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.runs.stores import RunStores
from headgate.triggers.contract import JobState, PollResult, TriggerFailedError, TriggerOrder
from tests.health_faults import answer_lost, failing
from tests.pipeline_rig import Jobs, Rig, named, pipeline, slot_of, waiting_pipeline

SLOT = slot_of()


class Deaf(Jobs):
    """Jobs that nothing can end."""

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        raise TriggerFailedError("no route", FailureCategory.TRANSIENT)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.define(pipeline())
        yield opened


def begun(rig: Rig) -> tuple[Run, dict[str, Any]]:
    """Begin a run as the lifecycle does, and return it with what its calls carry."""
    lock = rig.call(SLOT, action="acquireLock", executionName="e1")
    found = rig.call(SLOT, action="resolvePipeline", executionName="e1", lockToken=lock["lockToken"], cause="sensor")
    return rig.stores.runs.get(found["runId"]), {"runId": found["runId"], "lockToken": lock["lockToken"]}


def call_of(**fields: Any) -> Call:
    return read_call({**named(SLOT), **fields})


def trigger(rig: Rig, carried: dict[str, Any]) -> dict[str, Any]:
    return rig.call(SLOT, mode="trigger", **carried)


def test_trigger__called_again__finds_the_job_and_starts_no_second(rig: Rig) -> None:
    _, carried = begun(rig)

    first, second = trigger(rig, carried), trigger(rig, carried)

    assert first["status"] == second["status"] == "running"
    assert first["metadata"] == second["metadata"]
    assert len(rig.jobs.orders) == 1


def job_control(rig: Rig, stores: RunStores) -> JobControl:
    pipelines = rig.pipelines
    baselines = RunBaselines(rig.store, pipelines.facts, rig.event_writer, rig.clock)
    completion = RunCompletion(stores, rig.event_writer, rig.clock, baselines)
    return JobControl(
        stores,
        rig.reader,
        pipelines.trigger,
        rig.event_writer,
        rig.clock,
        pipelines.waiters,
        completion,
        pipelines.callback_tokens,
    )


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_trigger__store_that_fails_after_the_start__starts_under_the_same_key(rig: Rig, is_done: bool) -> None:
    run, carried = begun(rig)
    trigger_moved = rig.stores.runs.move(run, RunStatus.TRIGGERING)
    store = answer_lost(rig.store, "transact") if is_done else failing(rig.store, "transact", StoreBusyError("busy"))
    other = job_control(rig, replace(rig.stores, runs=Runs(store, rig.env.clock, rig.ids)))

    with pytest.raises((StoreBusyError, OutcomeUnknownError)):
        other.trigger(call_of(mode="trigger", **carried))
    answer = trigger(rig, carried)

    assert answer["status"] == "running"
    assert {order.key for order in rig.jobs.orders} == {trigger_moved.run_id}
    assert rig.run(SLOT).status is RunStatus.RUNNING


def test_trigger__lock_that_was_lost__starts_nothing(rig: Rig) -> None:
    _, carried = begun(rig)
    rig.call(SLOT, action="releaseLock", **carried)
    rig.call(SLOT, action="acquireLock", executionName="e2")

    with pytest.raises(StaleClaimError):
        trigger(rig, carried)

    assert rig.jobs.orders == []


def test_trigger__run_that_is_cancelled__starts_nothing(rig: Rig) -> None:
    run, carried = begun(rig)
    rig.pipelines.jobs.cancel(run.run_id, by="ana", reason="no")

    assert trigger(rig, carried)["status"] == "cancelled"
    assert rig.jobs.orders == []


def test_trigger__run_that_has_failed__starts_nothing_and_is_not_called_running(rig: Rig) -> None:
    run, carried = begun(rig)
    rig.stores.runs.move(run, RunStatus.FAILED, reason="left open")

    assert trigger(rig, carried)["status"] not in ("running", "completed")
    assert rig.jobs.orders == []


def test_trigger__that_fails_for_a_while__is_noted_and_raised(rig: Rig) -> None:
    run, carried = begun(rig)
    rig.jobs.start_errors.append(TriggerFailedError("429", FailureCategory.TRANSIENT))

    with pytest.raises(TriggerFailedError, match="429"):
        trigger(rig, carried)

    noted = rig.stores.runs.get(run.run_id)
    assert (noted.status, noted.event) == (RunStatus.TRIGGERING, JobEvent.INFRA_TRIGGER_FAILURE)
    assert rig.event_names("silver", EventName.TRIGGER_FAILED) == ["TRIGGER_FAILED"]


def test_trigger__success_after_failures__takes_back_what_they_left(rig: Rig) -> None:
    _, carried = begun(rig)
    rig.jobs.start_errors.append(TriggerFailedError("429", FailureCategory.TRANSIENT))
    with pytest.raises(TriggerFailedError):
        trigger(rig, carried)

    trigger(rig, carried)

    # bug 31: an earlier failure to start is not what the job is.
    assert "event" not in rig.call(SLOT, mode="check-job", **carried)


@pytest.mark.parametrize(
    ("category", "event"),
    [
        (FailureCategory.TRANSIENT, "fail"),
        (FailureCategory.PERMANENT, "fail"),
        (FailureCategory.TIMEOUT, "timeout"),
    ],
)
def test_check_job__that_failed__says_how_and_keeps_why(rig: Rig, category: FailureCategory, event: str) -> None:
    run, carried = begun(rig)
    trigger(rig, carried)
    rig.jobs.fail(category=category, reason="out of memory")

    assert rig.call(SLOT, mode="check-job", **carried)["event"] == event
    found = rig.stores.runs.get(run.run_id)
    assert (found.category, found.reason) == (category, "out of memory")


@pytest.mark.parametrize(
    "event",
    [None, JobEvent.FAIL, JobEvent.TIMEOUT, JobEvent.JOB_POLL_EXHAUSTED, JobEvent.INFRA_TRIGGER_EXHAUSTED],
)
def test_check_job__run_that_has_ended__is_an_end_to_the_lifecycle_too(rig: Rig, event: JobEvent | None) -> None:
    # Whatever ended it, the poll must not go on: nothing is left that would end it.
    run, carried = begun(rig)
    trigger(rig, carried)
    rig.stores.runs.move(rig.stores.runs.get(run.run_id), RunStatus.FAILED, event=event, reason="taken over")

    assert rig.call(SLOT, mode="check-job", **carried)["event"] in ("fail", "timeout", "cancelled")
    assert rig.jobs.polls == []


def test_check_job__word_of_the_job_itself__beats_a_poll(rig: Rig) -> None:
    run, carried = begun(rig)
    trigger(rig, carried)
    rig.pipelines.jobs.complete(run.run_id, is_success=True)

    assert rig.call(SLOT, mode="check-job", **carried)["event"] == "success"
    assert rig.jobs.polls == []


def test_check_job__job_that_takes_long__is_looked_at_ever_more_rarely_and_not_after_the_window(rig: Rig) -> None:
    rig.define(pipeline(trigger=TriggerSpec(type="command", config={}, poll_window=Seconds(10_000))))
    _, carried = begun(rig)
    trigger(rig, carried)
    waits = []
    elapsed = 0
    while elapsed < 10_000:
        answer = rig.call(SLOT, mode="check-job", **carried)
        elapsed, wait = cast("int", answer["elapsedSeconds"]), cast("int", answer["waitSeconds"])
        waits.append(wait)
        rig.env.clock.advance(wait)

    assert waits[0] == 30
    assert max(waits) == JOB_CHECK_SECONDS_MAX
    assert elapsed == 10_000
    assert len(waits) < 70


def test_check_job__wall_clock_set_back__time_does_not_run_backwards(rig: Rig) -> None:
    _, carried = begun(rig)
    trigger(rig, carried)
    rig.env.clock.step(-3_600.0)
    answer = rig.call(SLOT, mode="check-job", **carried)
    assert answer["elapsedSeconds"] == 0
    assert answer["waitSeconds"] == 30


def test_complete__run_that_is_not_there__says_so(rig: Rig) -> None:
    with pytest.raises(NotFoundError):
        rig.pipelines.jobs.complete("run_none", is_success=True)


def test_complete__run_that_has_ended__changes_nothing(rig: Rig) -> None:
    run, carried = begun(rig)
    trigger(rig, carried)
    rig.call(SLOT, action="logResult", status="FAILED", failureCategory="PERMANENT", **carried)
    before = rig.stores.runs.get(run.run_id)

    assert rig.pipelines.jobs.complete(run.run_id, is_success=True) == before
    assert rig.stores.runs.get(run.run_id) == before


def test_cancel__run_that_has_ended__is_refused(rig: Rig) -> None:
    run, carried = begun(rig)
    trigger(rig, carried)
    rig.call(SLOT, action="logResult", status="COMPLETED", **carried)

    with pytest.raises(IllegalTransitionError):
        rig.pipelines.jobs.cancel(run.run_id, by="ana", reason="no")


def test_job_poll_exhausted__asked_twice__ends_once(rig: Rig) -> None:
    _, carried = begun(rig)
    trigger(rig, carried)

    first = rig.call(SLOT, mode="job-poll-exhausted", **carried)
    second = rig.call(SLOT, mode="job-poll-exhausted", **carried)

    assert first == second
    assert len(rig.stores.job_log.ls(SLOT).entries) == 1
    assert rig.event_names("silver", EventName.JOB_POLL_EXHAUSTED) == ["JOB_POLL_EXHAUSTED"]


def test_job_poll_exhausted__job_that_cannot_be_cancelled__is_reported(rig: Rig) -> None:
    _, carried = begun(rig)
    trigger(rig, carried)

    rig.jobs.__class__ = Deaf
    rig.call(SLOT, mode="job-poll-exhausted", **carried)

    assert rig.run(SLOT).status is RunStatus.FAILED
    assert rig.event_names("silver", EventName.TRIGGER_FAILED) == ["TRIGGER_FAILED"]


def test_order__of_a_run__is_keyed_by_its_id_and_names_its_period(rig: Rig) -> None:
    run, _ = begun(rig)
    order = order_of(run, waiting_pipeline())
    assert order.key == run.run_id
    assert (order.pipeline, order.schedule, order.date) == SLOT


def test_triggering__made_on_a_store_of_its_own__needs_nothing_else(rig: Rig) -> None:
    # What AWS runs is made of the same parts, without an engine around it.
    run, carried = begun(rig)
    other = job_control(rig, rig.stores)
    assert other.trigger(call_of(mode="trigger", **carried))["status"] == "running"
    assert rig.stores.runs.get(run.run_id).status is RunStatus.RUNNING


# Times, attempts and the job log.


def test_trigger__second_attempt__order_has_its_number_and_the_run_id_as_key(rig: Rig) -> None:
    run, carried = begun(rig)
    trigger(rig, carried)
    rig.jobs.fail()
    rig.call(SLOT, mode="check-job", **carried)
    rig.call(SLOT, action="logResult", status="FAILED", **carried)
    again = {**carried, "runId": rig.call(SLOT, action="resolvePipeline", executionName="e1", cause="rerun")["runId"]}
    rig.call(SLOT, mode="trigger", runId=again["runId"])

    assert [(order.attempt, order.key) for order in rig.jobs.orders] == [(1, run.run_id), (2, again["runId"])]


def test_check_job__job_whose_times_are_known__duration_is_that_of_the_job(rig: Rig) -> None:
    # The server was down when the job ended.
    run, carried = begun(rig)
    trigger(rig, carried)
    started_ms = rig.stores.runs.get(run.run_id).started_at_ms
    assert started_ms is not None
    rig.env.clock.advance(7_200)
    rig.jobs.states[run.run_id] = PollResult(JobState.SUCCEEDED, ended_at_ms=started_ms + 180_000)
    rig.call(SLOT, mode="check-job", **carried)
    rig.call(SLOT, action="logResult", status="COMPLETED", **carried)
    done = rig.stores.runs.get(run.run_id)

    assert done.duration_ms == 180_000
    assert rig.events("silver", EventName.JOB_COMPLETED)[0].detail["job_seconds"] == 180


def test_trigger__job_that_is_over_with_its_start__was_running_since_it_was_asked_for(rig: Rig) -> None:
    run, carried = begun(rig)
    rig.jobs.is_sync = True
    rig.jobs.meanwhile = lambda _order: rig.env.clock.advance(5)
    trigger(rig, carried)
    rig.call(SLOT, action="logResult", status="COMPLETED", **carried)
    done = rig.stores.runs.get(run.run_id)
    running = next(each for each in done.transitions if each.status is RunStatus.RUNNING)

    assert done.duration_ms == 5_000
    assert (running.at_ms, done.ended_at_ms) == (done.triggered_at_ms, running.at_ms + 5_000)


@pytest.mark.parametrize("was_started", [False, True])
def test_trigger__that_fails_for_good__is_in_the_job_log_once(rig: Rig, was_started: bool) -> None:
    _, carried = begun(rig)
    rig.jobs.start_errors.append(TriggerFailedError("no", FailureCategory.PERMANENT, was_started=was_started))
    trigger(rig, carried)
    rig.call(SLOT, action="logResult", status="FAILED", **carried)

    assert len(rig.stores.job_log.ls(SLOT).entries) == 1


def test_log_result__success__has_no_failure_category(rig: Rig) -> None:
    _, carried = begun(rig)
    trigger(rig, carried)
    rig.call(SLOT, action="logResult", status="COMPLETED", **carried)

    assert not rig.events("silver", EventName.JOB_COMPLETED)[0].detail.get("category")
    assert [entry.category for entry in rig.stores.job_log.ls(SLOT).entries] == [None]


def test_trigger_exhausted__error_of_the_trigger__is_a_sentence(rig: Rig) -> None:
    run, carried = begun(rig)
    trigger(rig, carried)
    cause = '{"errorMessage": "glue: 429 Too Many Requests", "errorType": "TriggerFailedError"}'
    error = {"Error": "TriggerFailedError", "Cause": cause}
    rig.call(SLOT, mode="trigger-exhausted", error=error, **carried)

    reason = "the job could not be started: glue: 429 Too Many Requests"
    assert rig.stores.runs.get(run.run_id).reason == reason
