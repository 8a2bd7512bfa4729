"""Values that come in at once: each caller is answered when it is durable, and nothing that changes is left out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headgate.batch_pacer import BUSY_PER_SECOND, FULL_BATCH, LINGER_SECONDS, BatchPacer
from headgate.durable.model.records import instant
from headgate.errors import InvalidPayloadError, StoreBusyError, StoreClosedError
from headgate.health.model.signals import SignalUpdate, UpdateResult, UpdateVerdict
from headgate.health.signals.coalescer import Coalescer
from headgate.health.signals.volumes import Volumes
from headgate.health.signals.writer import Signals
from tests.health_rig import CRITICAL, OK, ORDERS, Rig
from tests.integration.health.conftest import MakeRig


class Held(Signals):
    """Signals whose batches are noted, and can be held until many have queued up; some may fail first."""

    batches: list[int]
    gate: threading.Event
    entered: threading.Event
    failures: int

    def apply_updates(self, updates: Any) -> list[UpdateResult]:
        self.entered.set()
        assert self.gate.wait(20)
        if self.failures:
            self.failures -= 1
            raise StoreBusyError("away for a moment")
        self.batches.append(len(updates))
        return super().apply_updates(updates)


@pytest.fixture
def held(rig: Rig) -> Held:
    signals = rig.signals
    signals.__class__ = Held
    assert isinstance(signals, Held)
    signals.batches, signals.gate, signals.entered, signals.failures = [], threading.Event(), threading.Event(), 0
    signals.gate.set()
    return signals


def together(coalescer: Coalescer, held: Held, first: SignalUpdate, others: list[SignalUpdate]) -> list[Any]:
    """Send one that is held up, have the others queue behind it, and return what all received."""
    received: list[Any] = [None] * (len(others) + 1)

    def send(index: int, update: SignalUpdate) -> None:
        try:
            received[index] = coalescer.update(update)
        except StoreBusyError as exc:
            received[index] = exc

    held.gate.clear()
    held.entered.clear()
    threads = [threading.Thread(target=send, args=(index, each)) for index, each in enumerate([first, *others])]
    threads[0].start()
    assert held.entered.wait(20)
    for count, thread in enumerate(threads[1:], 1):
        thread.start()
        _until(lambda count=count: len(coalescer._queue) == count)  # type: ignore[misc]
    held.gate.set()
    for thread in threads:
        thread.join(20)
    return received


def _until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it never came to that")


def test_update__alone__is_taken_over_at_once(rig: Rig, held: Held) -> None:
    result = Coalescer(held).update(rig.update(OK))

    assert (result.verdict, rig.signal().version) == (UpdateVerdict.APPLIED, 1)


def test_update__bad_input__is_raised_and_no_other_notices(rig: Rig, held: Held) -> None:
    with pytest.raises(InvalidPayloadError, match="score"):
        Coalescer(held).update(rig.update(OK, score=2.0))
    assert held.batches == []


def test_update__many_signals_at_once__are_one_batch_and_each_has_its_own_answer(rig: Rig, held: Held) -> None:
    kinds = [f"KIND_{number}" for number in range(20)]

    result = together(Coalescer(held), held, rig.update(OK), [rig.update(OK, kind=kind) for kind in kinds])

    assert held.batches == [1, 20]
    assert sorted(each.signal.signal_type for each in result) == sorted(["FRESHNESS", *kinds])


def test_update__refreshes_of_one_signal__are_written_once_and_all_are_reported_the_last(rig: Rig, held: Held) -> None:
    rig.say(OK, ago_ms=60_000)
    held.batches.clear()
    refreshes = [rig.update(OK, ago_ms=50_000 - 10_000 * number) for number in range(4)]

    result = together(Coalescer(held), held, rig.update(OK, kind="OTHER"), refreshes)

    assert held.batches == [1, 1]
    assert {each.signal.value.window_end for each in result[1:]} == {refreshes[-1].value.window_end}
    assert rig.signal().version == 2


def test_update__volumes_of_one_dataset__all_count(rig: Rig, held: Held) -> None:
    rig.say(OK, kind="VOLUME", ago_ms=60_000)
    windows = [rig.update(OK, kind="VOLUME", ago_ms=50_000 - 10_000 * number) for number in range(3)]

    result = together(Coalescer(held), held, rig.update(OK), windows)

    assert all(each.is_success for each in result)
    found = Volumes(rig.store, rig.clock).history(ORDERS, 1).points
    assert sum(each.event_count or 0 for each in found) == 4 * 10


def test_update__transitions_among_refreshes__are_all_taken_over_in_order(rig: Rig, held: Held) -> None:
    rig.say(OK, ago_ms=60_000)
    states = [OK, CRITICAL, OK]
    updates = [rig.update(state, ago_ms=50_000 - 10_000 * number) for number, state in enumerate(states)]

    result = together(Coalescer(held), held, rig.update(OK, kind="OTHER"), updates)

    assert all(each.is_success for each in result)
    history = rig.signals.history(
        "urn:dp:orders:created:v1", "FRESHNESS", instant(rig.now_ms - 86_400_000), instant(rig.now_ms)
    )
    assert [each.state for each in history if not each.late] == [OK, CRITICAL, OK]


def test_update__store_away_for_a_moment__no_one_notices(rig: Rig, held: Held) -> None:
    held.failures = 1

    result = together(Coalescer(held), held, rig.update(OK), [rig.update(OK, kind="OTHER")])

    assert [each.verdict for each in result] == [UpdateVerdict.APPLIED, UpdateVerdict.APPLIED]


def test_update__store_away__all_who_wait_are_reported_and_the_next_ones_are_served(rig: Rig, held: Held) -> None:
    held.failures = 4
    coalescer = Coalescer(held)

    result = together(coalescer, held, rig.update(OK), [rig.update(OK, kind="OTHER")])

    assert [type(each) for each in result] == [StoreBusyError, StoreBusyError]
    assert coalescer.update(rig.update(OK)).verdict is UpdateVerdict.APPLIED


def test_update__many_threads__every_one_is_answered_and_versions_have_no_gaps(make_rig: MakeRig) -> None:
    rig = make_rig()
    coalescer = Coalescer(rig.signals)
    applied: list[UpdateResult] = []

    def engine(number: int) -> None:
        kind = f"KIND_{number % 4}"
        applied.extend(coalescer.update(rig.update(OK, kind=kind, ago_ms=1_000 - step)) for step in range(20))

    threads = [threading.Thread(target=engine, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(applied) == 320
    assert {rig.signal(f"KIND_{number}").value.window_end for number in range(4)} == {
        rig.update(OK, ago_ms=981).value.window_end
    }


def test_submit__behind_one_that_waits__is_taken_over_with_the_others_and_reported(rig: Rig, held: Held) -> None:
    coalescer = Coalescer(held)
    received: list[UpdateResult | BaseException | None] = []
    held.gate.clear()
    held.entered.clear()
    leader = threading.Thread(target=coalescer.update, args=(rig.update(OK),))
    leader.start()
    assert held.entered.wait(20)

    for kind in ("A", "B", "C"):
        coalescer.submit(rig.update(OK, kind=kind), lambda result, error: received.append(error or result))
    held.gate.set()
    leader.join(20)
    _until(lambda: len(received) == 3)

    assert held.batches == [1, 3]
    assert [each.signal.signal_type for each in received if isinstance(each, UpdateResult) and each.signal] == [
        "A",
        "B",
        "C",
    ]
    # The next update finds no writer at work, either way.
    assert coalescer.update(rig.update(OK, kind="D")).is_success
    coalescer.submit(rig.update(OK, kind="E"), lambda result, error: received.append(error or result))
    _until(lambda: len(received) == 4)
    coalescer.close()


def test_submit__one_that_waits_behind_it__leads_in_its_turn(rig: Rig, held: Held) -> None:
    coalescer = Coalescer(held)
    received: list[UpdateResult | None] = []
    held.gate.clear()
    held.entered.clear()
    coalescer.submit(rig.update(OK), lambda result, _error: received.append(result))
    assert held.entered.wait(20)
    waiting = threading.Thread(target=lambda: received.append(coalescer.update(rig.update(OK, kind="OTHER"))))
    waiting.start()
    _until(lambda: len(coalescer._queue) == 1)
    held.gate.set()
    waiting.join(20)
    coalescer.close()

    assert [each.verdict for each in received if each is not None] == [UpdateVerdict.APPLIED, UpdateVerdict.APPLIED]


def test_submit__bad_or_store_away_or_closed__is_raised_or_reported(rig: Rig, held: Held) -> None:
    coalescer = Coalescer(held)
    received: list[BaseException | None] = []
    with pytest.raises(InvalidPayloadError, match="score"):
        coalescer.submit(rig.update(OK, score=2.0), lambda _result, error: received.append(error))
    held.failures = 2
    coalescer.submit(rig.update(OK), lambda _result, error: received.append(error))

    # What was taken is finished first.
    coalescer.close()

    assert [type(each) for each in received] == [StoreBusyError]
    with pytest.raises(StoreClosedError):
        coalescer.submit(rig.update(OK), lambda _result, error: received.append(error))


def test_close__a_value_is_in_line_behind_one_that_waits__returns_once_it_is_reported(rig: Rig, held: Held) -> None:
    coalescer = Coalescer(held)
    received: list[UpdateResult | None] = []
    held.gate.clear()
    held.entered.clear()
    leader = threading.Thread(target=coalescer.update, args=(rig.update(OK),))
    leader.start()
    assert held.entered.wait(20)
    coalescer.submit(rig.update(OK, kind="A"), lambda result, _error: received.append(result))
    closing = threading.Thread(target=coalescer.close)
    closing.start()
    _until(lambda: coalescer._is_closed)

    assert closing.is_alive()
    held.gate.set()
    closing.join(20)

    assert len(received) == 1
    leader.join(20)


def test_pace__few_values__never_waits() -> None:
    pace = BatchPacer()
    for place in range(BUSY_PER_SECOND - 1):
        now = 10.0 + place / BUSY_PER_SECOND
        assert pace.pause_seconds(now, 1) == 0
        pace.on_batch_started(now, 1)


def test_pace__many_values_in_a_second__groups_begin_apart_until_there_are_few_again() -> None:
    pace = BatchPacer()
    pace.on_batch_started(10.0, BUSY_PER_SECOND)
    assert pace.pause_seconds(10.002, 1) == pytest.approx(LINGER_SECONDS - 0.002)
    assert pace.pause_seconds(10.002 + LINGER_SECONDS, 1) == 0
    pace.on_batch_started(10.999, 1)
    assert pace.pause_seconds(11.0, 1) == pytest.approx(LINGER_SECONDS - 0.001), "there were many in the second before"
    pace.on_batch_started(11.5, 1)
    pace.on_batch_started(12.0, 1)
    assert pace.pause_seconds(12.001, 1) == 0
    pace.on_batch_started(12.5, BUSY_PER_SECOND)
    pace.on_batch_started(14.0, 1)
    assert pace.pause_seconds(14.001, 1) == 0, "many, but long ago"


def test_pace__enough_wait_already__they_need_not_wait_for_more() -> None:
    pace = BatchPacer()
    pace.on_batch_started(10.0, BUSY_PER_SECOND)
    assert pace.pause_seconds(10.001, FULL_BATCH - 1) > 0
    assert pace.pause_seconds(10.001, FULL_BATCH) == 0


def test_submit__group_that_is_to_wait__takes_all_that_come_meanwhile_and_closing_ends_the_wait(
    rig: Rig, held: Held
) -> None:
    class Patient(BatchPacer):
        def pause_seconds(self, now: float, waiting: int) -> float:
            return 60.0

    coalescer = Coalescer(held)
    coalescer._pace = Patient()
    received: list[UpdateResult | None] = []
    for place in range(5):
        coalescer.submit(rig.update(OK, kind=f"K{place}"), lambda result, _error: received.append(result))
    coalescer.close()

    assert (len(received), held.batches) == (5, [5])


def test_submit__enough_come_while_a_group_waits__it_begins_at_once(rig: Rig, held: Held) -> None:
    class Patient(BatchPacer):
        def pause_seconds(self, now: float, waiting: int) -> float:
            return 60.0 if waiting < FULL_BATCH else 0.0

    coalescer = Coalescer(held)
    coalescer._pace = Patient()
    done = threading.Semaphore(0)
    for place in range(FULL_BATCH):
        coalescer.submit(rig.update(OK, kind=f"K{place}"), lambda _result, _error: done.release())
    for _ in range(FULL_BATCH):
        assert done.acquire(timeout=30)
    coalescer.close()

    assert sum(held.batches) == FULL_BATCH
