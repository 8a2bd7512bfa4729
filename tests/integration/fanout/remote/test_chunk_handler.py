"""A function that handles messages about chunks: which of them may be deleted, and which have to come again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.durable.model.failures import NonRetryable
from headgate.errors import InvalidPayloadError, NotAdmittedError, StoreClosedError, ThrottledError
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.model.rows import Chunk, Fanout, Policy, timestamp
from headgate.fanout.model.sources import ListSource
from headgate.fanout.model.states import Disposition
from headgate.fanout.remote.chunk_handler import chunk_handler
from headgate.fanout.remote.sdk import ActiveChunk, ChunkWorker
from headgate.fanout.repair.control import FanoutControl
from headgate.ids import IdMaker
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

QUEUE = "https://sqs.eu-central-1.amazonaws.com/1/prod-chunks"


class Context:
    """The context that Lambda gives a function."""

    log_stream_name = "2026/11/16/[$LATEST]ab"

    def __init__(self, left_ms: int = 900_000) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


class Rig:
    """A fan-out of five chunks with a queue, whose messages a test delivers itself."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        ids = IdMaker(self.clock)
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.queries = FanoutQueries(self.store, self.clock)
        self.splitter = Splitter(self.store, self.clock, ids, send=lambda fanout: fanout)
        self.control = FanoutControl(self.store, self.clock, ids)
        self.worker = ChunkWorker(Tracker(self.store, self.clock, ids, draw=lambda: 0.0), clock=self.clock)

    def split(self, **policy: Any) -> Fanout:
        order = Order(group="g", chunk_size=1, policy=Policy(**policy), queue_url=QUEUE)
        return self.splitter.split(order, ListSource(list(range(5))), run_id="run")

    def row(self, number: int) -> Chunk:
        return self.queries.chunk("run", f"chunk-{number:07d}")


class Postponed:
    """The delays that a queue received: by the receipt of a message, the seconds until it is delivered again."""

    def __init__(self) -> None:
        self.delays: list[tuple[str, float]] = []

    def __call__(self, queue_url: str, receipt: str, seconds: float) -> None:
        assert queue_url == QUEUE
        self.delays.append((receipt, seconds))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.close()


def record(number: int, *, receives: int = 1, body: str | None = None) -> dict[str, Any]:
    message = {"run_id": "run", "chunk_id": f"chunk-{number:07d}", "survey": "g", "chunk_key": f"items:{number}"}
    return {
        "messageId": f"m{number}",
        "receiptHandle": f"r{number}",
        "body": json.dumps(message) if body is None else body,
        "attributes": {"ApproximateReceiveCount": str(receives)},
        "eventSource": "aws:sqs",
    }


def delivery(*records: dict[str, Any]) -> dict[str, Any]:
    return {"Records": list(records)}


def failures(answer: Any) -> list[str]:
    assert set(answer) == {"batchItemFailures"}
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def test_delivery__all_go_well__nothing_comes_again(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def double(chunk: ActiveChunk) -> int:
        return 2 * int(chunk.items[0])

    answer = double(delivery(*(record(number, receives=2) for number in range(5))), Context())

    assert failures(answer) == []
    assert double.__name__ == "double"  # type: ignore[attr-defined]
    rows = [rig.row(number) for number in range(5)]
    assert [row.output for row in rows] == ["0", "2", "4", "6", "8"]
    row = rows[3]
    assert (row.message_id, row.receive_count, row.worker) == ("m3", 2, Context.log_stream_name)


def test_lease__policy_allows_less_than_the_function_has_left__ends_with_the_policy(rig: Rig) -> None:
    rig.split(timeout_seconds=20.0)
    leases: list[str | None] = []

    @chunk_handler(rig.worker)
    def note(chunk: ActiveChunk) -> None:
        leases.append(rig.row(0).lease_expires_at)

    begun_ms = rig.queries.now_ms()
    note(delivery(record(0)), Context(left_ms=900_000))

    # A killed function does not block the chunk any longer, and its message comes back then.
    assert leases == [timestamp(begun_ms + 20_000)]


def test_delivery__some_fail__only_those_come_again(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def fragile(chunk: ActiveChunk) -> None:
        if chunk.items[0] == 1:
            raise ValueError("bad")
        if chunk.items[0] == 2:
            raise NonRetryable("worse")

    event = delivery(*(record(number) for number in range(4)), record(7), record(8, body="hello"), record(9, body="{}"))

    assert failures(fragile(event)) == ["m1", "m7", "m8", "m9"]
    found = [rig.row(number).disposition for number in range(5)]
    assert found == [
        Disposition.DONE, Disposition.RETRYING, Disposition.QUARANTINED, Disposition.DONE, Disposition.WAITING,
    ]  # fmt: skip


def test_delivery__last_attempt_fails__does_not_come_again(rig: Rig) -> None:
    rig.split(max_attempts=2)

    @chunk_handler(rig.worker)
    def broken(chunk: ActiveChunk) -> None:
        raise ValueError(chunk.chunk_id)

    assert failures(broken(delivery(record(0)))) == ["m0"]
    assert failures(broken(delivery(record(0, receives=2)))) == []
    assert rig.row(0).disposition is Disposition.DEAD


def test_delivery__the_same_message_five_times__is_run_and_counted_once(rig: Rig) -> None:
    rig.split()
    ran: list[str] = []

    @chunk_handler(rig.worker)
    def once(chunk: ActiveChunk) -> None:
        ran.append(chunk.chunk_id)

    assert failures(once(delivery(*[record(0)] * 3))) == []
    assert failures(once(delivery(*[record(0)] * 2))) == []

    assert ran == ["chunk-0000000"]
    counts = rig.queries.counts(rig.queries.fanout("run"))
    assert (counts.done, counts.attempts, counts.duplicates) == (1, 1, 4)


def test_delivery__paused_or_busy__comes_again_and_is_not_run(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def work(chunk: ActiveChunk) -> None:
        assert failures(work(delivery(record(0)))) == ["m0"]
        rig.control.pause("run")

    assert failures(work(delivery(record(0), record(1)))) == ["m1"]
    assert [rig.row(number).attempt for number in (0, 1)] == [1, 0]


def test_delivery__cancelled_before_or_meanwhile__does_not_come_again(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def work(chunk: ActiveChunk) -> None:
        rig.control.cancel("run")
        rig.clock.advance(10)
        chunk.progress(0)
        raise ValueError("stopped")

    assert failures(work(delivery(record(0), record(1)))) == []
    assert [rig.row(number).attempt for number in (0, 1)] == [0, 0]
    assert rig.row(0).error is None


def test_delivery__time_is_nearly_up__the_rest_is_not_begun(rig: Rig) -> None:
    rig.split()
    context, later = Context(), Postponed()

    @chunk_handler(rig.worker, later=later, queue_url=QUEUE)
    def work(chunk: ActiveChunk) -> None:
        context.left_ms = 60_000
        assert chunk.should_stop

    assert failures(work(delivery(record(0), record(1), record(2)), context)) == ["m1", "m2"]
    assert rig.row(1).attempt == 0
    assert (dict(later.delays)["r1"], dict(later.delays)["r2"]) == (0.0, 0.0)


def test_delivery__failed_chunk_is_to_be_tried_later__its_message_is_postponed(rig: Rig) -> None:
    rig.split(backoff_seconds=40, timeout_seconds=100)
    received: list[tuple[str, str, float]] = []

    def later(queue_url: str, receipt: str, seconds: float) -> None:
        received.append((queue_url, receipt, seconds))
        raise ThrottledError("not now")

    @chunk_handler(rig.worker, later=later)
    def broken(chunk: ActiveChunk) -> None:
        raise ValueError("bad")

    assert failures(broken(delivery(record(0)))) == ["m0"]
    rig.clock.advance(40)
    assert failures(broken(delivery(record(0)))) == ["m0"]

    # At the begin of each attempt until its lease is over, and at its end until the next attempt is due.
    assert received == [(QUEUE, "r0", seconds) for seconds in (110.0, 40.0, 110.0, 80.0)]


def test_delivery__process_ends_before_a_chunk_has_begun__message_comes_again_soon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.split(timeout_seconds=100)
    later = Postponed()
    work = chunk_handler(rig.worker, later=later, queue_url=QUEUE)(lambda _: None)

    def ends(*_: object, **__: object) -> None:
        raise SystemExit

    monkeypatch.setattr(rig.worker.tracker, "start", ends)
    with pytest.raises(SystemExit):
        work(delivery(record(0)), Context())

    assert later.delays == [("r0", 60.0)]


def test_delivery__process_ends_in_a_chunk__it_and_those_behind_come_again_when_they_may_run(rig: Rig) -> None:
    rig.split(timeout_seconds=100)
    later = Postponed()

    @chunk_handler(rig.worker, later=later, queue_url=QUEUE)
    def killed(chunk: ActiveChunk) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        killed(delivery(record(0), record(1), record(2)), Context(left_ms=600_000))

    assert dict(later.delays) == {"r0": 110.0, "r1": 610.0, "r2": 610.0}


@pytest.mark.parametrize(("receives", "seconds"), [(1, 30.0), (3, 120.0), (9, 900.0)])
def test_delivery__store_does_not_answer__message_comes_again_after_a_backoff(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, receives: int, seconds: float
) -> None:
    rig.split(timeout_seconds=100)
    later = Postponed()
    work = chunk_handler(rig.worker, later=later, queue_url=QUEUE)(lambda _: None)

    def throttled(*_: object, **__: object) -> None:
        raise ThrottledError("not now")

    monkeypatch.setattr(rig.worker.tracker, "start", throttled)

    assert failures(work(delivery(record(0, receives=receives)), Context())) == ["m0"]
    assert dict(later.delays) == {"r0": seconds}


def test_delivery__busy_or_paused__message_comes_again_when_that_may_be_over(rig: Rig) -> None:
    rig.split(timeout_seconds=100)
    later = Postponed()
    work = chunk_handler(rig.worker, later=later, queue_url=QUEUE)(lambda _: None)
    rig.worker.tracker.start("run", rig.row(0).chunk_id, worker="other")

    assert failures(work(delivery(record(0)), Context(left_ms=600_000))) == ["m0"]
    rig.control.pause("run")
    assert failures(work(delivery(record(1)), Context(left_ms=600_000))) == ["m1"]

    assert dict(later.delays) == {"r0": 610.0, "r1": 5_400.0}


def test_delivery__store_is_gone__is_not_passed_over(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def work(chunk: ActiveChunk) -> None:
        pytest.fail("begun")

    rig.store.close()

    with pytest.raises(StoreClosedError):
        work(delivery(record(0)))


def test_delivery__of_another_service__is_refused(rig: Rig) -> None:
    @chunk_handler(rig.worker)
    def work(chunk: ActiveChunk) -> None:
        pytest.fail("begun")

    with pytest.raises(InvalidPayloadError, match="SQS"):
        work({"Records": [{"s3": {"object": {"key": "a"}}}]})


def test_delivery__output_set_by_hand__is_not_overwritten(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def work(chunk: ActiveChunk) -> str:
        chunk.output(key="out/0")
        return "ignored"

    work(delivery(record(0)))

    assert (rig.row(0).output_key, rig.row(0).output) == ("out/0", None)


def test_message__handled_alone__gives_the_chunk_as_it_ended(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker.tracker)
    def work(chunk: ActiveChunk) -> list[Any]:
        return chunk.items

    assert work(("run", "chunk-0000004")) == rig.row(4)
    assert rig.row(4).output == "[4]"
    assert work({"run_id": "run", "chunk_id": "chunk-0000004"}) is None


def test_message__handled_alone_and_fails__is_recorded_and_raised(rig: Rig) -> None:
    rig.split()

    @chunk_handler(rig.worker)
    def work(chunk: ActiveChunk) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        work(("run", "chunk-0000000"))
    assert rig.row(0).disposition is Disposition.RETRYING

    rig.control.pause("run")
    with pytest.raises(NotAdmittedError):
        work(("run", "chunk-0000000"))
