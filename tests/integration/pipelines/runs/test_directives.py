"""What people order for one period."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, IllegalTransitionError, InvalidPayloadError
from headgate.pipelines.definition.model import RetryPolicy
from headgate.pipelines.enums import Cause, RunStatus
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.directives import Directives
from headgate.pipelines.runs.rows import Order, RunLog
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, SLOT, Rig, opened_rig

NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())
ORDERS: dict[str, Callable[..., RunLog]] = {
    "hold": Directives.hold,
    "skip": Directives.skip,
    "mark_success": Directives.mark_success,
    "force": Directives.force,
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _admits(rig: Rig, cause: Cause = Cause.CRON, **more: Any) -> bool:
    return admit(rig.log(), Applicant(cause=cause, **more), RetryPolicy()).proceeds


def test_hold__before_anything_began__keeps_it_from_beginning_until_it_is_approved(rig: Rig) -> None:
    held = rig.directives.hold(SLOT, by="ann", reason="audit", also=lambda _log: [EVENT])

    assert held.hold is not None
    assert (held.hold.by, held.hold.reason, held.hold.order) == ("ann", "audit", Order.HOLD)
    assert rig.is_notified()
    assert not _admits(rig)
    assert not _admits(rig, Cause.REPLAY, is_replay=True)

    rig.directives.approve(SLOT, by="bob", reason="looked at")
    assert _admits(rig)
    assert rig.begin().attempt == 1


def test_approve__what_no_one_holds__is_refused(rig: Rig) -> None:
    with pytest.raises(IllegalTransitionError, match="it is not held"):
        rig.directives.approve(SLOT, by="bob", reason="looked at")

    assert rig.runs.log(SLOT) is None


def test_skip__a_period__is_over_and_begins_only_if_someone_asks(rig: Rig) -> None:
    log = rig.directives.skip(SLOT, by="ann", reason="holiday")

    assert (log.status, log.reason) == (RunStatus.CANCELLED, "holiday")
    assert not _admits(rig)
    assert not _admits(rig, Cause.RECOVERY)
    assert _admits(rig, Cause.REPLAY, is_replay=True)

    rig.begin("exec-2", cause=Cause.REPLAY)
    assert rig.log().order is None


def test_mark_success__a_period_that_failed__is_done_without_a_run(rig: Rig) -> None:
    rig.fail("exec-1")

    log = rig.directives.mark_success(SLOT, by="ann", reason="loaded by hand")

    assert (log.status, log.succeeded_at_ms, log.succeeded_run_id) == (RunStatus.COMPLETED, rig.now_ms, "")
    assert log.attempts == 1
    assert not _admits(rig)


def test_force__a_period__stays_until_it_is_done(rig: Rig) -> None:
    rig.directives.hold(SLOT, by="ann", reason="audit")
    forced = rig.directives.force(SLOT, by="bob", reason="the board waits")

    assert forced.hold is None
    run = rig.begin("exec-1")
    assert rig.log().order == forced.order
    rig.finish(run, RunStatus.FAILED)
    assert rig.log().order == forced.order
    rig.succeed("exec-1")
    assert rig.log().order is None


@pytest.mark.parametrize("name", ["skip", "mark_success"])
def test_orders__while_a_run_is_under_way__are_refused_and_say_what_to_do(rig: Rig, name: str) -> None:
    run = rig.begin()

    with pytest.raises(IllegalTransitionError, match=f"cancel run {run.run_id}"):
        ORDERS[name](rig.directives, SLOT, by="ann", reason="why", also=[EVENT])

    assert rig.log().status is RunStatus.PENDING
    assert not rig.is_notified()


def test_hold__once_the_job_is_being_started__is_too_late(rig: Rig) -> None:
    run = rig.begin()
    rig.directives.hold(SLOT, by="ann", reason="in time")
    rig.directives.approve(SLOT, by="ann", reason="go on")
    rig.runs.move(run, RunStatus.TRIGGERING)

    with pytest.raises(IllegalTransitionError, match="too late to hold"):
        rig.directives.hold(SLOT, by="ann", reason="too late")


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_orders__for_what_is_done__are_refused(rig: Rig, name: str) -> None:
    rig.succeed()

    with pytest.raises(IllegalTransitionError, match="ask for a rerun"):
        ORDERS[name](rig.directives, SLOT, by="ann", reason="why")


@pytest.mark.parametrize("name", sorted(ORDERS))
@pytest.mark.parametrize(("by", "reason"), [("", "why"), ("ann", " ")])
def test_orders__without_who_or_why__are_refused(rig: Rig, name: str, by: str, reason: str) -> None:
    with pytest.raises(InvalidPayloadError, match="orders/daily/2026-03-03"):
        ORDERS[name](rig.directives, SLOT, by=by, reason=reason)

    assert rig.runs.log(SLOT) is None


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_orders__what_comes_with_them_is_refused__change_nothing(rig: Rig, name: str) -> None:
    with pytest.raises(ConflictError):
        ORDERS[name](rig.directives, SLOT, by="ann", reason="why", also=[NEVER])

    assert rig.runs.log(SLOT) is None
