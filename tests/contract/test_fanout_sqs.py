"""Fan-outs whose chunks are sent through SQS: every chunk counts once, whatever the queue does with its message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from mypy_boto3_sqs import SQSClient

from headgate.clock import VirtualClock
from headgate.errors import (
    DefinitionError,
    NotFoundError,
    PayloadTooLargeError,
    StoreBusyError,
    ThrottledError,
)
from headgate.fanout.core.attempts import AttemptFailure
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.doctor import FunctionFacts, QueueFacts, QueueScope, QueueSetup, check_setup, read_setup
from headgate.fanout.model.rows import Chunk, Fanout, Policy, chunk_key, counter_key, shard_of
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.remote.chunk_handler import ChunkHandler, chunk_handler
from headgate.fanout.remote.dead_letters import DeadLetters
from headgate.fanout.remote.sdk import ActiveChunk, ChunkWorker
from headgate.fanout.remote.sqs import DeadLetter, SqsQueue, client_config, recorder
from headgate.fanout.repair.control import FanoutControl
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT, IDEMPOTENCY
from headgate.store.model.requests import Update, Write
from headgate.store.port import Store
from tests.aws_faults import Faults, dropped, lost, narrowed, refused, unreached
from tests.contract.conftest import NOW, Eventually
from tests.ministack import REGION, fresh_account

TABLES = (FANOUT, IDEMPOTENCY)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """SQLite: it is the queue that is on trial. A test may ask for others as well."""
    return str(getattr(request, "param", "sqlite"))


class QuickClock(VirtualClock):
    """A clock that a sleep moves forward."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


@pytest.fixture
def clock() -> VirtualClock:
    return QuickClock(float(NOW))


class KilledError(BaseException):
    """The process ends here."""


class MortalStore:
    """A store under a process that can be killed before its next transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_doomed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        self._die()
        self._store.transact(writes, token=token)

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[Any]:
        self._die()
        return list(self._store.transact_many(transactions))

    def _die(self) -> None:
        if self.is_doomed:
            self.is_doomed = False
            raise KilledError


class Rig:
    """A queue with its dead letters, and all who work with it."""

    def __init__(self, store: Store, clock: VirtualClock, client: SQSClient) -> None:
        self.clock = clock
        self.client = client
        self.mortal = MortalStore(store)
        self.store = store
        self.ids = IdMaker(clock)
        self.faults = Faults(client)
        self.dead_url = client.create_queue(QueueName="prod-dead")["QueueUrl"]
        self.dead_arn = self._arn(self.dead_url)
        self.url = self.make("prod-chunks")
        self.queries = FanoutQueries(store, clock)
        self.queue = SqsQueue(client, self.mortal, clock)
        self.splitter = Splitter(store, clock, self.ids, shards=4, send=self.queue.send)
        self.tracker = Tracker(store, clock, self.ids, draw=lambda: 0.0)
        self.maintenance = FanoutMaintenance(store, clock, self.ids)
        self.sender = FanoutMaintenance(store, clock, self.ids, send=self.queue.send)
        self.ran: list[str] = []

    def make(self, name: str, **attributes: str) -> str:
        policy = json.dumps({"deadLetterTargetArn": self.dead_arn, "maxReceiveCount": 3})
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        else:
            attributes["RedrivePolicy"] = policy
        return self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]

    def split(self, chunks: int, *, params: dict[str, Any] | None = None, **policy: Any) -> Fanout:
        order = Order(
            group="grs-15", chunk_size=1, queue_url=self.url, params=params or {}, policy=Policy(**policy)
        )  # fmt: skip
        return self.splitter.split(order, RangeSource(0, chunks), run_id="run")

    def handler(self, function: Callable[[ActiveChunk], Any] | None = None, **options: Any) -> ChunkHandler:
        def run(chunk: ActiveChunk) -> Any:
            self.ran.append(chunk.chunk_id)
            return None if function is None else function(chunk)

        return chunk_handler(ChunkWorker(self.tracker, clock=self.clock), **options)(run)

    def receive(self, *, url: str | None = None, wait_seconds: int = 0, **options: Any) -> list[dict[str, Any]]:
        """Take messages as the pollers of Lambda do, and return them as records of an event."""
        answer = self.client.receive_message(
            QueueUrl=url or self.url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_seconds,
            MessageSystemAttributeNames=["All"],
            **options,
        )
        return [
            {
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": message["Attributes"],
                "eventSource": "aws:sqs",
            }
            for message in answer.get("Messages", [])
        ]

    def deliver(self, handler: ChunkHandler, records: Sequence[dict[str, Any]]) -> list[str]:
        """Call the function, delete what it does not report, and return what it does."""
        failed = {one["itemIdentifier"] for one in handler({"Records": list(records)})["batchItemFailures"]}
        for record in records:
            if record["messageId"] not in failed:
                self.client.delete_message(QueueUrl=self.url, ReceiptHandle=record["receiptHandle"])
        return sorted(failed)

    def work_off(self, handler: ChunkHandler, **options: Any) -> int:
        """Deliver until the queue gives nothing, and return how many messages there were."""
        count = 0
        while records := self.receive(**options):
            self.deliver(handler, records)
            count += len(records)
        return count

    def rows(self) -> list[Chunk]:
        return list(self.queries.every_chunk("run"))

    def buckets(self) -> dict[str, int]:
        counts = self.queries.counts(self.queries.fanout("run", consistent=True))
        assert counts.drift() == 0
        return {name: value for name in counts.__struct_fields__ if (value := getattr(counts, name))}

    def status(self) -> FanoutStatus:
        self.maintenance.maintain("run")
        return self.queries.fanout("run", consistent=True).status

    def messages(self, url: str | None = None) -> int:
        names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    def _arn(self, url: str) -> str:
        return self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


@pytest.fixture
def account() -> str:
    return fresh_account()


@pytest.fixture
def rig(store: Store, clock: VirtualClock, ministack: str, aws_session: boto3.Session, account: str) -> Iterator[Rig]:
    client: SQSClient = aws_session.client(
        "sqs",
        endpoint_url=ministack,
        aws_access_key_id=account,
        aws_secret_access_key="-",
        config=client_config(),
    )
    yield Rig(store, clock, client)
    client.close()


# From the split to the end.


@pytest.mark.parametrize("backend", ["sqlite", "dynamodb"], indirect=True)
def test_queue__split_sent_received_and_handled__every_chunk_is_done_once(rig: Rig) -> None:
    fanout = rig.split(23, params={"beta": 3.5})
    assert fanout.status is FanoutStatus.RUNNING
    assert rig.buckets() == {"total": 23, "queued": 23, "items_total": 23}
    assert rig.messages() == 23

    assert rig.work_off(rig.handler(lambda chunk: 2 * chunk.items[0])) == 23

    assert sorted(rig.ran) == [f"chunk-{number:07d}" for number in range(23)]
    rows = rig.rows()
    assert [row.output for row in rows] == [str(2 * number) for number in range(23)]
    assert {(row.receive_count, row.message_id is not None) for row in rows} == {(1, True)}
    assert rig.buckets()["done"] == 23
    assert rig.status() is FanoutStatus.SUCCEEDED
    assert rig.messages() == 0


def test_queue__message__has_what_workers_of_others_read(rig: Rig) -> None:
    rig.split(1, params={"beta": 3.5})

    assert json.loads(rig.receive()[0]["body"]) == {
        "run_id": "run",
        "chunk_id": "chunk-0000000",
        "chunk_key": "range:0-0",
        "survey": "grs-15",
        "params": {"beta": 3.5},
    }


def test_queue__every_message_delivered_five_times__is_counted_once(rig: Rig) -> None:
    rig.split(7)
    handler = rig.handler()

    while records := rig.receive():
        for _ in range(2):
            assert handler({"Records": [*records, *records]})["batchItemFailures"] == []
        rig.deliver(handler, records)

    assert len(rig.ran) == 7
    counts = rig.buckets()
    assert (counts["done"], counts["attempts"], counts["duplicates"]) == (7, 7, 28)
    assert rig.status() is FanoutStatus.SUCCEEDED


def test_queue__worker_is_killed__message_comes_again_after_the_visibility(rig: Rig) -> None:
    rig.url = rig.make("prod-quick", VisibilityTimeout="1")
    rig.split(1, timeout_seconds=60)
    (record,) = rig.receive()
    assert rig.tracker.start("run", "chunk-0000000", worker="killed").claim is not None
    assert rig.receive() == []
    rig.clock.advance(61)

    records = rig.receive(wait_seconds=5)
    assert [one["messageId"] for one in records] == [record["messageId"]]
    assert rig.deliver(rig.handler(), records) == []

    (row,) = rig.rows()
    assert (row.disposition, row.attempt, row.receive_count) == (Disposition.DONE, 2, 2)
    counts = rig.buckets()
    assert (counts["done"], counts["lost"], counts["attempts"]) == (1, 1, 2)


def test_queue__process_ends_within_a_chunk__message_comes_again_when_the_lease_is_over(rig: Rig) -> None:
    rig.url = rig.make("prod-hidden", VisibilityTimeout="5400")
    rig.split(1, timeout_seconds=20)
    rig.faults.inject("ChangeMessageVisibility")

    def killed(_: ActiveChunk) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        rig.handler(killed, later=rig.queue.postpone)({"Records": rig.receive()})

    (hidden,) = rig.faults.requests["ChangeMessageVisibility"]
    # Its lease ends before, so that the next delivery is admitted.
    assert 20 < hidden["VisibilityTimeout"] < 40


def test_queue__chunk_fails_twice_then_succeeds__comes_again_when_its_policy_says(rig: Rig) -> None:
    rig.url = rig.make("prod-slow", VisibilityTimeout="3600")
    rig.split(1, backoff_seconds=0)

    def third(chunk: ActiveChunk) -> None:
        if chunk.attempt < 3:
            raise ValueError("not yet")

    assert rig.work_off(rig.handler(third, later=rig.queue.postpone)) == 3

    counts = rig.buckets()
    assert (counts["done"], counts["attempts"], counts.get("dead", 0)) == (1, 3, 0)
    assert rig.messages() == 0


def test_postpone__for_a_while__message_is_away(rig: Rig) -> None:
    rig.split(1)
    (record,) = rig.receive(VisibilityTimeout=0)

    rig.queue.postpone(rig.url, record["receiptHandle"], 100_000.0)

    assert rig.receive() == []
    assert rig.messages() == 1


# Dead letters.


def _die_of_every_message(rig: Rig) -> int:
    """Receive until the queue gives messages up, each time with a worker that does not come back."""
    count = 0
    while records := rig.receive(VisibilityTimeout=0):
        for record in records:
            rig.tracker.start("run", json.loads(record["body"])["chunk_id"], worker="killed")
        rig.clock.advance(1000)
        count += len(records)
    return count


def test_dead_letters__workers_die_three_times__rows_are_dead_with_the_message(rig: Rig) -> None:
    rig.split(12, max_attempts=5)
    rig.client.send_message(QueueUrl=rig.dead_url, MessageBody="hello")
    assert _die_of_every_message(rig) == 36
    assert (rig.messages(), rig.messages(rig.dead_url)) == (0, 13)

    drained = rig.queue.drain(rig.dead_url, recorder(DeadLetters(rig.store, rig.clock)), wait_seconds=0)

    assert drained.recorded == 12
    assert [why.partition(":")[0] for why in drained.left.values()] == ["message 'hello'"]
    assert rig.messages(rig.dead_url) == 1
    rows = rig.rows()
    assert {row.disposition for row in rows} == {Disposition.DEAD}
    assert [json.loads(row.message or "")["chunk_id"] for row in rows] == [row.chunk_id for row in rows]
    assert {row.receive_count for row in rows} == {4}
    assert rig.buckets()["dead"] == 12
    assert rig.status() is FanoutStatus.FAILED


def test_dead_letters__recording_fails__letters_come_again(rig: Rig) -> None:
    rig.split(1)
    _die_of_every_message(rig)
    received: list[DeadLetter] = []

    def busy(letter: DeadLetter) -> str | None:
        received.append(letter)
        raise StoreBusyError("injected")

    with pytest.raises(StoreBusyError):
        rig.queue.drain(rig.dead_url, busy, wait_seconds=0)

    assert rig.messages(rig.dead_url) == 1
    assert (received[0].receive_count, json.loads(received[0].body)["run_id"]) == (4, "run")
    assert received[0].first_received_at is not None


def test_dead_letters__only_so_many__the_others_stay(rig: Rig) -> None:
    for number in range(15):
        rig.client.send_message(QueueUrl=rig.dead_url, MessageBody=str(number))
    received: list[str] = []

    def record(letter: DeadLetter) -> str | None:
        received.append(letter.body)
        return None if int(letter.body) % 2 else "even"

    drained = rig.queue.drain(rig.dead_url, record, letters_max=12, wait_seconds=0)

    assert len(received) == 12
    assert drained.recorded + len(drained.left) == 12
    assert rig.messages(rig.dead_url) == 15 - drained.recorded


def test_dead_letters__deleting_is_refused_at_first__is_tried_again(rig: Rig) -> None:
    for number in range(3):
        rig.client.send_message(QueueUrl=rig.dead_url, MessageBody=str(number))
    rig.faults.inject("DeleteMessageBatch", refused("RequestThrottled"), _narrow_to(1, "DeleteMessageBatch"))

    assert rig.queue.drain(rig.dead_url, lambda _: None, wait_seconds=0).recorded == 3

    assert rig.messages(rig.dead_url) == 0
    assert [len(request["Entries"]) for request in rig.faults.requests["DeleteMessageBatch"]] == [3, 3, 2]


# A splitter and a queue that break.


def test_splitter__killed_between_send_and_move__goes_on_and_counts_once(rig: Rig) -> None:
    rig.mortal.is_doomed = True
    with pytest.raises(KilledError):
        rig.split(130)
    assert rig.queries.fanout("run", consistent=True).status is FanoutStatus.SPLITTING
    # A hundred messages are on their way, and no row knows of it.
    assert rig.messages() == 100
    assert rig.buckets()["waiting"] == 130

    fanout = rig.split(130)

    assert fanout.status is FanoutStatus.RUNNING
    assert rig.messages() == 230
    assert rig.work_off(rig.handler()) == 230
    counts = rig.buckets()
    assert (counts["done"], counts["duplicates"], counts["attempts"]) == (130, 100, 130)
    assert len(rig.ran) == 130
    assert rig.status() is FanoutStatus.SUCCEEDED


def test_splitter__asked_again_after_all__sends_nothing(rig: Rig) -> None:
    rig.split(3)

    rig.split(3)
    rig.queue.send(rig.queries.fanout("run"))

    assert rig.messages() == 3


def test_splitter__workers_are_faster_than_its_rows__nothing_is_lost(rig: Rig) -> None:
    handler = rig.handler()

    def work_off(**_: object) -> None:
        rig.work_off(handler)

    hook: Any = work_off
    rig.client.meta.events.register("after-call.sqs.SendMessageBatch", hook)

    fanout = rig.split(25)

    assert fanout.status is FanoutStatus.SUCCEEDED
    assert rig.buckets()["done"] == 25
    assert rig.status() is FanoutStatus.SUCCEEDED


def test_send__cancelled_meanwhile__stops(rig: Rig) -> None:
    control = FanoutControl(rig.store, rig.clock, rig.ids)

    def cancel(**_: object) -> None:
        control.cancel("run")

    hook: Any = cancel
    rig.client.meta.events.register("after-call.sqs.SendMessageBatch", hook)

    fanout = rig.split(150)

    assert fanout.cancelled_at is not None
    assert rig.messages() == 100
    assert rig.work_off(rig.handler()) == 100
    assert rig.ran == []
    assert rig.buckets()["waiting"] == 50


def _narrow_to(count: int, operation: str) -> Any:
    """A server that accepts the first entries of a batch, and has no room for the others just now."""

    def narrow(asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "Entries": asked["Entries"][:count]}

    def complete(asked: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        left = [
            {"Id": entry["Id"], "SenderFault": False, "Code": "ServiceUnavailable", "Message": operation}
            for entry in asked["Entries"][count:]
        ]
        return {**answer, "Failed": left}

    return narrowed(narrow, complete)


def test_send__one_of_many_is_sent_again__is_the_only_message(rig: Rig, eventually: Eventually) -> None:
    rig.split(30)
    claim = rig.tracker.start("run", "chunk-0000029", worker="w").claim
    assert claim is not None
    rig.tracker.fail(claim, AttemptFailure("E", "no", is_final=True))
    assert rig.queries.fanout("run", consistent=True).sent_through == 30

    redriver = Redriver(rig.store, rig.clock, rig.ids, send=rig.queue.send)
    redriver.redrive("run", ChunkSelection(chunk_ids=("chunk-0000029",)))

    def waiting() -> int:
        # Where an index lags, the next pass of maintenance sends it.
        rig.sender.maintain("run")
        return rig.buckets().get("waiting", 0)

    eventually(waiting, lambda count: count == 0)
    assert rig.messages() == 31


def test_send__row_that_the_index_lacks__is_sent_all_the_same(rig: Rig) -> None:
    """As a process of an earlier build writes it."""
    fanout = rig.split(5)
    row = chunk_key("run", "chunk-0000002")
    waiting = {"disposition": "WAITING", "status": "PENDING"}
    rig.store.update(FANOUT, row, set=waiting, remove=("queue_pk", "queue_sk"))
    counter = counter_key("run", shard_of(2, 4))
    rig.store.transact([Update(FANOUT, counter, add={"queued": -1, "waiting": 1})], token="t")

    rig.queue.send(fanout)

    assert (rig.messages(), rig.buckets().get("waiting", 0)) == (6, 0)


def test_send__queue_refused_all__the_next_call_sends_them_and_stores_how_far(rig: Rig) -> None:
    is_full = True

    def full(request: AWSPreparedRequest) -> AWSResponse | None:
        answer: AWSResponse | None = _narrow_to(0, "SendMessageBatch")(request) if is_full else None
        return answer

    rig.faults.inject("SendMessageBatch", *[full] * 500)
    fanout = rig.split(30)
    assert (rig.buckets()["waiting"], rig.queries.fanout("run", consistent=True).sent_through) == (30, 0)

    is_full = False
    rig.queue.send(fanout)

    assert (rig.messages(), rig.queries.fanout("run", consistent=True).sent_through) == (30, 30)


def test_send__some_are_not_accepted__those_are_sent_again(rig: Rig) -> None:
    rig.faults.inject("SendMessageBatch", _narrow_to(3, "SendMessageBatch"), _narrow_to(1, "SendMessageBatch"))

    rig.split(10)

    assert rig.messages() == 10
    assert [len(request["Entries"]) for request in rig.faults.requests["SendMessageBatch"]] == [10, 7, 6]
    assert rig.buckets()["queued"] == 10


def _all_refused(sender_fault: bool) -> Any:
    def meet(request: AWSPreparedRequest) -> AWSResponse | None:
        answer = narrowed(lambda asked: asked, lambda asked, _: {"Failed": [
            {"Id": entry["Id"], "SenderFault": sender_fault, "Code": "InvalidMessageContents"}
            for entry in asked["Entries"]
        ]})  # fmt: skip
        return answer(request)

    return meet


def test_send__never_accepted__maintenance_sends_the_rest_and_the_row_says_why(rig: Rig) -> None:
    is_full = True

    def full(request: AWSPreparedRequest) -> AWSResponse | None:
        answer: AWSResponse | None = _narrow_to(0, "SendMessageBatch")(request) if is_full else None
        return answer

    rig.faults.inject("SendMessageBatch", _narrow_to(4, "SendMessageBatch"), *[full] * 500)

    assert rig.split(10).status is FanoutStatus.RUNNING
    counts = rig.buckets()
    assert (counts["queued"], counts["waiting"]) == (4, 6)
    rig.sender.maintain("run")
    assert "did not accept 6 messages" in (rig.queries.fanout("run", consistent=True).send_error or "")

    is_full = False
    rig.sender.maintain("run")
    assert rig.messages() == 4  # not at once: a queue that fails is left alone for a while
    rig.clock.advance(60)
    rig.sender.maintain("run")
    assert rig.messages() == 10
    assert rig.queries.fanout("run", consistent=True).send_error is None


def test_maintenance__queue_is_gone__the_row_says_so_and_no_error_is_raised(rig: Rig) -> None:
    is_full = True
    rig.faults.inject("SendMessageBatch", *[lambda asked: refused("OverLimit")(asked) if is_full else None] * 500)
    rig.split(1)
    is_full = False
    rig.client.delete_queue(QueueUrl=rig.url)

    rig.sender.maintain("run")

    assert "does not exist" in (rig.queries.fanout("run", consistent=True).send_error or "")


def test_send__message_is_refused_for_good__says_which(rig: Rig) -> None:
    rig.faults.inject("SendMessageBatch", _all_refused(sender_fault=True))

    with pytest.raises(DefinitionError, match=r"chunk-0000000 of run \(InvalidMessageContents"):
        rig.split(2)


@pytest.mark.parametrize("fault", [refused("RequestThrottled"), refused("KmsThrottled"), unreached, dropped])
def test_send__fails_in_passing__is_tried_again(rig: Rig, fault: Any) -> None:
    rig.faults.inject("SendMessageBatch", fault, fault)

    rig.split(2)

    assert rig.messages() == 2


def test_send__answer_is_lost__message_is_sent_twice_and_counted_once(rig: Rig) -> None:
    rig.faults.inject("SendMessageBatch", lost)

    rig.split(2)

    assert rig.work_off(rig.handler()) == 4
    assert len(rig.ran) == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refused("RequestThrottled", status=403), ThrottledError),
        (unreached, StoreBusyError),
        (refused("InternalFailure", status=500), StoreBusyError),
        (refused("AccessDeniedException"), DefinitionError),
    ],
)
def test_send__fails_for_good__says_what_to_do(rig: Rig, fault: Any, error: type[Exception]) -> None:
    rig.faults.inject("SendMessageBatch", *[fault] * 1000)
    with suppress(DefinitionError):
        rig.split(2)

    with pytest.raises(error, match="prod-chunks"):
        rig.queue.send(rig.queries.fanout("run", consistent=True))


def test_send__no_such_queue__says_so(rig: Rig) -> None:
    rig.url += "-of-others"

    with pytest.raises(DefinitionError, match="of-others: it does not exist"):
        rig.split(2)


def test_send__large_parameters__go_in_batches_that_fit(rig: Rig) -> None:
    rig.faults.inject("SendMessageBatch")

    rig.split(5, params={"text": "x" * 100_000})

    assert [len(request["Entries"]) for request in rig.faults.requests["SendMessageBatch"]] == [2, 2, 1]


def test_send__parameters_that_fit_into_no_message__are_refused(rig: Rig) -> None:
    with pytest.raises(PayloadTooLargeError, match="in a bucket"):
        rig.split(1, params={"text": "x" * 300_000})


def test_send__fifo_queue__chunks_do_not_wait_for_each_other_and_none_comes_twice(rig: Rig) -> None:
    rig.url = rig.make("prod-ordered.fifo")
    rig.mortal.is_doomed = True
    with pytest.raises(KilledError):
        rig.split(3)
    rig.split(3)

    assert rig.messages() == 3
    assert len({record["attributes"]["MessageGroupId"] for record in rig.receive()}) == 3


def test_connect__credentials_from_the_environment__reaches_the_queue(
    rig: Rig, ministack: str, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    queue = SqsQueue.connect(region=REGION, endpoint_url=ministack, store=rig.store, clock=rig.clock)
    rig.splitter = Splitter(rig.store, rig.clock, rig.ids, shards=4, send=queue.send)

    rig.split(2)

    assert rig.messages() == 2
    queue.close()


# The doctor.


def test_doctor__set_up_as_it_should_not_be__finds_the_facts(
    rig: Rig, ministack: str, account: str, tmp_path: Path
) -> None:
    session = boto3.Session(aws_access_key_id=account, aws_secret_access_key="-", region_name=REGION)
    options: dict[str, Any] = {"endpoint_url": ministack}
    bucket, table = f"chunks-{account}", "phspectra-runs"
    functions, s3 = session.client("lambda", **options), session.client("s3", **options)
    dynamodb, alarms = session.client("dynamodb", **options), session.client("cloudwatch", **options)
    functions.create_function(
        FunctionName="prod-fit",
        Runtime="python3.11",
        Role="arn:aws:iam::1:role/worker",
        Handler="app.fit",
        Code={"ZipFile": b"PK\x05\x06" + 18 * b"\0"},
        Timeout=60,
    )
    arn = rig.dead_arn.replace("prod-dead", "prod-chunks")
    functions.create_event_source_mapping(EventSourceArn=arn, FunctionName="prod-fit", Enabled=False, BatchSize=10)
    s3.create_bucket(Bucket=bucket)
    dynamodb.create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
    )
    scope = QueueScope(rig.url, "prod", attempts_max=4, bucket=bucket, prefix="chunks/", table=table)

    facts = read_setup(session, scope, rig.clock, endpoint_url=ministack)

    day = 86_400
    assert facts == QueueSetup(
        environment="prod",
        queue=QueueFacts("prod-chunks", arn, 30, 4 * day, 3, rig.dead_arn),
        dead_letters=QueueFacts("prod-dead", rig.dead_arn, 30, 4 * day),
        functions=(FunctionFacts("prod-fit", 60, reports_failures=False),),
        attempts_max=4,
        inputs_seconds=None,
        table=table,
        is_table_backed_up=False,
        has_alarm=False,
    )
    assert [finding.check for finding in check_setup(facts)] == [
        "partial-batches", "visibility", "receives", "retention", "alarm", "backups", "names",
    ]  # fmt: skip

    s3.put_bucket_lifecycle_configuration(
        Bucket=bucket,
        LifecycleConfiguration={
            "Rules": [{"Status": "Enabled", "Filter": {"Prefix": "chunks/"}, "Expiration": {"Days": 7}}]
        },
    )
    alarms.put_metric_alarm(
        AlarmName="dead",
        Namespace="AWS/SQS",
        MetricName="ApproximateNumberOfMessagesVisible",
        Dimensions=[{"Name": "QueueName", "Value": "prod-dead"}],
        Statistic="Maximum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=0,
        ComparisonOperator="GreaterThanThreshold",
    )
    dynamodb.update_continuous_backups(
        TableName=table, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    result = read_setup(session, scope, rig.clock, endpoint_url=ministack)
    assert (result.inputs_seconds, result.has_alarm, result.is_table_backed_up) == (7 * day, True, True)
    for client in (functions, s3, dynamodb, alarms):
        client.close()


def test_doctor__no_such_queue__says_so(rig: Rig, ministack: str, account: str) -> None:
    session = boto3.Session(aws_access_key_id=account, aws_secret_access_key="-", region_name=REGION)

    with pytest.raises(NotFoundError, match="nowhere: it does not exist"):
        read_setup(session, QueueScope(rig.url + "nowhere", "prod"), rig.clock, endpoint_url=ministack)
