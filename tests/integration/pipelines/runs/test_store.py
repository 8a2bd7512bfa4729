"""Runs, their copies and the logs of their periods change together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import (
    AlreadyExistsError,
    ConflictError,
    IllegalTransitionError,
    NotFoundError,
    StaleClaimError,
    VersionConflictError,
)
from headgate.pipelines.definition.model import RetryPolicy
from headgate.pipelines.enums import TRANSITIONS, Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.rows import HISTORY_MAX, Run, RunLog, Slot, run_of
from headgate.pipelines.runs.run_log import updated
from headgate.pipelines.runs.store import RunStart
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check, Put, Write
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, HOUR, SLOT, Rig, at_once, opened_rig

NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())
DAY = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _copy(rig: Rig, run: Run) -> Run:
    item = rig.item(f"PIPELINE#{run.pipeline_id}", f"RUN#{run.run_id}")
    assert item is not None
    return run_of(item)


def _start(rig: Rig, execution: str = "exec-1", **more: Any) -> RunStart:
    lock = rig.lock(execution)
    return RunStart(slot=SLOT, cause=Cause.SENSOR, execution=execution, lock_token=lock.token, **more)


# Beginning.


def test_create__the_first_attempt__is_pending_with_a_copy_and_a_log(rig: Rig) -> None:
    run = rig.runs.create(_start(rig, by="ann", note="please", definition_version=7), also=[EVENT])

    assert run.run_id.startswith("run_")
    assert (run.status, run.version, run.attempt, run.definition_version) == (RunStatus.PENDING, 1, 1, 7)
    assert rig.runs.get(run.run_id) == _copy(rig, run) == run
    log = rig.log()
    assert (log.status, log.attempts, log.run_id, log.by) == (RunStatus.PENDING, 1, run.run_id, "ann")
    assert [each.run_id for each in log.history] == [run.run_id]
    assert rig.is_notified()


def test_create__again_under_the_same_hold__is_the_same_attempt(rig: Rig) -> None:  # bug 39
    start = _start(rig)
    run = rig.runs.create(start)
    received: list[Run] = []

    def event(begun: Run, _log: RunLog) -> list[Write]:
        received.append(begun)
        return []

    assert rig.runs.create(start, also=event) == run
    assert rig.log().attempts == 1
    assert received == []


def test_create__again_after_the_run_was_cancelled__does_not_begin_another(rig: Rig) -> None:
    start = _start(rig)
    cancelled = rig.runs.move(rig.runs.create(start), RunStatus.CANCELLED)

    assert rig.runs.create(start) == cancelled


def test_create__by_many_at_once_under_one_hold__is_one_run(rig: Rig) -> None:  # bug 39
    start = _start(rig)

    outcomes = at_once(6, lambda _: rig.runs.create(start))

    assert len({each.run_id for each in outcomes if isinstance(each, Run)}) == 1
    assert [each for each in outcomes if not isinstance(each, Run)] == []
    assert rig.log().attempts == 1
    assert len(rig.runs.ls("orders").runs) == 1


def test_create__with_an_id_of_its_own__uses_it_once(rig: Rig) -> None:
    first = rig.runs.create(RunStart(slot=SLOT, cause=Cause.BACKFILL, run_id="run_given"))

    assert first.run_id == "run_given"
    assert rig.runs.create(RunStart(slot=SLOT, cause=Cause.BACKFILL, run_id="run_given")) == first
    with pytest.raises(AlreadyExistsError, match="2026-03-03"):
        rig.runs.create(RunStart(slot=SLOT._replace(date="2026-03-04"), cause=Cause.BACKFILL, run_id="run_given"))


def test_create__the_lock_was_lost__is_refused_and_writes_nothing(rig: Rig) -> None:  # bugs 21, 22
    start = _start(rig)
    rig.clock.advance(HOUR + 1)
    rig.lock("exec-2")

    with pytest.raises(StaleClaimError, match="exec-2"):
        rig.runs.create(start, also=[EVENT])

    assert rig.runs.log(SLOT) is None
    assert not rig.is_notified()


def test_create__a_run_was_left_open_by_one_whose_lock_ran_out__ends_that_one_with_it(rig: Rig) -> None:  # D28
    left = rig.runs.move(rig.begin("exec-1"), RunStatus.TRIGGERING)
    rig.clock.advance(HOUR + 1)

    run = rig.begin("exec-2")

    ended = rig.runs.get(left.run_id)
    assert (ended.status, ended.category) == (RunStatus.FAILED, FailureCategory.TIMEOUT)
    assert run.run_id in ended.reason
    assert _copy(rig, ended) == ended
    log = rig.log()
    assert (log.run_id, log.status, log.attempts) == (run.run_id, RunStatus.PENDING, 2)
    assert [each.status for each in log.history] == [RunStatus.FAILED, RunStatus.PENDING]


def test_create__the_last_run_was_still_watched__leaves_it_completed(rig: Rig) -> None:
    run = rig.begin("exec-1")
    for status in (RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED_MONITORING):
        run = rig.runs.move(run, status)
    rig.clock.advance(HOUR + 1)

    rig.begin("exec-2", cause=Cause.RERUN)

    assert rig.runs.get(run.run_id).status is RunStatus.COMPLETED
    assert rig.log().succeeded_run_id == run.run_id


def test_create__without_a_lock_while_a_run_is_open__is_refused(rig: Rig) -> None:
    run = rig.begin()

    with pytest.raises(AlreadyExistsError, match=run.run_id):
        rig.runs.create(RunStart(slot=SLOT, cause=Cause.MANUAL))


def test_create__what_comes_with_it_is_refused__begins_nothing(rig: Rig) -> None:
    with pytest.raises(ConflictError):
        rig.runs.create(_start(rig), also=[NEVER])

    assert rig.runs.log(SLOT) is None
    assert rig.runs.ls("orders").runs == []


def test_create__what_comes_with_it__sees_the_run_and_the_log_as_they_will_stand(rig: Rig) -> None:
    rig.fail("exec-1")

    def event(run: Run, log: RunLog) -> list[Write]:
        return [Put(PIPELINES, {**EVENT.item, "run_id": run.run_id, "attempt": log.attempts})]

    run = rig.runs.create(_start(rig, "exec-2"), also=event)

    events = rig.item("PIPELINE#orders", "EVENT#1#e1")
    assert events is not None
    assert (events["run_id"], events["attempt"]) == (run.run_id, 2)


# Moving.


def test_move__through_its_life__keeps_truth_copy_and_log_alike(rig: Rig) -> None:  # bug 28
    run = rig.begin()
    for number, status in enumerate((RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED), start=2):
        rig.clock.advance(10)
        run = rig.runs.move(run, status)

        assert run.version == number
        assert rig.runs.get(run.run_id) == _copy(rig, run) == run
        assert rig.log().status is status

    assert run.duration_ms == 10_000
    assert [each.status for each in run.transitions] == [
        RunStatus.PENDING, RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED,
    ]  # fmt: skip
    log = rig.log()
    assert (log.succeeded_run_id, log.succeeded_at_ms) == (run.run_id, rig.now_ms)
    assert log.attempts == 1


@pytest.mark.parametrize(
    ("status", "to"), [(status, to) for status in RunStatus for to in RunStatus if to not in TRANSITIONS[status]]
)
def test_move__where_it_cannot_go__is_refused(rig: Rig, status: RunStatus, to: RunStatus) -> None:
    run = rig.begin()
    for step in _way_to(status):
        run = rig.runs.move(run, step)

    with pytest.raises(IllegalTransitionError, match=f"{status} cannot become {to}") as refused:
        rig.runs.move(run, to, also=[EVENT])

    assert refused.value.current is not None
    assert rig.runs.get(run.run_id) == run
    assert not rig.is_notified()


def _way_to(status: RunStatus) -> list[RunStatus]:
    if status is RunStatus.PENDING:
        return []
    if status in (RunStatus.TRIGGERING, RunStatus.FAILED, RunStatus.CANCELLED):
        return [status]
    return [RunStatus.TRIGGERING, status]


def test_move__by_many_at_once__is_won_by_one_and_the_others_get_the_row(rig: Rig) -> None:
    run = rig.begin()
    ways = [RunStatus.TRIGGERING, RunStatus.FAILED, RunStatus.CANCELLED] * 2

    outcomes = at_once(6, lambda number: rig.runs.move(run, ways[number]))

    (winner,) = [each for each in outcomes if isinstance(each, Run)]
    losers = [each for each in outcomes if isinstance(each, VersionConflictError)]
    assert len(losers) == 5
    for each in losers:
        assert each.current is not None
        assert run_of(each.current) == winner
    assert rig.runs.get(run.run_id) == winner
    assert rig.log().status is winner.status


def test_move__the_event_of_a_lost_race__is_not_written(rig: Rig) -> None:
    run = rig.begin()
    rig.runs.move(run, RunStatus.TRIGGERING)

    with pytest.raises(VersionConflictError, match="TRIGGERING at version 2"):
        rig.runs.move(run, RunStatus.CANCELLED, also=[EVENT])

    assert not rig.is_notified()


def test_move__the_log_changes_meanwhile_for_other_reasons__goes_through(rig: Rig) -> None:
    run = rig.begin()

    def meddle(_run: Run, _log: RunLog) -> list[Write]:
        # Someone holds the period between our reading of its log and our writing.
        if rig.log().hold is None:
            rig.directives.hold(SLOT, by="ann", reason="audit")
        return [EVENT]

    moved = rig.runs.move(run, RunStatus.TRIGGERING, also=meddle)

    log = rig.log()
    assert (log.status, log.hold is not None) == (RunStatus.TRIGGERING, True)
    assert rig.runs.get(run.run_id) == moved
    assert rig.is_notified()


def test_move__under_a_lock_that_was_lost__is_refused(rig: Rig) -> None:  # bug 21
    run = rig.begin("exec-1")
    rig.clock.advance(HOUR + 1)
    rig.lock("exec-2")

    with pytest.raises(StaleClaimError, match="exec-2"):
        rig.runs.move(run, RunStatus.TRIGGERING, lock_token=run.lock_token, also=[EVENT])

    assert rig.runs.get(run.run_id) == run
    assert not rig.is_notified()


def test_move__under_the_lock_it_began_with__goes_through(rig: Rig) -> None:
    run = rig.begin()

    assert rig.runs.move(run, RunStatus.TRIGGERING, lock_token=run.lock_token).version == 2


def test_move__what_comes_with_it_is_refused__changes_nothing(rig: Rig) -> None:
    run = rig.begin()

    with pytest.raises(ConflictError) as refused:
        rig.runs.move(run, RunStatus.TRIGGERING, also=[NEVER])

    assert not isinstance(refused.value, VersionConflictError)
    assert rig.runs.get(run.run_id) == run
    assert rig.log().status is RunStatus.PENDING


def test_move__of_a_run_that_another_has_followed__leaves_the_period_to_that(rig: Rig) -> None:  # D5
    first = rig.begin("exec-1")
    rig.clock.advance(HOUR + 1)
    second = rig.runs.move(rig.begin("exec-2"), RunStatus.TRIGGERING)

    # The first one resumes and reports a failure: it was ended meanwhile, and the report is refused.
    with pytest.raises(VersionConflictError):
        rig.runs.move(first, RunStatus.FAILED)

    log = rig.log()
    assert (log.status, log.run_id) == (RunStatus.TRIGGERING, second.run_id)


def test_move__of_a_run_that_was_watched__ended_when_its_job_did(rig: Rig) -> None:
    run = rig.begin()
    for status in (RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED_MONITORING):
        rig.clock.advance(10)
        run = rig.runs.move(run, status)
    rig.clock.advance(HOUR)

    over = rig.runs.move(run, RunStatus.COMPLETED)

    assert (over.ended_at_ms, over.duration_ms) == (run.ended_at_ms, 10_000)
    assert rig.log().succeeded_at_ms == run.ended_at_ms


def test_followed__by_a_run_that_another_has_followed__changes_only_its_line(rig: Rig) -> None:  # D5
    first = rig.begin("exec-1")
    rig.clock.advance(HOUR + 1)
    second = rig.begin("exec-2")
    before = rig.log()

    after = updated(before, replace(first, status=RunStatus.COMPLETED), rig.now_ms)

    assert (after.status, after.run_id, after.succeeded_run_id) == (RunStatus.PENDING, second.run_id, "")
    assert [line.status for line in after.history] == [RunStatus.COMPLETED, RunStatus.PENDING]


def test_change__of_a_run__keeps_its_status_and_moves_its_version(rig: Rig) -> None:
    run = rig.begin()

    changed = rig.runs.change(run, job_id="jr_1", job={"cluster": "c"})

    assert (changed.status, changed.version, changed.job_id) == (RunStatus.PENDING, 2, "jr_1")
    assert rig.runs.get(run.run_id) == _copy(rig, run) == changed
    assert changed.transitions == run.transitions
    with pytest.raises(VersionConflictError):
        rig.runs.change(run, job_id="jr_2")


# Attempts.


def test_attempts__of_a_period__grow_with_each_run_and_by_nothing_else(rig: Rig) -> None:  # bug 39
    run = rig.begin("exec-1")
    run = rig.runs.change(run, evaluation_id="e1")
    rig.finish(run, RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.FAILED, reason="oom")
    assert rig.log().attempts == 1

    rig.finish(rig.begin("exec-1"), RunStatus.TRIGGERING, RunStatus.FAILED, event=JobEvent.FAIL)

    log = rig.log()
    assert log.attempts == 2
    assert [(each.number, each.status, each.reason) for each in log.history] == [
        (1, RunStatus.FAILED, "oom"),
        (2, RunStatus.FAILED, ""),
    ]
    assert log.event is JobEvent.FAIL


def test_attempts__more_than_are_reported_one_by_one__are_all_counted(rig: Rig) -> None:
    for number in range(HISTORY_MAX + 3):
        rig.fail(f"exec-{number}")

    log = rig.log()
    assert log.attempts == log.failures == HISTORY_MAX + 3
    assert len(log.history) == HISTORY_MAX
    assert log.history[-1].number == HISTORY_MAX + 3


def test_failures__of_each_kind__are_counted_apart(rig: Rig) -> None:  # bug 44
    rig.fail("exec-1", changes={"category": FailureCategory.TRANSIENT})
    rig.fail("exec-1", changes={"category": FailureCategory.PERMANENT})
    rig.fail("exec-1", changes={"category": FailureCategory.TIMEOUT})

    log = rig.log()
    assert (log.failures, log.permanent_failures) == (2, 1)
    assert (log.category, log.attempts) == (FailureCategory.TIMEOUT, 3)


@pytest.mark.parametrize(
    ("execution", "cause", "failures"),
    [
        ("exec-1", Cause.RERUN, 2),
        ("exec-2", Cause.RERUN, 1),
        ("exec-2", Cause.MANUAL, 1),
        ("exec-2", Cause.REPLAY, 1),
        ("exec-2", Cause.BACKFILL, 1),
        ("exec-2", Cause.RECOVERY, 2),
        ("exec-2", Cause.SENSOR, 2),
    ],
)
def test_failures__before_someone_asked_anew__are_not_held_against_it(  # bug 43
    rig: Rig, execution: str, cause: Cause, failures: int
) -> None:
    rig.fail("exec-1", cause=Cause.RERUN)
    rig.fail(execution, cause=cause)

    assert rig.log().failures == failures


def test_failures__before_a_success__are_forgotten(rig: Rig) -> None:
    rig.fail("exec-1")
    rig.succeed("exec-1")
    rig.fail("exec-2", cause=Cause.SENSOR)

    log = rig.log()
    assert log.failures == 1
    assert log.succeeded_run_id


def test_log__of_a_success_while_a_rerun_is_under_way__still_reports_it(rig: Rig) -> None:
    done = rig.succeed("exec-1")
    rig.begin("exec-2", cause=Cause.RERUN)

    log = rig.log()
    assert (log.status, log.succeeded_run_id) == (RunStatus.PENDING, done.run_id)


def test_log__of_a_period_long_over__is_still_there(rig: Rig) -> None:  # bug 19
    done = rig.succeed()
    rig.clock.advance(400 * DAY)
    rig.store.sweep()

    assert rig.log().status is RunStatus.COMPLETED
    assert rig.runs.get(done.run_id).status is RunStatus.COMPLETED


# Closing.


def test_close__what_no_one_began__fails_it_once(rig: Rig) -> None:  # bug 20
    closed = rig.runs.close(SLOT, "its sensor did not come by 08:00", also=[EVENT])

    assert closed is not None
    assert (rig.log(), rig.log().status, rig.log().attempts) == (closed, RunStatus.FAILED, 0)
    assert rig.is_notified()
    assert rig.runs.close(SLOT, "again") is None


def test_close__against_a_run_that_begins__is_won_by_one(rig: Rig) -> None:  # bug 20
    sensor = Applicant(cause=Cause.SENSOR, execution="exec-1")
    for day in range(10, 30):
        slot = SLOT._replace(date=f"2026-04-{day}")
        lock = rig.lock("exec-1", slot)
        start = RunStart(slot=slot, cause=Cause.SENSOR, execution="exec-1", lock_token=lock.token)

        def race(number: int, slot: Slot = slot, start: RunStart = start) -> Run | RunLog | None:
            if number:
                return rig.runs.close(slot, "late")
            return rig.runs.create(start, admits=lambda found: admit(found, sensor, RetryPolicy()))

        outcomes = at_once(2, race)

        log = rig.log(slot)
        begun = [each for each in outcomes if isinstance(each, Run)]
        closed = [each for each in outcomes if isinstance(each, RunLog)]
        assert len(begun) + len(closed) == 1
        assert (log.attempts, log.status) == ((1, RunStatus.PENDING) if begun else (0, RunStatus.FAILED))


def test_create__the_period_was_skipped_since_it_was_looked_at__begins_nothing(rig: Rig) -> None:
    start = _start(rig)
    rig.directives.skip(SLOT, by="ann", reason="holiday")

    with pytest.raises(IllegalTransitionError, match="ann skipped it: holiday"):
        rig.runs.create(start, admits=lambda log: admit(log, Applicant(cause=Cause.SENSOR), RetryPolicy()))

    assert rig.runs.ls("orders").runs == []


def test_close__where_a_run_was_begun__leaves_it_alone(rig: Rig) -> None:
    rig.begin()

    assert rig.runs.close(SLOT, "late", also=[EVENT]) is None
    assert rig.log().status is RunStatus.PENDING
    assert not rig.is_notified()


# Reading.


def test_ls__more_runs_than_a_page__are_all_found_latest_first(rig: Rig) -> None:  # bug 75
    for number in range(7):
        rig.clock.advance(1)
        rig.begin(slot=SLOT._replace(date=f"2026-03-{number + 1:02}"))
    rig.begin(slot=Slot("other", "daily", "2026-03-01"))

    found: list[str] = []
    cursor: str | None = None
    while True:
        page = rig.runs.ls("orders", limit=3, cursor=cursor)
        found += [run.date for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break

    assert found == [f"2026-03-{number:02}" for number in range(7, 0, -1)]


def test_logs__some_dates__are_those_that_begin_so(rig: Rig) -> None:
    for date in ("2026-02-28", "2026-03-01T07", "2026-03-01T08"):
        rig.begin(slot=SLOT._replace(date=date))

    assert [log.date for log in rig.runs.logs("orders").logs] == ["2026-03-01T08", "2026-03-01T07", "2026-02-28"]
    assert [log.date for log in rig.runs.logs("orders", dates="2026-03-01").logs] == ["2026-03-01T08", "2026-03-01T07"]


def test_get__no_such_run__says_so(rig: Rig) -> None:
    assert rig.runs.find("run_none") is None
    with pytest.raises(NotFoundError, match="run_none"):
        rig.runs.get("run_none")
