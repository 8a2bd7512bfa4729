"""What the DynamoDB store does when DynamoDB misbehaves, over real HTTP."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from headgate.clock import Clock, SystemClock, VirtualClock
from headgate.errors import (
    ConflictError,
    HeadgateError,
    InvalidItemError,
    ItemTooLargeError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreClosedError,
    StoreIOError,
    ThrottledError,
    TokenReusedError,
    TransactionLimitError,
)
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import CONTROL, HEALTH_CHECK, IDEMPOTENCY, INBOXES, SIGNAL_STATE
from headgate.store.deadlines import deadline_within
from headgate.store.dynamodb.client import client_config
from headgate.store.dynamodb.store import DynamoStore
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, any_of, at_least, equals, exists, lacks, version_is
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Check, Delete, Put, Query, StreamStart, Update, Write
from headgate.store.model.schema import Key
from headgate.store.table_names import TableNames
from tests.aws_faults import (
    Fault,
    Faults,
    answered,
    canceled,
    computed,
    cut_short,
    damaged,
    dropped,
    lost,
    lost_before,
    narrowed,
    refused,
    unreached,
)
from tests.ministack import fresh_account

TABLES = (SIGNAL_STATE, INBOXES, CONTROL, IDEMPOTENCY, HEALTH_CHECK)
KEY = Key("p", "s")
ROW = {"PK": "p", "SK": "s"}
BRIEF_SECONDS = 0.3
ALWAYS = 1000


class ForwardClock:
    """The machine's clock, moved forward by a sleep instead of waiting for its end."""

    def __init__(self) -> None:
        self.slept_seconds = 0.0

    def seconds(self) -> float:
        return time.time() + self.slept_seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.slept_seconds

    def sleep(self, seconds: float) -> None:
        self.slept_seconds += seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)


class Rig:
    """A store on a fresh account, the faults of its client, and a client of the same account that has none."""

    def __init__(self, session: boto3.Session, endpoint: str, folder: Path) -> None:
        self.account = fresh_account()
        self._session = session
        self._endpoint = endpoint
        self._folder = folder
        self._open: list[DynamoStore] = []
        self.raw = self._client()
        self.client = self._client()
        self.faults = Faults(self.client)
        self.store = self.open(self.client)
        self.store.create_tables(TABLES)

    def open(
        self, client: DynamoDBClient | None = None, clock: Clock | None = None, deadline_seconds: float = 10.0
    ) -> DynamoStore:
        """Return another store on the same tables. Its pauses between attempts take no time."""
        clock = clock or ForwardClock()
        options = self._options(deadline_seconds)
        store = DynamoStore(
            client=client or self._client(deadline_seconds),
            streams=self._session.client("dynamodbstreams", **options),
            names=TableNames("test-"),
            clock=clock,
            cursors=Cursors(Keyring.generate(clock)),
            spill=Spill(FolderBlobs(self._folder), clock),
            deadline_seconds=deadline_seconds,
        )
        self._open.append(store)
        return store

    def brief(self, clock: Clock | None = None) -> DynamoStore:
        """Return a store with the same faults and little patience."""
        return self.open(self.client, clock, BRIEF_SECONDS)

    def put_raw(self, item: dict[str, Any]) -> None:
        """Write behind the store's back."""
        self.raw.put_item(TableName="test-headgate-control", Item=item)

    def close(self) -> None:
        for store in self._open:
            store.close()
        self.raw.close()

    def _client(self, deadline_seconds: float = 10.0) -> DynamoDBClient:
        return self._session.client("dynamodb", **self._options(deadline_seconds))

    def _options(self, deadline_seconds: float) -> dict[str, Any]:
        return {
            "endpoint_url": self._endpoint,
            "aws_access_key_id": self.account,
            "aws_secret_access_key": "-",
            "config": client_config(deadline_seconds),
        }


@pytest.fixture
def rig(ministack: str, aws_session: boto3.Session, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(aws_session, ministack, tmp_path)
    yield rig
    rig.close()


def read(store: DynamoStore, key: Key = KEY) -> dict[str, Any] | None:
    return store.get(CONTROL, key, consistent=True)


THROTTLED = refused("ProvisionedThroughputExceededException")
PASSING = [
    pytest.param(THROTTLED, id="throughput exceeded"),
    pytest.param(refused("ThrottlingException"), id="throttled"),
    pytest.param(refused("RequestLimitExceeded"), id="limit exceeded"),
    pytest.param(refused("TransactionConflictException"), id="transaction conflict"),
    pytest.param(refused("InternalServerError", status=500), id="internal error"),
    pytest.param(refused("", status=503), id="unavailable"),
    pytest.param(unreached, id="not reached"),
    pytest.param(dropped, id="dropped"),
    pytest.param(cut_short(b'{"Item": {"PK'), id="cut short"),
    pytest.param(cut_short(b""), id="empty"),
    pytest.param(damaged, id="damaged"),
]


@pytest.mark.parametrize("fault", PASSING)
def test_get__passing_fault__is_tried_again(rig: Rig, fault: Fault) -> None:
    rig.store.put(CONTROL, {**ROW, "n": 1})
    rig.faults.inject("GetItem", fault, fault)

    assert read(rig.store) == {**ROW, "n": 1}
    assert rig.store.stats.retries == 2


@pytest.mark.parametrize("fault", PASSING)
def test_put__passing_fault__is_tried_again(rig: Rig, fault: Fault) -> None:
    rig.faults.inject("PutItem", fault, fault)

    rig.store.put(CONTROL, {**ROW, "n": 1}, condition=absent())

    assert read(rig.store) == {**ROW, "n": 1}
    assert rig.faults.left("PutItem") == 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(canceled("None", "TransactionConflict"), id="conflict"),
        pytest.param(canceled("ThrottlingError", "None"), id="throttled"),
        pytest.param(canceled("ProvisionedThroughputExceeded", "TransactionConflict"), id="both"),
        pytest.param(refused("TransactionInProgressException"), id="in progress"),
        *PASSING[:4],
    ],
)
def test_transact__passing_fault__is_tried_again_under_one_token(rig: Rig, fault: Fault) -> None:
    rig.faults.inject("TransactWriteItems", fault, fault)

    rig.store.transact([Put(CONTROL, {**ROW, "n": 1}, absent()), Put(CONTROL, {**ROW, "SK": "t"})])

    assert read(rig.store) == {**ROW, "n": 1}
    tokens = {request["ClientRequestToken"] for request in rig.faults.requests["TransactWriteItems"]}
    assert len(rig.faults.requests["TransactWriteItems"]) == 3
    assert len(tokens) == 1


CALLS: dict[str, tuple[str, Callable[[DynamoStore], object]]] = {
    "get": ("GetItem", read),
    "get_many": ("BatchGetItem", lambda store: store.get_many(CONTROL, [KEY])),
    "query": ("Query", lambda store: store.query(Query(table=CONTROL, partition="p"))),
    "put": ("PutItem", lambda store: store.put(CONTROL, {**ROW, "n": 2})),
    "update": ("UpdateItem", lambda store: store.update(CONTROL, KEY, set={"n": 2})),
    "delete": ("DeleteItem", lambda store: store.delete(CONTROL, KEY)),
    "transact": (
        "TransactWriteItems",
        lambda store: store.transact([Put(CONTROL, {**ROW, "n": 2}), Delete(CONTROL, Key("p", "other"))]),
    ),
    "batch_write": ("BatchWriteItem", lambda store: store.batch_write([Put(CONTROL, {**ROW, "n": 2})])),
    "check_health": ("GetItem", lambda store: store.check_health()),
}
WRITES = ("put", "update", "delete", "transact")


@pytest.mark.parametrize("name", CALLS)
def test_call__throttled_until_the_deadline__says_so_in_time(rig: Rig, name: str) -> None:
    operation, call = CALLS[name]
    rig.store.put(CONTROL, {**ROW, "n": 1})
    store = rig.brief(SystemClock())
    rig.faults.inject(operation, *[THROTTLED] * ALWAYS)
    started = time.monotonic()

    with pytest.raises(ThrottledError, match="test-"):
        call(store)

    # The health check has a deadline of its own, of two seconds.
    assert time.monotonic() - started < 5
    assert store.stats.throttles >= 1
    assert rig.open(rig.raw).get(CONTROL, KEY, consistent=True) == {**ROW, "n": 1}


@pytest.mark.parametrize("name", CALLS)
def test_call__throttled_until_the_caller_s_own_deadline__is_not_tried_past_it(rig: Rig, name: str) -> None:
    operation, call = CALLS[name]
    rig.store.put(CONTROL, {**ROW, "n": 1})
    rig.faults.inject(operation, *[THROTTLED] * ALWAYS)

    with deadline_within(0.0, SystemClock()), pytest.raises(ThrottledError):
        call(rig.store)

    assert rig.store.stats.retries == 0


def test_log__attempts_that_fail__report_what_was_tried_and_what_was_given_up(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.faults.inject("GetItem", *[THROTTLED] * ALWAYS)
    caplog.set_level(logging.INFO, logger="headgate.store")
    with pytest.raises(ThrottledError):
        read(rig.brief())

    events = [record.message for record in caplog.records if record.name == "headgate.store.dynamodb.client"]
    assert set(events) == {"retry_attempt", "dynamodb_read_failed"}
    assert events.count("dynamodb_read_failed") == 1
    facts = vars(caplog.records[-1])
    assert (facts["operation"], facts["error"]) == ("get_item", "ProvisionedThroughputExceededException")


@pytest.mark.parametrize("name", [name for name in CALLS if name != "check_health"])
def test_call__never_reached_until_the_deadline__is_busy_and_nothing_was_done(rig: Rig, name: str) -> None:
    operation, call = CALLS[name]
    rig.store.put(CONTROL, {**ROW, "n": 1})
    rig.faults.inject(operation, *[unreached] * ALWAYS)

    with pytest.raises(StoreBusyError, match="no response"):
        call(rig.brief())

    assert rig.open(rig.raw).get(CONTROL, KEY, consistent=True) == {**ROW, "n": 1}


@pytest.mark.parametrize("name", WRITES)
def test_write__contended_until_the_deadline__is_busy(rig: Rig, name: str) -> None:
    operation, call = CALLS[name]
    conflict = canceled("TransactionConflict") if name == "transact" else refused("TransactionConflictException")
    rig.faults.inject(operation, *[conflict] * ALWAYS)

    with pytest.raises(StoreBusyError, match="other transactions"):
        call(rig.brief())


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "after", [dropped, THROTTLED, refused("AccessDeniedException")], ids=["dropped", "throttled", "denied"]
)
def test_write__answer_lost_and_no_certainty_after__outcome_is_unknown(rig: Rig, name: str, after: Fault) -> None:
    operation, call = CALLS[name]
    rig.store.put(CONTROL, {**ROW, "n": 1})
    rig.faults.inject(operation, lost, *[after] * ALWAYS)

    with pytest.raises(OutcomeUnknownError, match="may or may not"):
        call(rig.brief())


def test_get__server_gone__is_busy(rig: Rig, aws_session: boto3.Session) -> None:
    client: DynamoDBClient = aws_session.client(
        "dynamodb",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id=rig.account,
        aws_secret_access_key="-",
        config=client_config(BRIEF_SECONDS),
    )

    with pytest.raises(StoreBusyError, match="EndpointConnectionError"):
        read(rig.open(client, deadline_seconds=BRIEF_SECONDS))


# A connection that breaks after the write was applied.


@pytest.mark.parametrize("condition", [None, absent(), lacks("n")], ids=str)
def test_put__answer_lost__is_recognised_as_applied(rig: Rig, condition: Any) -> None:
    rig.faults.inject("PutItem", lost)

    rig.store.put(CONTROL, {**ROW, "n": 1.5, "text": "x" * 500_000}, condition=condition)

    found = read(rig.store)
    assert found is not None
    assert found["n"] == 1.5
    assert len(rig.faults.requests["PutItem"]) == 2


def test_put__answer_lost_and_item_changed_since__outcome_is_unknown(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1})
    winner = {"PK": {"S": "p"}, "SK": {"S": "s"}, "version": {"N": "3"}}
    rig.faults.inject("PutItem", lost_before(lost, lambda: rig.put_raw(winner)))

    with pytest.raises(OutcomeUnknownError, match="connection broke") as caught:
        rig.store.put(CONTROL, {**ROW, "version": 2}, condition=version_is(1))

    assert caught.value.current == {**ROW, "version": 3}


def test_update__answer_lost__is_recognised_and_counts_once(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1, "n": 10, "old": 1})
    rig.faults.inject("UpdateItem", lost)

    after = rig.store.update(
        CONTROL, KEY, set={"version": 2, "a": "x"}, add={"n": 5}, remove=["old"], condition=version_is(1)
    )

    assert after == {**ROW, "version": 2, "n": 15, "a": "x"}
    assert read(rig.store) == after
    assert len(rig.faults.requests["UpdateItem"]) == 2


def test_update__answer_lost_and_item_changed_since__outcome_is_unknown(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1})
    winner = {"PK": {"S": "p"}, "SK": {"S": "s"}, "version": {"N": "3"}, "a": {"S": "other"}}
    rig.faults.inject("UpdateItem", lost_before(lost, lambda: rig.put_raw(winner)))

    with pytest.raises(OutcomeUnknownError) as caught:
        rig.store.update(CONTROL, KEY, set={"version": 2, "a": "x"}, condition=version_is(1))

    assert caught.value.current == {**ROW, "version": 3, "a": "other"}


def test_update__add_that_could_count_twice_and_answer_lost__is_not_sent_again(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1, "n": 10})
    rig.faults.inject("UpdateItem", lost)

    with pytest.raises(OutcomeUnknownError):
        rig.store.update(CONTROL, KEY, set={"version": 2}, add={"n": 5}, condition=any_of(version_is(1), version_is(2)))

    assert len(rig.faults.requests["UpdateItem"]) == 1
    assert read(rig.store) == {**ROW, "version": 2, "n": 15}


def test_delete__with_a_condition_and_answer_lost__outcome_is_unknown(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1})
    rig.faults.inject("DeleteItem", lost)

    with pytest.raises(OutcomeUnknownError) as caught:
        rig.store.delete(CONTROL, KEY, condition=version_is(1))

    assert caught.value.current is None
    assert read(rig.store) is None


def test_delete__without_a_condition_and_answer_lost__is_done(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1})
    rig.faults.inject("DeleteItem", lost)

    assert rig.store.delete(CONTROL, KEY) is None
    assert read(rig.store) is None


@pytest.mark.parametrize("token", [None, "token"])
def test_transact__answer_lost__is_done_once(rig: Rig, token: str | None) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1, "n": 10})
    rig.faults.inject("TransactWriteItems", lost, lost)

    rig.store.transact(
        [
            Update(CONTROL, KEY, {"version": 2}, {"n": 5}, (), version_is(1)),
            Put(CONTROL, {**ROW, "SK": "new"}, absent()),
        ],
        token=token,
    )

    assert read(rig.store) == {**ROW, "version": 2, "n": 15}
    assert len(rig.faults.requests["TransactWriteItems"]) == 3


def test_write__lost_before_it_got_through__is_refused_for_what_is_there(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "n": 1})
    rig.faults.inject("TransactWriteItems", dropped)

    with pytest.raises(ConflictError) as caught:
        rig.store.transact([Put(CONTROL, {**ROW, "n": 2}, absent()), Put(CONTROL, {**ROW, "SK": "t"})])

    assert caught.type is ConflictError
    assert caught.value.current == {**ROW, "n": 1}


# Transactions of one write.


@pytest.mark.parametrize(
    ("write", "operation"),
    [
        (Put(CONTROL, {**ROW, "n": 2}), "PutItem"),
        (Put(CONTROL, {**ROW, "n": 2}, exists()), "PutItem"),
        (Update(CONTROL, KEY, {"n": 2}, condition=version_is(1)), "UpdateItem"),
        (Update(CONTROL, KEY, {"version": 2}, {"n": 1}, (), version_is(1)), "UpdateItem"),
        (Delete(CONTROL, KEY), "DeleteItem"),
        # After a lost response, the table does not show whether these were applied or another writer acted.
        (Delete(CONTROL, KEY, exists()), "TransactWriteItems"),
        (Check(CONTROL, KEY, exists()), "TransactWriteItems"),
    ],
)
def test_transact__one_write__is_a_transaction_only_if_it_must_be(rig: Rig, write: Write, operation: str) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1, "n": 1})
    for each in ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"):
        rig.faults.inject(each)

    rig.store.transact([write])
    rig.store.put(CONTROL, {**ROW, "version": 1, "n": 1})
    [refusal] = rig.store.transact_many([[write]])

    assert refusal is None
    sent = [name for name, requests in rig.faults.requests.items() for _ in requests]
    assert sorted(sent) == sorted([operation, operation, "PutItem"])


def test_transact__one_write_and_its_condition_fails__is_a_conflict_with_the_item(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "version": 1})

    for write in (Put(CONTROL, ROW, absent()), Update(CONTROL, KEY, {"n": 2}, condition=version_is(7))):
        with pytest.raises(ConflictError) as caught:
            rig.store.transact([write])
        assert caught.type is ConflictError
        assert caught.value.failures == {0: {**ROW, "version": 1}}


def test_transact__one_write_and_answer_lost__is_done_once(rig: Rig) -> None:
    rig.faults.inject("PutItem", lost)
    rig.faults.inject("UpdateItem", lost)

    rig.store.transact([Put(CONTROL, {**ROW, "version": 1, "n": 1}, absent())])
    rig.store.transact([Update(CONTROL, KEY, {"version": 2}, {"n": 5}, (), version_is(1))])

    assert read(rig.store) == {**ROW, "version": 2, "n": 6}
    assert rig.store.stats.conflicts == 0


# Tokens.


def test_transact__same_token_at_another_second__changes_nothing(rig: Rig) -> None:
    clock = VirtualClock(time.time())
    store = rig.open(clock=clock)
    writes: list[Write] = [Update(CONTROL, KEY, {}, {"n": 1}), Put(SIGNAL_STATE, ROW, absent())]
    store.put(CONTROL, {**ROW, "n": 0})
    store.transact(writes, token="token")

    clock.advance(599)
    store.transact(writes, token="token")

    assert read(store) == {**ROW, "n": 1}


def test_transact__same_token_after_ten_minutes__is_new(rig: Rig) -> None:
    clock = VirtualClock(time.time())
    store = rig.open(clock=clock)
    store.put(CONTROL, {**ROW, "n": 0})
    store.transact([Update(CONTROL, KEY, {}, {"n": 1})], token="token")

    clock.advance(601)
    store.transact([Update(CONTROL, KEY, {}, {"n": 7})], token="token")

    assert read(store) == {**ROW, "n": 8}


def test_transact__same_token_for_other_writes__is_refused(rig: Rig) -> None:
    rig.store.transact([Put(CONTROL, {**ROW, "n": 1})], token="token")

    with pytest.raises(TokenReusedError):
        rig.store.transact([Put(CONTROL, {**ROW, "n": 2})], token="token")

    assert read(rig.store) == {**ROW, "n": 1}


def test_transact__hundred_writes_with_a_token__are_too_many(rig: Rig) -> None:
    writes = [Put(CONTROL, {**ROW, "SK": str(number)}) for number in range(100)]

    with pytest.raises(TransactionLimitError, match="99"):
        rig.store.transact(writes, token="token")
    rig.store.transact(writes[:99], token="token")
    rig.store.transact(writes)

    assert len(rig.store.query(Query(table=CONTROL, partition="p", limit=1000)).items) == 100


# Answers that are only parts.


def test_get_many__keys_left_unprocessed__are_asked_for_again(rig: Rig) -> None:
    keys = [Key("p", f"{number:03}") for number in range(120)]
    rig.store.batch_write([Put(CONTROL, {"PK": "p", "SK": key.sort}) for key in keys])
    unread = computed(lambda request: {"Responses": {}, "UnprocessedKeys": request["RequestItems"]})
    half_read = narrowed(
        lambda request: {"RequestItems": _some_keys(request, slice(0, None, 2))},
        lambda request, answer: {**answer, "UnprocessedKeys": _some_keys(request, slice(1, None, 2))},
    )
    rig.faults.inject("BatchGetItem", unread, half_read, unread)

    found = rig.store.get_many(CONTROL, [*keys, keys[0], Key("p", "none")])

    assert [item and item["SK"] for item in found] == [*(key.sort for key in keys), "000", None]


def _some_keys(request: dict[str, Any], part: slice) -> dict[str, Any]:
    return {table: {**asked, "Keys": asked["Keys"][part]} for table, asked in request["RequestItems"].items()}


def test_get_many__keys_never_processed__is_throttled(rig: Rig) -> None:
    unread = computed(lambda request: {"Responses": {}, "UnprocessedKeys": request["RequestItems"]})
    rig.faults.inject("BatchGetItem", *[unread] * ALWAYS)

    with pytest.raises(ThrottledError, match="did not process keys"):
        rig.brief().get_many(CONTROL, [KEY])


def test_batch_write__items_left_unprocessed__are_written_again(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "SK": "gone"})
    undone = computed(lambda request: {"UnprocessedItems": request["RequestItems"]})
    rig.faults.inject("BatchWriteItem", undone, undone)

    puts = [Put(CONTROL, {"PK": "q", "SK": f"{number:03}"}) for number in range(60)]
    rig.store.batch_write([*puts, Delete(CONTROL, Key("p", "gone"))])

    assert len(rig.store.query(Query(table=CONTROL, partition="q")).items) == 60
    assert read(rig.store, Key("p", "gone")) is None
    sizes = [sum(map(len, request["RequestItems"].values())) for request in rig.faults.requests["BatchWriteItem"]]
    assert sizes == [25, 25, 25, 25, 11]


def test_batch_write__items_never_processed__is_throttled(rig: Rig) -> None:
    undone = computed(lambda request: {"UnprocessedItems": request["RequestItems"]})
    rig.faults.inject("BatchWriteItem", *[undone] * ALWAYS)

    with pytest.raises(ThrottledError, match="did not process writes"):
        rig.brief().batch_write([Put(CONTROL, ROW)])


def test_batch_write__large_items__go_in_smaller_portions(rig: Rig) -> None:
    rig.faults.inject("BatchWriteItem")
    large = [Put(CONTROL, {"PK": "q", "SK": str(number), "text": "\0" * 390_000}) for number in range(8)]

    rig.store.batch_write(large)

    sizes = [sum(map(len, request["RequestItems"].values())) for request in rig.faults.requests["BatchWriteItem"]]
    assert sizes == [7, 1]


# Items that have expired and are still there.


def expired(key: Key, **attributes: Any) -> dict[str, Any]:
    return {"PK": {"S": key.partition}, "SK": {"S": key.sort}, "ttl": {"N": str(int(time.time()) - 1)}, **attributes}


def test_read__expired_item_still_there__is_absent(rig: Rig) -> None:
    rig.put_raw(expired(KEY))

    assert read(rig.store) is None
    assert rig.store.get_raw(CONTROL, KEY) is not None
    assert rig.store.get_many(CONTROL, [KEY]) == [None]
    assert rig.store.query(Query(table=CONTROL, partition="p")).items == []


def test_write__expired_item_still_there__meets_no_item(rig: Rig) -> None:
    rig.put_raw(expired(KEY, version={"N": "1"}))

    calls: list[Callable[[], object]] = [
        lambda: rig.store.update(CONTROL, KEY, set={"n": 1}),
        lambda: rig.store.update(CONTROL, KEY, set={"n": 1}, condition=version_is(1)),
        lambda: rig.store.put(CONTROL, ROW, condition=exists()),
        lambda: rig.store.delete(CONTROL, KEY, condition=at_least("version", 1)),
        lambda: rig.store.transact([Check(CONTROL, KEY, version_is(1))]),
    ]
    for call in calls:
        with pytest.raises(ConflictError, match="the item does not exist") as caught:
            call()
        assert caught.value.current is None
    assert rig.store.delete(CONTROL, KEY) is None

    rig.put_raw(expired(KEY, version={"N": "1"}))
    rig.store.transact([Check(CONTROL, KEY, lacks("version")), Put(CONTROL, {**ROW, "SK": "t"})])
    rig.store.put(CONTROL, {**ROW, "n": 1}, condition=absent())

    assert read(rig.store) == {**ROW, "n": 1}


def test_query__pages_full_of_expired_items__finds_the_live_ones(rig: Rig) -> None:
    rig.store.put(CONTROL, {"PK": "p", "SK": "000"})
    for number in range(1, 30):
        rig.put_raw(expired(Key("p", f"{number:03}")))
    rig.store.put(CONTROL, {"PK": "p", "SK": "500"})
    rig.put_raw(expired(Key("p", "900")))

    first = rig.store.query(Query(table=CONTROL, partition="p", limit=1))
    second = rig.store.query(Query(table=CONTROL, partition="p", limit=1, cursor=first.cursor))

    assert [item["SK"] for item in (*first.items, *second.items)] == ["000", "500"]
    assert second.cursor is None


def test_query__stale_index__shows_what_was_and_never_what_has_expired(rig: Rig) -> None:
    old = {"PK": {"S": "p"}, "SK": {"S": "s"}, "due_pk": {"S": "D"}, "due_at_ms": {"N": "5"}, "n": {"N": "1"}}
    rig.store.put(CONTROL, {**ROW, "due_pk": "D", "due_at_ms": 5, "n": 2})
    gone = {**old, "SK": {"S": "gone"}, "ttl": {"N": str(int(time.time()) - 1)}}
    rig.faults.inject("Query", answered({"Items": [old, gone], "Count": 2, "ScannedCount": 2}))

    page = rig.store.query(Query(table=CONTROL, index="due-index", partition="D"))

    assert page.items == [{**ROW, "due_pk": "D", "due_at_ms": 5, "n": 1}]
    assert page.cursor is None
    with pytest.raises(ConflictError) as caught:
        rig.store.update(CONTROL, KEY, set={"n": 3}, condition=equals("n", page.items[0]["n"]))
    assert caught.value.current is not None
    assert caught.value.current["n"] == 2


# What a retry will not cure.


def test_call__table_missing__names_it_and_the_remedy(rig: Rig) -> None:
    rig.raw.delete_table(TableName="test-headgate-control")

    for name in ("get", "get_many", "query", "put", "update", "delete", "transact", "batch_write"):
        with pytest.raises(StoreIOError, match=r"test-headgate-control.*create the tables"):
            CALLS[name][1](rig.store)


@pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"])
def test_call__not_allowed__names_the_credentials(rig: Rig, code: str) -> None:
    rig.faults.inject("PutItem", refused(code))

    with pytest.raises(StoreIOError, match=f"{code}.*credentials"):
        rig.store.put(CONTROL, ROW)


def test_get__no_credentials__says_so(
    rig: Rig, ministack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    clock = SystemClock()
    store = DynamoStore.connect(
        region="us-east-1",
        endpoint_url=ministack,
        names=TableNames(),
        clock=clock,
        cursors=Cursors(Keyring.generate(clock)),
        spill=Spill(FolderBlobs(tmp_path), clock),
    )

    with pytest.raises(StoreIOError, match=r"NoCredentialsError.*credentials"):
        read(store)
    store.close()


TOO_LARGE = "Item size to update has exceeded the maximum allowed size"
WRONG_TYPE = "An operand in the update expression has an incorrect data type"
ODD = "One or more parameter values were invalid"


@pytest.mark.parametrize(
    ("message", "error"), [(TOO_LARGE, ItemTooLargeError), (WRONG_TYPE, InvalidItemError), (ODD, StoreIOError)]
)
def test_write__refused_as_invalid__says_what_dynamodb_said(rig: Rig, message: str, error: type[HeadgateError]) -> None:
    invalid = refused("ValidationException", message)
    rig.faults.inject("UpdateItem", invalid)
    rig.faults.inject("TransactWriteItems", invalid, canceled("None", {"Code": "ValidationError", "Message": message}))
    writes = [Put(CONTROL, ROW), Put(CONTROL, {**ROW, "SK": "t"})]

    for call in (
        lambda: rig.store.update(CONTROL, KEY, set={"n": 1}),
        lambda: rig.store.transact(writes),
        lambda: rig.store.transact(writes),
    ):
        with pytest.raises(error, match=message) as caught:
            call()
        assert caught.type is error


def test_transact__condition_failed_beside_other_reasons__is_a_conflict(rig: Rig) -> None:
    current = {"PK": {"S": "p"}, "SK": {"S": "s"}, "n": {"N": "1"}}
    reasons = ("TransactionConflict", {"Code": "ConditionalCheckFailed", "Item": current}, "ConditionalCheckFailed")
    rig.faults.inject("TransactWriteItems", canceled(*reasons))
    writes = [Put(CONTROL, {**ROW, "SK": str(number)}, absent()) for number in range(3)]

    with pytest.raises(ConflictError, match=r"table headgate-control, item \('p', '1'\): absent") as caught:
        rig.store.transact(writes)

    assert caught.value.write_index == 1
    assert caught.value.failures == {1: {**ROW, "n": 1}, 2: None}
    assert caught.value.current == {**ROW, "n": 1}


def test_conflict__spilled_attribute__is_restored_in_current(rig: Rig) -> None:
    rig.store.put(CONTROL, {**ROW, "text": "x" * 500_000})

    with pytest.raises(ConflictError) as single:
        rig.store.put(CONTROL, ROW, condition=absent())
    with pytest.raises(ConflictError) as together:
        rig.store.transact([Check(CONTROL, KEY, absent())])

    for caught in (single, together):
        assert caught.value.current is not None
        assert len(caught.value.current["text"]) == 500_000


# The end of a store.


def test_close__twice__every_call_after_says_closed(rig: Rig) -> None:
    store = rig.open()
    store.query_many([Query(table=CONTROL, partition="p"), Query(table=CONTROL, partition="q")])
    store.close()
    store.close()
    query = Query(table=CONTROL, partition="p")
    calls: list[Callable[[], object]] = [
        *(lambda call=call: call(store) for _, call in CALLS.values()),
        lambda: store.get_raw(CONTROL, KEY),
        lambda: store.query_many([query]),
        lambda: store.query_many([query, query]),
        lambda: store.changes(SIGNAL_STATE, "c", start=StreamStart.NEWEST),
        lambda: store.checkpoint(SIGNAL_STATE, "c", "{}"),
        lambda: store.submit([Put(CONTROL, ROW)], print),
        store.generation,
        lambda: store.wait(0, 0),
        store.sweep,
        store.create_tables,
        store.check_tables,
    ]

    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


def test_get__carried_over_a_fork__is_refused(rig: Rig) -> None:
    child = os.fork()
    if child == 0:
        try:
            read(rig.store)
        except StoreClosedError:
            os._exit(0)
        finally:
            os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(rig.store) is None


def test_wait__long_timeout__returns_when_another_process_may_have_committed(rig: Rig) -> None:
    generation = rig.store.generation()

    started = time.monotonic()
    assert rig.store.wait(generation, 60) > generation
    assert time.monotonic() - started < 10
