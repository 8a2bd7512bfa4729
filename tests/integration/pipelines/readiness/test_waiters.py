"""Who waits, who is woken, and that no waiter sleeps through what happened while they lay down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.durable.model.duration import Seconds
from headgate.errors import NotFoundError, SignatureError, StaleClaimError, StoreBusyError
from headgate.pipelines.definition.model import Readiness
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.rows import Slot
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.pipeline_rig import DATE, ORDERS_THERE, Rig, slot_of, waiting_pipeline
from tests.stores import open_sqlite

SLOT = slot_of()


class Answers:
    """Takes the answers to tokens, and refuses those that are over."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.meanwhile: Callable[[], None] | None = None

    def __call__(self, token: str, output: dict[str, str]) -> None:
        assert set(output) == {"woken"}
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        if token in self.errors:
            raise self.errors[token]
        self.answered.append(token)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def waiters(store: SqliteStore, answers: Answers) -> Waiters:
    return Waiters(store, VirtualClock(2_000_000_000.0), answers)


def test_wake__who_waits__once(waiters: Waiters, answers: Answers) -> None:
    waiters.register(SLOT, WaitKind.CHANGE, "t1")
    assert [waiters.wake(SLOT, WaitKind.CHANGE, "news") for _ in range(2)] == [True, False]
    assert answers.answered == ["t1"]


def test_wake__for_something_else__sleeps_on(waiters: Waiters, answers: Answers) -> None:
    waiters.register(SLOT, WaitKind.JOB, "t1")
    assert not waiters.wake(SLOT, WaitKind.CHANGE, "news")
    assert not waiters.wake(slot_of(date="2026-03-04"), WaitKind.JOB, "news")
    assert waiters.wake_all("silver", WaitKind.CHANGE, "news") == 0
    assert answers.answered == []


def test_register__later_wait__takes_the_place_of_the_earlier(waiters: Waiters, answers: Answers) -> None:
    waiters.register(SLOT, WaitKind.CHANGE, "t1")
    waiters.register(SLOT, WaitKind.CHANGE, "t2")
    waiters.wake(SLOT, WaitKind.CHANGE, "news")
    assert answers.answered == ["t2"]


def test_wake_all__of_one_pipeline__every_period_and_no_other_pipeline(waiters: Waiters, answers: Answers) -> None:
    for number in range(250):
        waiters.register(Slot("silver", "stream", f"{number:04}"), WaitKind.CHANGE, f"t{number}")
    waiters.register(Slot("silver-2", "stream", DATE), WaitKind.CHANGE, "other")

    assert waiters.wake_all("silver", WaitKind.CHANGE, "news") == 250
    assert len(set(answers.answered)) == 250
    assert "other" not in answers.answered


@pytest.mark.parametrize(
    "error", [StaleClaimError("over"), NotFoundError("none"), SignatureError("of an older key")], ids=str
)
def test_wake__token_that_is_over__is_forgotten_and_stops_no_other(
    waiters: Waiters, answers: Answers, error: Exception
) -> None:
    waiters.register(slot_of(date="2026-03-01"), WaitKind.CHANGE, "over")
    waiters.register(slot_of(date="2026-03-02"), WaitKind.CHANGE, "there")
    answers.errors["over"] = error

    assert waiters.wake_all("silver", WaitKind.CHANGE, "news") == 1
    assert answers.answered == ["there"]
    assert waiters.wake_all("silver", WaitKind.CHANGE, "news") == 0


def test_wake__who_lies_down_again_meanwhile__is_not_forgotten(waiters: Waiters, answers: Answers) -> None:
    waiters.register(SLOT, WaitKind.CHANGE, "t1")
    answers.meanwhile = lambda: waiters.register(SLOT, WaitKind.CHANGE, "t2")

    waiters.wake(SLOT, WaitKind.CHANGE, "news")

    assert waiters.wake(SLOT, WaitKind.CHANGE, "more news")
    assert answers.answered == ["t1", "t2"]


def test_wake__answer_that_cannot_be_given_now__is_given_later(waiters: Waiters, answers: Answers) -> None:
    waiters.register(SLOT, WaitKind.CHANGE, "t1")
    answers.errors["t1"] = StoreBusyError("busy")
    with pytest.raises(StoreBusyError):
        waiters.wake(SLOT, WaitKind.CHANGE, "news")
    answers.errors.clear()

    assert waiters.wake(SLOT, WaitKind.CHANGE, "news")


# In the lifecycle.


def test_wait__change_between_looking_and_lying_down__is_seen_at_once() -> None:
    with Rig() as rig:
        rig.define(waiting_pipeline())
        stand_in = rig.env.stand_in(rig.app.activities["headgate.pipelines.orchestrator"])
        real = rig.pipelines.orchestrator
        pushed: list[object] = []

        def interrupted(event: dict[str, object]) -> object:
            if event.get("mode") == "await-change" and not pushed:
                # The stream reports it before the waiter is registered, and wakes none.
                pushed.append(rig.pipelines.sensors.push("silver", "orders", {"count": 10}))
                for change in rig.read_stream():
                    rig.pipelines.router.on_change(change)
            return real(event)

        stand_in.calls_with(interrupted)
        rig.push("silver", "landed", date=DATE)

        assert pushed
        assert rig.status(SLOT) is RunStatus.RUNNING


def test_wait__change_that_no_one_reports__is_seen_when_the_interval_is_over() -> None:
    with Rig() as rig:
        quick = Readiness(rules=(ORDERS_THERE,), interval=Seconds(60))
        rig.define(waiting_pipeline(readiness=quick))
        rig.push("silver", "landed", date=DATE)
        rig.advance("90s")
        rig.pipelines.sensors.push("silver", "orders", {"count": 10})
        rig.read_stream()

        rig.advance("29s")
        before = rig.status(SLOT)
        rig.advance("2s")

        assert before is RunStatus.PENDING
        assert rig.status(SLOT) is RunStatus.RUNNING


def test_wait__after_the_run__leaves_no_row_behind() -> None:
    with Rig() as rig:
        rig.define(waiting_pipeline())
        rig.jobs.succeed()
        rig.push("silver", "landed", date=DATE)
        rig.push("silver", "orders", count=10)
        rig.advance("10m")

        assert rig.status(SLOT) is RunStatus.COMPLETED
        assert rig.pipelines.waiters.wake_all("silver", WaitKind.JOB, "anyone?") == 0
        assert rig.pipelines.waiters.wake_all("silver", WaitKind.CHANGE, "anyone?") == 0
