"""Periods that are done again: asked for once, judged with the lock in hand, charged to a budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, NotFoundError, StaleClaimError
from headgate.pipelines.definition.model import Budgets, RetryPolicy
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RerunReason, RunStatus
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rerun_decisions import RerunRule, Situation, decide_rerun, newest_update_ms, updated_at_ms
from headgate.pipelines.runs.rerun_rows import Budget, Rerun, RerunStatus, reason_of
from headgate.pipelines.runs.reruns import RerunJudgement
from headgate.pipelines.runs.rows import Run, RunLog
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import ChangeKind, Check, Write
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, HOUR, SLOT, Rig, at_once, opened_rig

DRIFT, LATE, MANUAL = RerunReason.DATA_DRIFT, RerunReason.LATE_DATA, RerunReason.MANUAL
ONE_EACH = Situation(budgets=Budgets(drift=1, manual=1))
NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _accept(rig: Rig, reason: RerunReason = MANUAL, execution: str = "rerun-1", **more: Any) -> RerunJudgement:
    """Ask, take the lock, judge, and let the lock go, as a lifecycle does that finds nothing else to do."""
    rig.clock.advance(1)
    rerun = rig.reruns.request(SLOT, reason, by="ann", **more)
    lock = rig.lock(execution)
    judgement = rig.reruns.judge(rerun.rerun_id, ONE_EACH, execution=execution, lock_token=lock.token)
    rig.unlock(lock)
    return judgement


def _rerun(reason: RerunReason = MANUAL, **more: Any) -> Rerun:
    return Rerun(
        **SLOT._asdict(),
        rerun_id="rerun_1",
        reason=reason,
        status=RerunStatus.REQUESTED,
        version=1,
        requested_at_ms=1,
        **more,
    )


def _log(**more: Any) -> RunLog:
    given: dict[str, Any] = {"status": RunStatus.COMPLETED, "attempts": 1, "run_id": "run_1", **more}
    return RunLog(**SLOT._asdict(), version=1, created_at_ms=0, updated_at_ms=0, **given)


# Deciding.


@pytest.mark.parametrize(
    ("reason", "spent", "budgets", "rule"),
    [
        (DRIFT, {}, Budgets(), RerunRule.ALLOWED),
        (DRIFT, {"drift": 1}, Budgets(), RerunRule.BUDGET_SPENT),
        # Drift and late data share one budget; manual reruns have another.
        (LATE, {"drift": 1}, Budgets(), RerunRule.BUDGET_SPENT),
        (LATE, {"drift": 1}, Budgets(drift=2), RerunRule.ALLOWED),
        (MANUAL, {"drift": 9}, Budgets(), RerunRule.ALLOWED),
        (DRIFT, {"manual": 9}, Budgets(), RerunRule.ALLOWED),
        (MANUAL, {"manual": 1}, Budgets(), RerunRule.BUDGET_SPENT),
        # 0 means none at all.
        (DRIFT, {}, Budgets(drift=0), RerunRule.DISABLED),
        (MANUAL, {}, Budgets(manual=0), RerunRule.DISABLED),
        (MANUAL, {}, Budgets(drift=0), RerunRule.ALLOWED),
    ],
)
def test_decide_rerun__by_what_is_spent__keeps_to_the_budget_of_the_reason(  # bugs 43, 44, 46
    reason: RerunReason, spent: dict[str, int], budgets: Budgets, rule: RerunRule
) -> None:
    assert decide_rerun(_rerun(reason), _log(reruns=spent), Situation(budgets=budgets)).rule is rule


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("data-drift", DRIFT),
        ("late-data", LATE),
        ("Late-Data ", LATE),
        ("manual", MANUAL),
        ("", MANUAL),
        ("fixed upstream bug", MANUAL),
        ("a new reason text", MANUAL),
    ],
)
def test_reason_of__whatever_a_person_writes__is_charged_to_one_manual_budget(text: str, reason: RerunReason) -> None:
    assert reason_of(text) is reason


@pytest.mark.parametrize(
    ("category", "permanent_failures", "failures", "rule"),
    [
        (FailureCategory.TRANSIENT, 0, 2, RerunRule.ALLOWED),
        (FailureCategory.TRANSIENT, 0, 3, RerunRule.BUDGET_SPENT),
        (FailureCategory.PERMANENT, 1, 0, RerunRule.BUDGET_SPENT),
    ],
)
def test_decide_rerun__of_what_failed__keeps_to_the_retry_policy(
    category: FailureCategory, permanent_failures: int, failures: int, rule: RerunRule
) -> None:
    log = _log(status=RunStatus.FAILED, category=category, failures=failures, permanent_failures=permanent_failures)
    situation = Situation(budgets=Budgets(drift=0, manual=0), retry=RetryPolicy(attempts=3))

    assert decide_rerun(_rerun(RerunReason.JOB_FAIL_RETRY), log, situation).rule is rule
    assert decide_rerun(_rerun(RerunReason.JOB_FAIL_RETRY), None, situation).rule is RerunRule.BUDGET_SPENT


@pytest.mark.parametrize(
    ("status", "succeeded_at_ms", "newest_ms", "rule"),
    [
        (RunStatus.COMPLETED, 1_000, 1_001, RerunRule.ALLOWED),
        (RunStatus.COMPLETED, 1_000, 1_000, RerunRule.NOTHING_NEW),
        (RunStatus.COMPLETED, 1_000, 999, RerunRule.NOTHING_NEW),
        # No sensor says: who cannot tell lets it pass.
        (RunStatus.COMPLETED, 1_000, None, RerunRule.ALLOWED),
        # It is asked of a success alone, also if there was one before the failure.
        (RunStatus.FAILED, 1_000, 999, RerunRule.ALLOWED),
        (RunStatus.CANCELLED, None, 999, RerunRule.ALLOWED),
        (RunStatus.COMPLETED, None, 999, RerunRule.ALLOWED),
    ],
)
def test_decide_rerun__after_a_success__asks_for_something_new(
    status: RunStatus, succeeded_at_ms: int | None, newest_ms: int | None, rule: RerunRule
) -> None:
    log = _log(status=status, succeeded_at_ms=succeeded_at_ms)
    situation = Situation(budgets=Budgets(), newest_update_ms=newest_ms)

    assert decide_rerun(_rerun(), log, situation).rule is rule


@pytest.mark.parametrize(
    ("situation", "log", "is_forced", "rule"),
    [
        (Situation(budgets=Budgets(), is_excluded=True), None, False, RerunRule.EXCLUDED),
        (Situation(budgets=Budgets(), is_excluded=True), None, True, RerunRule.FORCED),
        (Situation(budgets=Budgets(manual=0), newest_update_ms=1), _log(succeeded_at_ms=5), True, RerunRule.FORCED),
        (Situation(budgets=Budgets(), is_locked=True), _log(status=RunStatus.RUNNING), False, RerunRule.UNDER_WAY),
        (Situation(budgets=Budgets(), is_locked=True), _log(status=RunStatus.RUNNING), True, RerunRule.UNDER_WAY),
        (
            Situation(budgets=Budgets(), is_locked=True),
            _log(status=RunStatus.COMPLETED_MONITORING),
            False,
            RerunRule.MONITORED,
        ),
        # Left open by an execution whose lock expired: none runs it.
        (Situation(budgets=Budgets()), _log(status=RunStatus.RUNNING), False, RerunRule.ALLOWED),
        (Situation(budgets=Budgets()), None, False, RerunRule.ALLOWED),
    ],
)
def test_decide_rerun__in_other_situations__says_which_rule_decided(
    situation: Situation, log: RunLog | None, is_forced: bool, rule: RerunRule
) -> None:
    decision = decide_rerun(_rerun(is_forced=is_forced, by="ann"), log, situation)

    assert decision.rule is rule
    assert decision.reason
    assert decision.is_accepted == (rule in (RerunRule.ALLOWED, RerunRule.FORCED))
    assert decision.is_rejected == (rule not in (RerunRule.ALLOWED, RerunRule.FORCED, RerunRule.MONITORED))


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        (1_750_000_000, 1_750_000_000_000),
        (1_750_000_000_123, 1_750_000_000_123),
        (1_750_000_000.5, 1_750_000_000_500),
        ("1750000000", 1_750_000_000_000),
        (" 1750000000123 ", 1_750_000_000_123),
        ("2025-06-15T15:06:40Z", 1_750_000_000_000),
        ("2025-06-15T17:06:40+02:00", 1_750_000_000_000),
        ("2025-06-15T15:06:40.250Z", 1_750_000_000_250),
        ("2025-06-15T15:06:40", 1_750_000_000_000),
        ("yesterday", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        (True, None),
        (None, None),
        (-5, None),
        (10**18, None),
        ([1], None),
    ],
)
def test_updated_at_ms__however_it_is_written__is_the_same_moment(given: object, expected_ms: int | None) -> None:
    # bugs 50, D13
    assert updated_at_ms({"updatedAt": given}) == expected_ms
    assert updated_at_ms({"updated_at": given}) == expected_ms
    assert updated_at_ms({"data": {"updatedAt": given}}) == expected_ms


def test_newest_update_ms__of_some_sensors__is_that_of_the_latest_that_says() -> None:
    sensors: list[dict[str, Any]] = [
        {"updatedAt": 100},
        {"n": 1},
        {"updatedAt": "1970-01-01T00:05:00Z"},
        {"updatedAt": "?"},
    ]

    assert newest_update_ms(sensors) == 300_000
    assert newest_update_ms([{"n": 1}]) is None
    assert newest_update_ms([]) is None


# Asking.


def test_request__the_first__is_kept_as_truth_copy_and_request(rig: Rig) -> None:
    rerun = rig.reruns.request(SLOT, DRIFT, by="router", note="count 10 to 12", detail={"delta": 2}, also=[EVENT])

    assert rig.reruns.get(rerun.rerun_id) == rerun
    assert rig.reruns.ls("orders").reruns == rig.reruns.ls().reruns == [rerun]
    item = rig.item("PIPELINE#orders", "RERUN_REQUEST#daily#2026-03-03")
    assert item is not None
    assert item["rerun_id"] == rerun.rerun_id
    assert rig.item(f"RERUN#{rerun.rerun_id}", "STATE") is not None
    assert rig.is_notified()


def test_request__while_one_waits__is_that_one(rig: Rig) -> None:  # bug 61
    first = rig.reruns.request(SLOT, DRIFT)

    assert rig.reruns.request(SLOT, DRIFT, also=[EVENT]) == first
    assert rig.reruns.request(SLOT, MANUAL, by="ann") == first
    assert rig.reruns.pending(SLOT) == first
    assert not rig.is_notified()


def test_request__by_many_sensors_at_once__is_one_rerun(rig: Rig) -> None:  # bug 61
    outcomes = at_once(6, lambda number: rig.reruns.request(SLOT, DRIFT, note=f"sensor {number}"))

    assert len({each.rerun_id for each in outcomes if isinstance(each, Rerun)}) == 1
    assert len(rig.reruns.ls("orders").reruns) == 1


def test_request__once_the_last_was_judged__is_a_new_one(rig: Rig) -> None:
    first = _accept(rig).rerun
    second = rig.reruns.request(SLOT, MANUAL, by="ann")

    assert second.rerun_id != first.rerun_id
    assert rig.reruns.pending(SLOT) == second
    assert [each.rerun_id for each in rig.reruns.ls("orders").reruns] == [second.rerun_id, first.rerun_id]


def test_request__what_comes_with_it_is_refused__asks_for_nothing(rig: Rig) -> None:
    with pytest.raises(ConflictError):
        rig.reruns.request(SLOT, MANUAL, also=[NEVER])

    assert rig.reruns.pending(SLOT) is None
    assert rig.reruns.ls("orders").reruns == []


def test_adopt__a_row_that_others_put__is_one_rerun_however_often_it_is_reported(rig: Rig) -> None:  # D11
    item = {
        "PK": "PIPELINE#orders",
        "SK": "RERUN_REQUEST#daily#2026-03-03",
        "reason": "we fixed the feed",
        "requestedAt": "2026-03-04T08:00:00Z",
    }
    first = rig.reruns.adopt(SLOT, item, also=[EVENT])

    assert (first.reason, first.note, first.budget) == (MANUAL, "we fixed the feed", Budget.MANUAL)
    assert rig.reruns.adopt(SLOT, item) == first
    assert len(rig.reruns.ls("orders").reruns) == 1
    later = rig.reruns.adopt(SLOT, {**item, "requestedAt": "2026-03-05T08:00:00Z"})
    assert later.rerun_id != first.rerun_id


def test_adopt__a_row_of_our_own__is_the_rerun_that_it_names(rig: Rig) -> None:
    rerun = rig.reruns.request(SLOT, LATE)
    item = rig.item("PIPELINE#orders", "RERUN_REQUEST#daily#2026-03-03")
    assert item is not None

    assert rig.reruns.adopt(SLOT, item) == rerun


def test_pending__the_request_was_deleted__asks_for_nothing(rig: Rig) -> None:  # D12
    rig.reruns.request(SLOT, MANUAL)
    rig.store.delete(PIPELINES, Key("PIPELINE#orders", "RERUN_REQUEST#daily#2026-03-03"))

    (removed,) = [each for each in rig.store.changes(PIPELINES, "r").changes if each.kind is ChangeKind.REMOVE]
    # The event names the earlier run; there is no row to adopt.
    assert removed.new is None
    assert rig.reruns.pending(SLOT) is None
    assert rig.runs.log(SLOT) is None


# Judging.


def test_judge__with_the_lock__accepts_charges_and_notes_in_one(rig: Rig) -> None:
    rig.succeed("exec-1")
    rerun = rig.reruns.request(SLOT, DRIFT)
    lock = rig.lock("rerun-1")

    judgement = rig.reruns.judge(
        rerun.rerun_id, ONE_EACH, execution="rerun-1", lock_token=lock.token, also=lambda _rerun, _log: [EVENT]
    )

    assert judgement.proceeds
    assert judgement.rerun.status is RerunStatus.ACCEPTED
    assert rig.reruns.get(rerun.rerun_id) == judgement.rerun == rig.reruns.ls("orders").reruns[0]
    log = rig.log()
    assert (log.reruns, log.rerun_id, log.is_rerun_due) == ({"drift": 1}, rerun.rerun_id, True)
    entry = rig.job_log.latest(SLOT)
    assert entry is not None
    assert entry.event is JobEvent.RERUN_ACCEPTED
    assert rig.is_notified()


def test_judge__without_the_lock__burns_no_budget(rig: Rig) -> None:  # bugs 24, 25
    rerun = rig.reruns.request(SLOT, MANUAL)

    judgement = rig.reruns.judge(rerun.rerun_id, ONE_EACH, execution="rerun-1", also=[EVENT])

    assert not judgement.proceeds
    assert judgement.rerun.status is RerunStatus.REQUESTED
    assert rig.runs.log(SLOT) is None
    assert rig.job_log.latest(SLOT) is None
    assert not rig.is_notified()


def test_judge__the_lock_was_lost_meanwhile__burns_no_budget(rig: Rig) -> None:  # bugs 24, 25
    rerun = rig.reruns.request(SLOT, MANUAL)
    lock = rig.lock("rerun-1")
    rig.clock.advance(HOUR + 1)
    rig.lock("exec-2")

    with pytest.raises(StaleClaimError, match="exec-2"):
        rig.reruns.judge(rerun.rerun_id, ONE_EACH, execution="rerun-1", lock_token=lock.token, also=[EVENT])

    assert rig.reruns.get(rerun.rerun_id) == rerun
    assert rig.runs.log(SLOT) is None
    assert not rig.is_notified()


def test_judge__again_by_the_same_execution__goes_on_and_charges_once(rig: Rig) -> None:
    rerun = rig.reruns.request(SLOT, MANUAL)
    lock = rig.lock("rerun-1")
    first = rig.reruns.judge(rerun.rerun_id, ONE_EACH, execution="rerun-1", lock_token=lock.token)

    again = rig.reruns.judge(rerun.rerun_id, ONE_EACH, execution="rerun-1", lock_token=lock.token, also=[EVENT])

    assert again == first
    assert rig.log().reruns == {"manual": 1}
    assert not rig.is_notified()


def test_judge__by_a_second_execution_for_the_same_request__does_not_go_on(rig: Rig) -> None:  # D11
    first = _accept(rig, execution="rerun-1")
    lock = rig.lock("rerun-2")

    second = rig.reruns.judge(first.rerun.rerun_id, ONE_EACH, execution="rerun-2", lock_token=lock.token)

    assert not second.proceeds
    assert "rerun-1" in second.reason
    assert rig.log().reruns == {"manual": 1}


def test_judge__more_requests_than_the_budget__accepts_only_so_many(rig: Rig) -> None:  # bug 46, D25
    assert _accept(rig, DRIFT).proceeds
    refused = _accept(rig, LATE)

    assert not refused.proceeds
    assert (refused.rerun.status, refused.rerun.rule) == (RerunStatus.REJECTED, RerunRule.BUDGET_SPENT)
    assert rig.log().reruns == {"drift": 1}
    entry = rig.job_log.latest(SLOT)
    assert entry is not None
    assert (entry.event, entry.error) == (JobEvent.RERUN_REJECTED, refused.reason)
    assert _accept(rig, MANUAL, note="a reason").proceeds
    assert not _accept(rig, MANUAL, note="another reason").proceeds
    assert _accept(rig, MANUAL, is_forced=True).proceeds
    assert rig.log().reruns == {"drift": 1, "manual": 2}


def test_judge__two_requests_at_once__are_both_counted_or_one_is_refused(rig: Rig) -> None:  # D25
    items = [{"PK": "PIPELINE#orders", "SK": "RERUN_REQUEST#daily#2026-03-03", "requestedAt": n} for n in range(4)]
    reruns = [rig.reruns.adopt(SLOT, item) for item in items]
    lock = rig.lock("rerun-1")
    two = Situation(budgets=Budgets(manual=2))

    outcomes = at_once(
        4,
        lambda number: rig.reruns.judge(
            reruns[number].rerun_id, two, execution=f"rerun-{number}", lock_token=lock.token
        ),
    )

    judgements = [each for each in outcomes if isinstance(each, RerunJudgement)]
    assert len(judgements) == 4
    assert sum(each.proceeds for each in judgements) == 2
    assert rig.log().reruns == {"manual": 2}
    accepted = [each for each in rig.reruns.ls("orders").reruns if each.status is RerunStatus.ACCEPTED]
    assert len(accepted) == 2


def test_judge__another_is_accepted_between_its_look_and_its_write__is_judged_anew(rig: Rig) -> None:  # D25
    items = [{"PK": "PIPELINE#orders", "SK": "RERUN_REQUEST#daily#2026-03-03", "requestedAt": n} for n in range(2)]
    ours, other = (rig.reruns.adopt(SLOT, item) for item in items)
    lock = rig.lock("rerun-1")
    seen: list[RerunStatus] = []

    def meddle(judged: Rerun, _log: RunLog | None) -> list[Write]:
        if not seen:
            assert rig.reruns.judge(other.rerun_id, ONE_EACH, execution="other", lock_token=lock.token).proceeds
        seen.append(judged.status)
        return [EVENT]

    judgement = rig.reruns.judge(ours.rerun_id, ONE_EACH, execution="rerun-1", lock_token=lock.token, also=meddle)

    assert seen == [RerunStatus.ACCEPTED, RerunStatus.REJECTED]
    assert (judgement.proceeds, judgement.rerun.rule) == (False, RerunRule.BUDGET_SPENT)
    assert rig.log().reruns == {"manual": 1}


def test_judge__what_comes_with_it_is_refused__charges_nothing(rig: Rig) -> None:
    rerun = rig.reruns.request(SLOT, MANUAL)
    lock = rig.lock("rerun-1")

    with pytest.raises(ConflictError) as refused:
        rig.reruns.judge(rerun.rerun_id, ONE_EACH, execution="rerun-1", lock_token=lock.token, also=[NEVER])

    assert not isinstance(refused.value, StaleClaimError)
    assert rig.reruns.get(rerun.rerun_id) == rerun
    assert rig.runs.log(SLOT) is None


def test_judge__a_rejection__needs_no_lock_and_is_written_once(rig: Rig) -> None:
    rerun = rig.reruns.request(SLOT, MANUAL)
    off = Situation(budgets=Budgets(manual=0))

    first = rig.reruns.judge(rerun.rerun_id, off, also=[EVENT])
    again = rig.reruns.judge(rerun.rerun_id, off)

    assert (first.proceeds, first.rerun.status) == (False, RerunStatus.REJECTED)
    assert again.rerun == first.rerun
    assert rig.is_notified()
    assert len(rig.job_log.ls(SLOT).entries) == 1


def test_judge__while_the_last_run_is_watched__leaves_it_waiting(rig: Rig) -> None:
    run = rig.begin("exec-1")
    for status in (RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED_MONITORING):
        run = rig.runs.move(run, status)
    rerun = rig.reruns.request(SLOT, LATE)

    judgement = rig.reruns.judge(rerun.rerun_id, Situation(budgets=Budgets(), is_locked=True))

    assert judgement == RerunJudgement(rerun, proceeds=False, reason=judgement.reason)
    assert rig.reruns.pending(SLOT) == rerun


def test_judge__no_such_rerun__says_so(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="rerun_none"):
        rig.reruns.judge("rerun_none", ONE_EACH)


def test_rerun__accepted__is_admitted_once_and_ends_with_its_run(rig: Rig) -> None:
    rig.succeed("exec-1")
    accepted = _accept(rig).rerun
    asks = Applicant(cause=Cause.RERUN, execution="rerun-1", rerun_id=accepted.rerun_id)
    assert admit(rig.log(), asks, RetryPolicy()).proceeds

    run = rig.begin("rerun-1", cause=Cause.RERUN, rerun_id=accepted.rerun_id)
    assert run.attempt == 2
    for status in (RunStatus.TRIGGERING, RunStatus.RUNNING):
        run = rig.runs.move(run, status)

    def ends(done: Run, _log: RunLog) -> list[Any]:
        return rig.reruns.ending_writes(rig.reruns.get(done.rerun_id), run_id=done.run_id, is_success=True)

    rig.runs.move(run, RunStatus.COMPLETED, also=ends)
    rig.locks.release_owned(evaluation_key(SLOT), "rerun-1")

    ended = rig.reruns.get(accepted.rerun_id)
    assert (ended.status, ended.run_id) == (RerunStatus.COMPLETED, run.run_id)
    assert rig.reruns.ending_writes(ended, run_id=run.run_id, is_success=False) == []
    # The same rerun, reported again, finds the period done and changes nothing.
    assert not admit(rig.log(), asks, RetryPolicy()).proceeds
