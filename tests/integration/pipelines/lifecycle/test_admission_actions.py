"""What lets a period in: call by call, and what is done by others between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.pipelines.definition.model import Budgets, Exclusions, Json, Schedule, SensorTrigger
from headgate.pipelines.enums import Cause, FailureCategory, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.locks import lifetime_seconds
from headgate.pipelines.runs.rerun_rows import RerunStatus
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of

SLOT = slot_of()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.define(pipeline())
        yield opened


def acquire(rig: Rig, execution: str = "e1") -> str:
    answer = rig.call(SLOT, action="acquireLock", executionName=execution)
    return str(answer["lockToken"])


def check(rig: Rig, token: str, execution: str = "e1", cause: Cause = Cause.SENSOR, **more: Json) -> dict[str, Any]:
    return rig.call(SLOT, action="checkRunLog", executionName=execution, lockToken=token, cause=cause.value, **more)


def resolve(rig: Rig, token: str, execution: str = "e1", cause: Cause = Cause.SENSOR, **more: Json) -> dict[str, Any]:
    return rig.call(SLOT, action="resolvePipeline", executionName=execution, lockToken=token, cause=cause.value, **more)


def failed(rig: Rig, execution: str = "e1", category: FailureCategory = FailureCategory.TRANSIENT) -> None:
    """Have the period fail once."""
    token = acquire(rig, execution)
    run_id = resolve(rig, token, execution)["runId"]
    fields = {"status": "FAILED", "failureCategory": category.value}
    rig.call(SLOT, action="logResult", runId=run_id, lockToken=token, **fields)
    rig.call(SLOT, action="releaseLock", lockToken=token)


# Exclusion.


@pytest.mark.parametrize(
    ("cause", "result"),
    [
        (Cause.SENSOR, "skip"),
        (Cause.CRON, "skip"),
        (Cause.MARKER, "skip"),
        (Cause.UPSTREAM, "skip"),
        (Cause.BACKFILL, "skip"),
        (Cause.MANUAL, "proceed"),
        (Cause.REPLAY, "proceed"),
    ],
)
def test_exclusion__excluded_date__only_who_wants_this_very_period(rig: Rig, cause: Cause, result: str) -> None:
    schedule = Schedule(sensor=SensorTrigger(key="landed"), exclude=Exclusions(dates=(DATE,)))
    rig.define(pipeline(schedules=(schedule,)))
    assert rig.call(SLOT, action="checkExclusion", cause=cause.value)["result"] == result


@pytest.mark.parametrize(
    ("cause", "result"), [(Cause.SENSOR, "skip"), (Cause.BACKFILL, "proceed"), (Cause.MANUAL, "proceed")]
)
def test_exclusion__paused__backfills_and_people_go_on(rig: Rig, cause: Cause, result: str) -> None:
    rig.stores.controls.pause("silver", by="ana", reason="migration")
    answer = rig.call(SLOT, action="checkExclusion", cause=cause.value)
    assert answer["result"] == result
    assert result == "proceed" or "ana" in answer["reason"]


def test_exclusion__breaker_has_opened__is_reported_with_the_reason(rig: Rig) -> None:
    rig.define(pipeline(budgets=Budgets(breaker=1)))
    failed(rig, category=FailureCategory.PERMANENT)
    answer = rig.call(SLOT, action="checkExclusion", cause="sensor")
    assert answer["result"] == "skip"
    (events,) = rig.events("silver", EventName.PIPELINE_EXCLUDED)
    assert "failures in a row" in events.detail["reason"]
    assert rig.event_names("silver", EventName.CIRCUIT_BREAKER_TRIPPED) == ["CIRCUIT_BREAKER_TRIPPED"]


def test_exclusion__pipeline_that_is_gone__skips(rig: Rig) -> None:
    rig.forget("silver")
    assert rig.call(SLOT, action="checkExclusion", cause="sensor")["result"] == "skip"


# The lock.


def test_lock__held_by_another__is_not_given(rig: Rig) -> None:
    acquire(rig, "e1")
    answer = rig.call(SLOT, action="acquireLock", executionName="e2")
    assert (answer["result"], answer["lockToken"]) == ("skip", "")
    assert "e1" in answer["reason"]


def test_lock__asked_for_again_by_the_same__is_the_same_hold(rig: Rig) -> None:
    assert acquire(rig) == acquire(rig)


def test_lock__that_has_run_out__is_given_and_the_first_can_do_no_harm(rig: Rig) -> None:
    # bugs 17 and 21: a process that never came back blocks no other for ever; one that does, ends no other hold.
    token = acquire(rig, "e1")
    first = resolve(rig, token, "e1")["runId"]
    rig.env.clock.advance(lifetime_seconds(pipeline()) + 1)

    taken = acquire(rig, "e2")
    second = resolve(rig, taken, "e2")["runId"]
    released = rig.call(SLOT, action="releaseLock", lockToken=token)["released"]

    assert released is False
    assert rig.stores.runs.get(first).status is RunStatus.FAILED
    assert rig.log(SLOT).run_id == second
    assert rig.lock(SLOT) is not None


def test_release__by_the_execution__frees_whatever_it_holds(rig: Rig) -> None:
    acquire(rig, "e1")
    assert rig.call(SLOT, action="releaseLock", executionName="e2")["released"] is False
    assert rig.call(SLOT, action="releaseLock", executionName="e1")["released"] is True
    assert rig.lock(SLOT) is None


# The log.


def test_run_log__nothing_begun__proceeds(rig: Rig) -> None:
    assert check(rig, acquire(rig))["result"] == "proceed"


def test_run_log__done__is_not_done_again_but_by_a_replay(rig: Rig) -> None:
    token = acquire(rig)
    run_id = resolve(rig, token)["runId"]
    rig.call(SLOT, mode="trigger", runId=run_id, lockToken=token)
    rig.call(SLOT, action="logResult", runId=run_id, lockToken=token, status="COMPLETED")

    assert check(rig, token, "e1", Cause.MARKER)["result"] == "skip"
    assert check(rig, token, "e1", Cause.MANUAL)["result"] == "skip"
    assert check(rig, token, "e1", Cause.REPLAY, replay=True)["result"] == "proceed"


def test_run_log__failure_that_may_be_tried_again__own_execution_and_news_proceed(rig: Rig) -> None:
    failed(rig, "e1")
    assert check(rig, acquire(rig, "e1"), "e1")["result"] == "proceed"
    assert check(rig, acquire(rig, "e1"), "e2", Cause.MARKER)["result"] == "proceed"
    assert check(rig, acquire(rig, "e1"), "e2", Cause.CRON)["result"] == "skip"


def test_run_log__skipped_between_the_look_and_the_begin__does_not_begin(rig: Rig) -> None:
    # bug 20: what is decided is decided again in the transaction that begins.
    token = acquire(rig)
    looked = check(rig, token)["result"]
    rig.stores.directives.skip(SLOT, by="ana", reason="no data today")

    assert looked == "proceed"
    assert resolve(rig, token)["result"] != "proceed"
    assert rig.log(SLOT).attempts == 0
    assert rig.log(SLOT).status is RunStatus.CANCELLED


def test_run_log__closed_by_its_deadline_between_the_look_and_the_begin__does_not_begin(rig: Rig) -> None:
    token = acquire(rig)
    assert check(rig, token)["result"] == "proceed"
    rig.stores.runs.close(SLOT, "the deadline has passed")
    assert resolve(rig, token)["result"] != "proceed"


def test_run_log__lock_lost_between_the_look_and_the_begin__does_not_begin(rig: Rig) -> None:
    token = acquire(rig, "e1")
    rig.call(SLOT, action="releaseLock", lockToken=token)
    acquire(rig, "e2")
    assert resolve(rig, token, "e1")["result"] != "proceed"
    assert rig.stores.runs.log(SLOT) is None


def test_resolve__asked_again__is_the_same_run(rig: Rig) -> None:
    # bug 39
    token = acquire(rig)
    assert resolve(rig, token)["runId"] == resolve(rig, token)["runId"]
    assert rig.log(SLOT).attempts == 1


# Reruns.


def test_rerun__accepted_and_charged_together__once(rig: Rig) -> None:
    # bugs 24 and 25, D25
    failed(rig)
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    token = acquire(rig, "e2")

    answers = [check(rig, token, "e2", Cause.RERUN, rerunId=rerun.rerun_id)["result"] for _ in range(2)]

    assert answers == ["proceed", "proceed"]
    assert rig.log(SLOT).reruns == {"manual": 1}
    assert rig.event_names("silver", EventName.RERUN_ACCEPTED) == ["RERUN_ACCEPTED"]


def test_rerun__taken_by_another_execution__does_not_proceed(rig: Rig) -> None:
    failed(rig)
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    token = acquire(rig, "e2")
    check(rig, token, "e2", Cause.RERUN, rerunId=rerun.rerun_id)
    assert check(rig, token, "e3", Cause.RERUN, rerunId=rerun.rerun_id)["result"] == "skip"


def test_rerun__lock_that_was_lost__costs_nothing(rig: Rig) -> None:
    failed(rig)
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    token = acquire(rig, "e2")
    rig.call(SLOT, action="releaseLock", lockToken=token)
    acquire(rig, "e3")

    with pytest.raises(Exception, match="no longer holds"):
        check(rig, token, "e2", Cause.RERUN, rerunId=rerun.rerun_id)

    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.REQUESTED
    assert rig.log(SLOT).reruns == {}


def test_release__rerun_that_was_turned_away_by_one_who_began_no_run__is_pursued_again(rig: Rig) -> None:
    # Someone looked at the period, found it done, and let go; the rerun came just then.
    failed(rig, category=FailureCategory.PERMANENT)
    token = acquire(rig, "e2")
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.pump()
    turned_away = rig.stores.reruns.get(rerun.rerun_id).status

    rig.call(SLOT, action="releaseLock", lockToken=token, runId="", executionName="e2")
    rig.pump()

    assert turned_away is RerunStatus.REQUESTED
    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.ACCEPTED


def accepted(rig: Rig, execution: str) -> tuple[str, str]:
    """Have an execution accept a rerun. Return the id of the rerun and the token of the lock."""
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    token = acquire(rig, execution)
    assert check(rig, token, execution, Cause.RERUN, rerunId=rerun.rerun_id)["result"] == "proceed"
    return rerun.rerun_id, token


def ended(rig: Rig, rerun_id: str) -> tuple[RerunStatus, str, list[str]]:
    """Return the status of a rerun, the reason, and the reasons that events about its end name."""
    rerun = rig.stores.reruns.get(rerun_id)
    events = rig.events("silver", EventName.RERUN_COMPLETED)
    named = [str(event.detail["reason"]) for event in events if event.detail["rerun_id"] == rerun_id]
    return rerun.status, rerun.decision, named


def test_rerun__lock_expired_before_its_run_and_another_rerun_accepted__ends_as_failed(rig: Rig) -> None:
    rig.define(pipeline(budgets=Budgets(manual=2)))
    failed(rig)
    first, lost_token = accepted(rig, "e2")
    rig.env.clock.advance(lifetime_seconds(pipeline()) + 1)

    second, token = accepted(rig, "e3")
    late = resolve(rig, lost_token, "e2", Cause.RERUN, rerunId=first)
    proceeds = resolve(rig, token, "e3", Cause.RERUN, rerunId=second)

    reason = f"rerun {second} replaced it"
    assert ended(rig, first) == (RerunStatus.FAILED, reason, [reason])
    assert (late["result"], proceeds["result"]) == ("skip", "proceed")
    assert rig.stores.reruns.get(second).status is RerunStatus.ACCEPTED


def test_rerun__lock_lost_before_its_run__ends_as_failed_with_the_reason(rig: Rig) -> None:
    failed(rig)
    rerun_id, token = accepted(rig, "e2")
    rig.env.clock.advance(lifetime_seconds(pipeline()) + 1)
    acquire(rig, "e3")

    assert resolve(rig, token, "e2", Cause.RERUN, rerunId=rerun_id)["result"] == "skip"

    status, reason, named = ended(rig, rerun_id)
    assert (status, named) == (RerunStatus.FAILED, [reason])
    assert "no longer holds it" in reason


def test_rerun__period_on_hold__ends_as_failed_with_the_reason(rig: Rig) -> None:
    rig.stores.directives.hold(SLOT, by="ana", reason="source is being repaired")
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ben")
    token = acquire(rig, "e2")

    assert check(rig, token, "e2", Cause.RERUN, rerunId=rerun.rerun_id)["result"] == "skip"

    status, reason, named = ended(rig, rerun.rerun_id)
    assert (status, named) == (RerunStatus.FAILED, [reason])
    assert "source is being repaired" in reason


def test_rerun__execution_failed_before_its_run__ends_as_failed_when_the_lock_is_released(rig: Rig) -> None:
    failed(rig)
    rerun_id, _ = accepted(rig, "e2")

    for _ in range(2):
        rig.call(SLOT, action="releaseLock", runId="", executionName="e2")

    status, reason, named = ended(rig, rerun_id)
    assert (status, named) == (RerunStatus.FAILED, [reason])


def test_rerun__lock_taken_by_another_before_its_retry__ends_as_failed(rig: Rig) -> None:
    failed(rig)
    rerun_id, token = accepted(rig, "e2")
    run_id = resolve(rig, token, "e2", Cause.RERUN, rerunId=rerun_id)["runId"]
    fields = {"status": "FAILED", "failureCategory": FailureCategory.TRANSIENT.value}
    retried = rig.call(SLOT, action="logResult", runId=run_id, lockToken=token, **fields)["retryable"]
    rig.call(SLOT, action="releaseLock", runId=run_id, lockToken=token, executionName="e2")
    before = rig.stores.reruns.get(rerun_id).status
    acquire(rig, "e3")

    assert acquire(rig, "e2") == ""

    assert (retried, before) == (True, RerunStatus.ACCEPTED)
    assert ended(rig, rerun_id)[0] is RerunStatus.FAILED


def test_rerun__call_of_its_first_attempt_repeated_during_the_second__stays_accepted(rig: Rig) -> None:
    failed(rig)
    rerun_id, first_token = accepted(rig, "e2")
    run_id = resolve(rig, first_token, "e2", Cause.RERUN, rerunId=rerun_id)["runId"]
    fields = {"status": "FAILED", "failureCategory": FailureCategory.TRANSIENT.value}
    rig.call(SLOT, action="logResult", runId=run_id, lockToken=first_token, **fields)
    rig.call(SLOT, action="releaseLock", runId=run_id, lockToken=first_token, executionName="e2")
    resolve(rig, acquire(rig, "e2"), "e2", Cause.RERUN, rerunId=rerun_id)

    assert resolve(rig, first_token, "e2", Cause.RERUN, rerunId=rerun_id)["result"] == "skip"

    assert rig.stores.reruns.get(rerun_id).status is RerunStatus.ACCEPTED
