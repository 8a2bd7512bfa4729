"""Whether a pipeline may begin anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, InvalidPayloadError
from headgate.pipelines.enums import Cause, ControlState, RunStatus
from headgate.pipelines.runs.controls import Control, after_run, refusal
from tests.unit.pipelines.run_rig import EVENT, Rig, at_once, opened_rig

ACTIVE, PAUSED, TRIPPED = ControlState.ACTIVE, ControlState.PAUSED, ControlState.TRIPPED
NOW_MS = 1_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _control(state: ControlState = ACTIVE, **more: Any) -> Control:
    return Control(pipeline_id="orders", state=state, version=1, **{"by": "ann", "reason": "audit", **more})


@pytest.mark.parametrize(
    ("control", "cause", "while_paused", "expected"),
    [
        (_control(), Cause.CRON, False, ""),
        (_control(PAUSED), Cause.CRON, False, "ann paused it: audit"),
        (_control(PAUSED), Cause.SENSOR, False, "ann paused it: audit"),
        (_control(PAUSED), Cause.RECOVERY, False, "ann paused it: audit"),
        (_control(PAUSED), Cause.RERUN, False, "ann paused it: audit"),
        (_control(PAUSED), Cause.BACKFILL, False, "ann paused it: audit"),
        (_control(PAUSED), Cause.BACKFILL, True, ""),
        (_control(PAUSED), Cause.MANUAL, False, ""),
        (_control(PAUSED), Cause.REPLAY, False, ""),
        (_control(PAUSED, until_ms=NOW_MS), Cause.CRON, False, ""),
        (_control(PAUSED, until_ms=NOW_MS + 1), Cause.CRON, False, "ann paused it: audit"),
        (_control(TRIPPED, failures_in_a_row=5), Cause.BACKFILL, True, "5 failures in a row"),
        (_control(TRIPPED, failures_in_a_row=5), Cause.MARKER, False, "5 failures in a row"),
        (_control(TRIPPED, failures_in_a_row=5), Cause.MANUAL, False, ""),
    ],
)
def test_refusal__by_state_and_cause__lets_pass_what_someone_wants_by_hand(
    control: Control, cause: Cause, while_paused: bool, expected: str
) -> None:
    report = refusal(control, cause, NOW_MS, while_paused=while_paused)

    assert report.startswith(expected)
    assert bool(report) == bool(expected)


@pytest.mark.parametrize(
    ("before", "status", "threshold", "state", "failures"),
    [
        (_control(failures_in_a_row=1), RunStatus.FAILED, 3, ACTIVE, 2),
        (_control(failures_in_a_row=2), RunStatus.FAILED, 3, TRIPPED, 3),
        (_control(failures_in_a_row=7), RunStatus.FAILED, 3, TRIPPED, 8),
        # 0 never trips.
        (_control(failures_in_a_row=99), RunStatus.FAILED, 0, ACTIVE, 100),
        (_control(failures_in_a_row=2), RunStatus.COMPLETED, 3, ACTIVE, 0),
        (_control(failures_in_a_row=2), RunStatus.COMPLETED_MONITORING, 3, ACTIVE, 0),
        (_control(failures_in_a_row=2), RunStatus.CANCELLED, 3, ACTIVE, 2),
        # What people paused stays theirs; what has tripped is brought back by people alone.
        (_control(PAUSED, failures_in_a_row=2), RunStatus.FAILED, 3, PAUSED, 3),
        (_control(TRIPPED, failures_in_a_row=3), RunStatus.COMPLETED, 3, TRIPPED, 0),
    ],
)
def test_after_run__by_how_it_ended__counts_and_trips(
    before: Control, status: RunStatus, threshold: int, state: ControlState, failures: int
) -> None:
    after = after_run(before, status, "run_9", threshold, NOW_MS)

    assert (after.state, after.failures_in_a_row) == (state, failures)
    assert after.version == before.version + (after is not before)


def test_after_run__nothing_to_change__is_the_same_object() -> None:
    control = _control()

    assert after_run(control, RunStatus.COMPLETED, "run_1", 3, NOW_MS) is control
    assert after_run(control, RunStatus.CANCELLED, "run_1", 3, NOW_MS) is control


def test_get__nothing_was_said__is_active(rig: Rig) -> None:
    assert rig.controls.get("orders") == Control(pipeline_id="orders")
    assert rig.controls.ls() == []


def test_pause__and_resume__are_kept_with_who_and_why(rig: Rig) -> None:
    paused = rig.controls.pause("orders", by="ann", reason=" migration ", also=lambda _before, _after: [EVENT])

    assert (paused.state, paused.by, paused.reason, paused.since_ms) == (PAUSED, "ann", "migration", rig.now_ms)
    assert rig.controls.get("orders") == paused
    assert rig.is_notified()
    item = rig.item("CONTROL#orders", "STATUS")
    assert item is not None
    assert (item["GSI1PK"], item["GSI1SK"]) == ("CONTROLS", "orders")

    resumed = rig.controls.resume("orders", by="bob", reason="done")
    assert (resumed.state, resumed.by, resumed.version) == (ACTIVE, "bob", 2)


def test_pause__twice_in_the_same_words__reports_it_once(rig: Rig) -> None:
    first = rig.controls.pause("orders", by="ann", reason="migration")

    assert rig.controls.pause("orders", by="ann", reason="migration", also=[EVENT]) == first
    assert not rig.is_notified()
    assert rig.controls.resume("raw", by="ann", reason="why not", also=[EVENT]).version == 0
    assert not rig.is_notified()


def test_pause__in_other_words__keeps_when_it_began(rig: Rig) -> None:
    first = rig.controls.pause("orders", by="ann", reason="migration")
    rig.clock.advance(60)

    second = rig.controls.pause("orders", by="bob", reason="still")

    assert (second.since_ms, second.by) == (first.since_ms, "bob")


def test_pause__of_what_the_breaker_stopped__leaves_it_stopped(rig: Rig) -> None:
    _, writes = rig.controls.outcome_writes("orders", RunStatus.FAILED, "run_1", 1)
    rig.store.transact(writes)

    assert rig.controls.pause("orders", by="ann", reason="look", also=[EVENT]).state is TRIPPED
    assert not rig.is_notified()


@pytest.mark.parametrize(("by", "reason"), [("", "why"), ("ann", ""), ("ann", "  "), ("ann", "x" * 1025)])
def test_pause__without_who_or_why__is_refused(rig: Rig, by: str, reason: str) -> None:
    for order in (rig.controls.pause, rig.controls.resume):
        with pytest.raises(InvalidPayloadError, match="orders"):
            order("orders", by=by, reason=reason)

    assert rig.controls.ls() == []


def test_outcome_writes__of_failures_in_a_row__open_the_breaker_until_someone_resumes(rig: Rig) -> None:
    for number in range(3):
        after, writes = rig.controls.outcome_writes("orders", RunStatus.FAILED, f"run_{number}", 3)
        rig.store.transact(writes)

    assert rig.controls.get("orders") == after
    assert (after.state, after.by, after.last_failed_run_id) == (TRIPPED, "breaker", "run_2")
    resumed = rig.controls.resume("orders", by="ann", reason="mended")
    assert (resumed.state, resumed.failures_in_a_row) == (ACTIVE, 0)


def test_outcome_writes__of_a_success_after_a_success__are_none(rig: Rig) -> None:
    control, writes = rig.controls.outcome_writes("orders", RunStatus.COMPLETED, "run_1", 3)

    assert (control.version, writes) == (0, [])


def test_outcome_writes__of_runs_that_fail_at_once__count_each_or_are_refused(rig: Rig) -> None:
    def fail(number: int) -> int:
        tries = 0
        while True:
            tries += 1
            _, writes = rig.controls.outcome_writes("orders", RunStatus.FAILED, f"run_{number}", 0)
            try:
                rig.store.transact(writes)
            except ConflictError:
                continue
            return tries

    outcomes = at_once(5, fail)

    assert all(isinstance(each, int) for each in outcomes)
    assert rig.controls.get("orders").failures_in_a_row == 5


def test_ls__many_pipelines__finds_them_all(rig: Rig) -> None:  # bug 75
    for number in range(120):
        rig.controls.pause(f"p{number:03}", by="ann", reason="all")

    assert len(rig.controls.ls()) == 120
