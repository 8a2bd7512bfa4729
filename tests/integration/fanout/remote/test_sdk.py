"""A chunk as a block of code: what is recorded however the block ends, and what keeps it alive meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.durable.model.failures import NonRetryable
from headgate.errors import (
    InvalidItemError,
    InvalidPayloadError,
    NotAdmittedError,
    NotFoundError,
    PayloadTooLargeError,
    StaleClaimError,
    StoreBusyError,
)
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.model.rows import Chunk, Fanout, Policy, timestamp_ms
from headgate.fanout.model.sources import LinesSource, ListSource, Source
from headgate.fanout.model.states import Admission, AttemptOutcome, Disposition
from headgate.fanout.remote.sdk import ActiveChunk, ChunkWorker
from headgate.fanout.repair.control import FanoutControl
from headgate.ids import IdMaker
from headgate.store.model.requests import Write
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

FIRST = "chunk-0000000"


class BusyStore:
    """A store that can be made busy for its next transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.busy = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, writes: list[Write], *, token: str | None = None) -> None:
        if self.busy:
            self.busy -= 1
            raise StoreBusyError("injected")
        self._store.transact(writes, token=token)


class Rig:
    """A fan-out of six items in three chunks, and workers for it."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.ids = IdMaker(self.clock)
        self.sqlite = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.busy = BusyStore(self.sqlite)
        self.store: Store = self.busy  # type: ignore[assignment]
        self.queries = FanoutQueries(self.store, self.clock)
        self.splitter = Splitter(self.store, self.clock, self.ids)
        self.tracker = Tracker(self.store, self.clock, self.ids, draw=lambda: 0.0)
        self.control = FanoutControl(self.store, self.clock, self.ids)
        self.worker = ChunkWorker(self.tracker, name="here", clock=self.clock)

    def split(self, source: Source | None = None, **policy: Any) -> Fanout:
        order = Order(group="grs-15", chunk_size=2, params={"beta": 3.5}, policy=Policy(**policy))
        return self.splitter.split(order, source or ListSource(list("abcdef")), run_id="run")

    def chunk(self, chunk_id: str = FIRST, **options: Any) -> ActiveChunk:
        return self.worker.chunk(("run", chunk_id), **options)

    def row(self, chunk_id: str = FIRST) -> Chunk:
        return self.queries.chunk("run", chunk_id)

    def buckets(self) -> dict[str, int]:
        counts = self.queries.counts(self.queries.fanout("run"))
        assert counts.drift() == 0
        found: dict[str, int] = msgspec.to_builtins(counts)
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.sqlite.close()


def poll(accept: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not accept():
        assert time.monotonic() < deadline, "not in 10 s"
        time.sleep(0.005)


# How a block ends.


def test_block__left__chunk_is_done_with_its_output(rig: Rig) -> None:
    rig.split()

    with rig.chunk("chunk-0000002") as chunk:
        assert (chunk.run_id, chunk.chunk_id, chunk.group) == ("run", "chunk-0000002", "grs-15")
        assert (chunk.items, list(chunk.places), chunk.params) == (["c", "d"], [2, 3], {"beta": 3.5})
        assert (chunk.attempt, chunk.lane, chunk.admission) == (1, "main", Admission.RUN)
        chunk.output({"n": 2}, key="out/2.parquet")

    row = rig.row("chunk-0000002")
    assert (row.disposition, row.output, row.output_key) == (Disposition.DONE, '{"n":2}', "out/2.parquet")
    assert (row.worker, row.items_ok) == ("here", 2)
    assert chunk.ended == row


@pytest.mark.parametrize(
    "message",
    [
        ("run", FIRST),
        {"run_id": "run", "chunk_id": FIRST, "chunk_key": "items:0-1", "survey": "grs-15"},
        '{"run_id": "run", "chunk_id": "chunk-0000000", "of_others": 1}',
        b'{"run_id": "run", "chunk_key": "chunks/run/chunk-0000000.npz", "survey": "grs-15", "params": {}}',
    ],
    ids=["ids", "mapping", "text", "named by its input"],
)
def test_block__any_form_of_message__finds_the_chunk(rig: Rig, message: Any) -> None:
    rig.split()

    with rig.worker.chunk(message) as chunk:
        assert chunk.items == ["a", "b"]

    assert rig.row().disposition is Disposition.DONE


def test_block__fails_twice_then_is_left__counts_once_after_three_attempts(rig: Rig) -> None:
    rig.split()

    for _ in range(2):
        with pytest.raises(ValueError, match="bad spectrum"), rig.chunk():
            raise ValueError("bad spectrum 17")
    row = rig.row()
    assert (row.disposition, row.error_class, row.error) == (Disposition.RETRYING, "ValueError", "bad spectrum 17")
    with rig.chunk() as chunk:
        assert chunk.attempt == 3

    counts = rig.buckets()
    assert (counts["done"], counts["attempts"], counts.get("dead", 0)) == (1, 3, 0)
    outcomes = [attempt.outcome for attempt in rig.queries.attempts(rig.row())]
    assert outcomes == [AttemptOutcome.FAILED, AttemptOutcome.FAILED, AttemptOutcome.COMPLETED]


def test_block__fails_as_often_as_allowed__chunk_is_dead(rig: Rig) -> None:
    rig.split(max_attempts=1)

    with pytest.raises(OSError, match="disk"), rig.chunk() as chunk:
        raise OSError("disk")

    assert rig.row().disposition is Disposition.DEAD
    assert chunk.ended is not None
    assert chunk.ended.disposition is Disposition.DEAD


def test_block__error_that_no_try_will_help__chunk_is_put_aside(rig: Rig) -> None:
    rig.split()

    with pytest.raises(NonRetryable), rig.chunk():
        raise NonRetryable("no such instrument")

    assert rig.row().disposition is Disposition.QUARANTINED


def test_block__input_has_changed__chunk_is_put_aside(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\nb\nc\n")
    rig.split(LinesSource(file))
    file.write_text("other\n")

    with pytest.raises(NotFoundError), rig.worker.chunk(("run", "chunk-000000000000")) as chunk:
        assert chunk.items

    assert rig.row("chunk-000000000000").disposition is Disposition.QUARANTINED


def test_block__out_of_memory__is_reported_as_that(rig: Rig) -> None:
    rig.split()

    with pytest.raises(MemoryError), rig.chunk():
        raise MemoryError

    assert rig.row().error_class == "OOM"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_block__worker_is_stopped__chunk_is_given_back_without_a_try(rig: Rig, error: type[BaseException]) -> None:
    rig.split()

    with pytest.raises(error), rig.chunk():
        raise error

    row = rig.row()
    assert (row.disposition, row.attempt, row.worker) == (Disposition.QUEUED, 0, None)
    assert rig.buckets()["queued"] == 3


def test_block__failure_cannot_be_recorded__error_says_so(rig: Rig) -> None:
    rig.split()

    with pytest.raises(ValueError, match="bad") as caught, rig.chunk() as chunk:
        rig.busy.busy = 1
        raise ValueError("bad")

    assert "could not be recorded (injected)" in caught.value.__notes__[0]
    assert chunk.ended is None
    assert rig.row().disposition is Disposition.RUNNING


def test_block__output_too_large__is_refused(rig: Rig) -> None:
    rig.split()

    with pytest.raises(PayloadTooLargeError, match="give its name as key"), rig.chunk() as chunk:
        chunk.output("x" * 300_000)

    assert rig.row().error_class == "PayloadTooLargeError"


def test_block__result_cannot_be_stored__chunk_is_put_aside_at_once(rig: Rig) -> None:
    rig.split()

    with pytest.raises(InvalidItemError, match="surrogate"), rig.chunk() as chunk:
        chunk.output(key="\ud800")

    row = rig.row()
    assert (row.disposition, row.error_class) == (Disposition.QUARANTINED, "InvalidItemError")
    assert rig.buckets()["quarantined"] == 1


def test_block__a_thousand_long_item_errors__are_stored(rig: Rig) -> None:
    order = Order(group="g", chunk_size=1000)
    rig.splitter.split(order, ListSource(list(range(1000))), run_id="run")

    with rig.chunk() as chunk:
        for place in chunk.places:
            chunk.item_error(place, "x" * 2000)

    row = rig.row()
    assert (row.disposition, row.items_failed) == (Disposition.DONE, 1000)
    assert len(msgspec.json.decode(row.item_errors or "")) == 1000


def test_block__output_that_json_cannot_say__is_refused(rig: Rig) -> None:
    rig.split()

    with pytest.raises(InvalidPayloadError, match="JSON"), rig.chunk() as chunk:
        chunk.output(object())

    assert rig.row().disposition is Disposition.RETRYING


# Who may enter.


def test_block__message_comes_again_after_the_end__nothing_is_run_or_counted(rig: Rig) -> None:
    rig.split()
    with rig.chunk():
        pass
    before = rig.row()
    ran: list[object] = []

    for _ in range(4):
        with rig.chunk() as chunk:
            ran += chunk.items

    assert chunk.admission is Admission.DUPLICATE
    assert not chunk.is_admitted
    assert ran == []
    assert rig.row() == before
    assert (rig.buckets()["done"], rig.buckets()["duplicates"]) == (1, 4)


def test_block__chunk_is_with_someone_else__is_not_entered(rig: Rig) -> None:
    rig.split()

    with rig.chunk(), pytest.raises(NotAdmittedError, match="come again") as caught, rig.chunk():
        pytest.fail("entered twice")

    assert caught.value.admission is Admission.BUSY
    assert rig.row().disposition is Disposition.DONE


def test_block__fanout_is_paused__is_not_entered(rig: Rig) -> None:
    rig.split()
    rig.control.pause("run")

    with pytest.raises(NotAdmittedError) as caught, rig.chunk():
        pytest.fail("entered")

    assert caught.value.admission is Admission.PAUSED
    assert rig.row().attempt == 0


def test_block__fanout_is_cancelled__is_left_at_the_first_look(rig: Rig) -> None:
    rig.split()
    rig.control.cancel("run")

    with rig.chunk() as chunk:
        pytest.fail(f"looked at {chunk.items}")

    assert chunk.admission is Admission.CANCELLED
    assert rig.row().attempt == 0


def test_block__error_of_another_chunk__is_not_taken_for_its_own(rig: Rig) -> None:
    rig.split()
    with rig.chunk():
        pass

    with rig.chunk("chunk-0000002"), pytest.raises(NotAdmittedError), rig.chunk(), rig.chunk("chunk-0000002"):
        pytest.fail("entered")


def test_block__no_such_chunk__is_not_found(rig: Rig) -> None:
    rig.split()

    with pytest.raises(NotFoundError, match="chunk-0000001"), rig.chunk("chunk-0000001"):
        pytest.fail("entered")


def test_chunk__outside_of_its_block__is_refused(rig: Rig) -> None:
    rig.split()

    with pytest.raises(RuntimeError, match="within its block"):
        _ = rig.chunk().items


# Items.


def test_items__some_fail_and_some_are_deferred__are_counted_so(rig: Rig) -> None:
    rig.split()

    with rig.chunk("chunk-0000002") as chunk:
        chunk.defer(2)
        chunk.item_error(3, ValueError("flat"))
    with rig.worker.chunk(("run", "slow-0000002")) as slow:
        assert (slow.items, slow.lane, list(slow.places)) == (["c"], "slow", [2])

    row = rig.row("chunk-0000002")
    assert row.item_errors == '{"3":"ValueError: flat"}'
    assert (row.disposition, row.items_ok, row.items_failed, row.items_deferred) == (Disposition.DONE, 1, 1, 0)
    counts = rig.buckets()
    assert (counts["items_ok"], counts["items_failed"], counts.get("items_deferred", 0)) == (1, 1, 0)


def test_items__said_to_fail_and_then_deferred__the_last_word_counts(rig: Rig) -> None:
    rig.split()

    with rig.chunk() as chunk:
        chunk.item_error(0, "slow")
        chunk.defer(0, 1)
        chunk.item_error(1, "bad")

    row = rig.row()
    assert (row.disposition, row.deferred, row.item_errors) == (Disposition.DEFERRED, "[0]", '{"1":"bad"}')


def test_items__block_fails__errors_so_far_are_kept(rig: Rig) -> None:
    rig.split()

    with pytest.raises(ValueError, match="end"), rig.chunk() as chunk:
        chunk.item_error(1, "bad")
        raise ValueError("end")

    assert rig.row().item_errors == '{"1":"bad"}'


@pytest.mark.parametrize("say", [lambda chunk: chunk.defer(2), lambda chunk: chunk.item_error(2, "bad")])
def test_items__of_another_chunk__are_refused(rig: Rig, say: Callable[[ActiveChunk], None]) -> None:
    rig.split()

    with pytest.raises(InvalidPayloadError, match="item 2 is not in it"), rig.chunk() as chunk:
        say(chunk)


def test_items__deferred_in_the_slow_lane__are_refused(rig: Rig) -> None:
    rig.split()
    with rig.chunk() as chunk:
        chunk.defer(0)

    with pytest.raises(InvalidPayloadError, match="slow lane"), rig.worker.chunk(("run", "slow-0000000")) as slow:
        slow.defer(0)


# Signs of life.


def test_progress__while_the_block_runs__is_passed_on_now_and_then(rig: Rig) -> None:
    rig.split(timeout_seconds=900)

    with rig.chunk() as chunk:
        chunk.progress(1)
        assert rig.row().items_done == 0
        rig.clock.advance(10)
        chunk.progress(2)
        row = rig.row()

    assert row.items_done == 2
    assert row.heartbeat_at is not None
    assert timestamp_ms(row.lease_expires_at or "") == int(rig.clock.seconds() + 895) * 1000


def test_pulse__policy_asks_for_signs_of_life__they_come_by_themselves(rig: Rig) -> None:
    rig.split(heartbeat_seconds=0.02)
    worker = ChunkWorker(rig.tracker, clock=SystemClock())

    with worker.chunk(("run", FIRST)):
        rig.clock.advance(3600)
        poll(lambda: timestamp_ms(rig.row().lease_expires_at or "") > rig.clock.seconds() * 1000)

    assert rig.row().disposition is Disposition.DONE


def test_pulse__store_is_busy__block_goes_on(rig: Rig) -> None:
    rig.split()

    with rig.chunk() as chunk:
        rig.clock.advance(10)
        rig.busy.busy = 1
        chunk.progress(1)
        assert not chunk.should_stop
        rig.clock.advance(10)
        chunk.progress(2)
        assert rig.row().items_done == 2

    assert rig.row().disposition is Disposition.DONE


def test_pulse__time_is_up__chunk_is_no_longer_kept(rig: Rig) -> None:
    rig.split(timeout_seconds=100, heartbeat_seconds=60)

    with rig.chunk() as chunk:
        rig.clock.advance(99)
        chunk.progress(1)
        # Not for three silences: only for as long as the worker has, and a moment to say how it ended.
        assert timestamp_ms(rig.row().lease_expires_at or "") == int(rig.clock.seconds() + 6) * 1000
        rig.clock.advance(31)
        chunk.progress(2)
        assert rig.row().items_done == 1

    assert rig.row().disposition is Disposition.DONE


def test_block__lost_to_another_worker__result_is_dropped(rig: Rig) -> None:
    rig.split(timeout_seconds=100)

    with pytest.raises(StaleClaimError, match="drop the result"), rig.chunk() as chunk:
        chunk.output("late")
        rig.clock.advance(101)
        assert rig.tracker.start("run", FIRST, worker="other").admission is Admission.RUN

    row = rig.row()
    assert (row.disposition, row.worker, row.output) == (Disposition.RUNNING, "other", None)


def test_progress__lost_to_another_worker__says_so_and_nothing_is_recorded(rig: Rig) -> None:
    rig.split(timeout_seconds=100)
    slow_clock = VirtualClock()
    worker = ChunkWorker(rig.tracker, clock=slow_clock)

    with pytest.raises(StaleClaimError) as caught, worker.chunk(("run", FIRST)) as chunk:
        rig.clock.advance(101)
        rig.tracker.start("run", FIRST, worker="other")
        slow_clock.advance(10)
        try:
            chunk.progress(1)
        finally:
            assert chunk.should_stop

    # Nothing was even tried, so that there is nothing to add.
    assert not hasattr(caught.value, "__notes__")
    row = rig.row()
    assert (row.disposition, row.worker, row.error) == (Disposition.RUNNING, "other", None)


def test_block__cancelled_while_it_runs__is_reported_and_what_it_raises_is_no_failure(rig: Rig) -> None:
    rig.split()

    with pytest.raises(RuntimeError, match="stopped"), rig.chunk() as chunk:
        rig.control.cancel("run")
        assert not chunk.cancelled
        rig.clock.advance(10)
        chunk.progress(1)
        assert chunk.cancelled
        assert chunk.should_stop
        raise RuntimeError("stopped")

    FanoutMaintenance(rig.store, rig.clock, rig.ids).maintain("run")
    row = rig.row()
    assert (row.disposition, row.error, row.attempt) == (Disposition.CANCELLED, None, 0)
    assert rig.queries.fanout("run").status.value == "CANCELLED"


def test_block__cancelled_while_it_runs_and_left__is_done(rig: Rig) -> None:
    rig.split()

    with rig.chunk():
        rig.control.cancel("run")

    assert rig.row().disposition is Disposition.DONE


# Time.


def test_should_stop__a_minute_before_the_function_is_ended__is_true(rig: Rig) -> None:
    rig.split()
    left_ms = 900_000

    with rig.chunk(remaining_ms=lambda: left_ms) as chunk:
        left_ms = 60_001
        assert not chunk.should_stop
        left_ms = 60_000
        assert chunk.should_stop
        chunk.defer(*chunk.places[1:])

    row = rig.row()
    assert (row.disposition, row.items_ok, row.deferred) == (Disposition.DEFERRED, 1, "[1]")


def test_should_stop__little_time_in_all__leaves_most_of_it(rig: Rig) -> None:
    rig.split()
    left_ms = 30_000

    with rig.chunk(remaining_ms=lambda: left_ms) as chunk:
        assert not chunk.should_stop
        left_ms = 6_000
        assert chunk.should_stop


def test_should_stop__time_out_of_the_policy__counts_as_well(rig: Rig) -> None:
    rig.split(timeout_seconds=600)

    with rig.chunk(remaining_ms=lambda: 900_000) as chunk:
        rig.clock.advance(539)
        assert not chunk.should_stop
        rig.clock.advance(1)
        assert chunk.should_stop


def test_lease__function_ends_before_the_policy_would__ends_with_it(rig: Rig) -> None:
    rig.split(timeout_seconds=900)

    with rig.chunk(remaining_ms=lambda: 60_000):
        row = rig.row()

    assert timestamp_ms(row.lease_expires_at or "") == round(1000 * (rig.clock.seconds() + 65))
