"""Every backend of the store port, behind one fixture, and what the contract's tests share.

`store` runs a test on each backend. A module that needs other tables than the usual ones names them in a module-level
constant `TABLES`; a module that reads no index says `READS_INDEXES = False`. Time is virtual and starts in 2040, so
that no emulator deletes by the machine's clock what a test still reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import boto3
import msgspec
import pytest
from mypy_boto3_dynamodb import DynamoDBClient
from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient

from headgate.clock import VirtualClock
from headgate.errors import HeadgateError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import RawItems, Spill
from headgate.store.catalogue.tables import (
    CONTROL,
    EVIDENCE_CACHE,
    FANOUT,
    HEALTH_CHECK,
    IDEMPOTENCY,
    PIPELINES,
    SIGNAL_STATE,
    STREAM_CHECKPOINTS,
    TURNS,
)
from headgate.store.dynamodb.client import client_config
from headgate.store.dynamodb.store import DynamoStore
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Change, Page, Query, StreamStart
from headgate.store.model.schema import KeyPart, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sharded_store import ShardedStore
from headgate.store.sqlite.store import SqliteStore
from headgate.store.stats import StoreStats
from headgate.store.table_names import TableNames
from tests.contract.first_use import TablesWhenUsed
from tests.ministack import REGION, DynamoDBLocal, Ministack, fresh_account
from tests.stores import lay_database

DYNAMODB_LOCAL: Final = os.environ.get("HEADGATE_TEST_DYNAMODB_LOCAL")
DYNAMODB_BACKENDS: Final = ["dynamodb", "dynamodb-local"] if DYNAMODB_LOCAL else ["dynamodb"]
BACKENDS: Final = ["sqlite", "sqlite-lagging", *DYNAMODB_BACKENDS]
USUAL_TABLES: Final = (
    PIPELINES, SIGNAL_STATE, EVIDENCE_CACHE, FANOUT, TURNS, CONTROL, IDEMPOTENCY, STREAM_CHECKPOINTS, HEALTH_CHECK,
)  # fmt: skip
NOW: Final = 2_208_988_800  # 2040-01-01T00:00:00Z
INDEX_LAG_SECONDS: Final = 0.05

T = TypeVar("T")


class AnyStore(Store, RawItems, Protocol):
    """What every backend is: the port, the raw reads that the sweep of blobs needs, and counters."""

    @property
    def stats(self) -> StoreStats: ...


class OpenStore(Protocol):
    """Opens one more handle on the data of this test, as another process would."""

    def __call__(self, *, keyring: Keyring = ..., has_notices: bool = ...) -> AnyStore: ...


class Eventually(Protocol):
    """Reads again and again until the answer is accepted, as a reader of an index must."""

    def __call__(self, read: Callable[[], T], accept: Callable[[T], bool]) -> T: ...


class Aws:
    """Clients of one fresh account of a DynamoDB emulator."""

    def __init__(self, session: boto3.Session, endpoint_url: str) -> None:
        options: dict[str, Any] = {
            "endpoint_url": endpoint_url,
            "aws_access_key_id": fresh_account(),
            "aws_secret_access_key": "-",
            "config": client_config(10.0),
        }
        self.dynamodb: DynamoDBClient = session.client("dynamodb", **options)
        self.streams: DynamoDBStreamsClient = session.client("dynamodbstreams", **options)

    def close(self) -> None:
        self.dynamodb.close()
        self.streams.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(float(NOW))


@pytest.fixture
def keyring(clock: VirtualClock) -> Keyring:
    return Keyring.generate(clock)


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


@pytest.fixture
def spill(blobs: FolderBlobs, clock: VirtualClock) -> Spill:
    return Spill(blobs, clock)


@pytest.fixture
def names() -> TableNames:
    """The physical table names; a module may override them."""
    return TableNames("test-")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every backend, unless it names its own.

    The store whose indexes lag differs from the other in index reads alone: a module that reads no index leaves it out.
    """
    if "backend" not in metafunc.fixturenames:
        return
    if any(mark.args[0] == "backend" for mark in metafunc.definition.iter_markers("parametrize")):
        return
    reads_indexes = getattr(metafunc.module, "READS_INDEXES", True)
    chosen = [name for name in BACKENDS if reads_indexes or name != "sqlite-lagging"]
    metafunc.parametrize("backend", chosen, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def aws(request: pytest.FixtureRequest, backend: str) -> Iterator[Aws]:
    """Clients of the emulator behind `backend`, with an account that no other test has."""
    endpoint = "ministack" if backend == "dynamodb" else "dynamodb_local"
    clients = Aws(request.getfixturevalue("aws_session"), request.getfixturevalue(endpoint))
    yield clients
    clients.close()


@pytest.fixture
def open_store(
    request: pytest.FixtureRequest, backend: str, clock: VirtualClock, keyring: Keyring, spill: Spill,
    names: TableNames, tmp_path: Path,
) -> Iterator[OpenStore]:  # fmt: skip
    opened: list[AnyStore] = []
    aws: Aws | None = request.getfixturevalue("aws") if backend in DYNAMODB_BACKENDS else None

    def open_dynamodb(clients: Aws, cursors: Cursors, *, has_notices: bool) -> AnyStore:
        if not opened:
            TablesWhenUsed(clients.dynamodb, names, getattr(request.module, "TABLES", USUAL_TABLES))
        store = DynamoStore(
            client=clients.dynamodb,
            streams=clients.streams,
            names=names,
            clock=clock,
            cursors=cursors,
            spill=spill,
            has_notices=has_notices,
        )
        # As wiring opens it.
        return ShardedStore(store, cursors)

    def open_sqlite(cursors: Cursors) -> AnyStore:
        lag_seconds = INDEX_LAG_SECONDS if backend == "sqlite-lagging" else 0.0
        path = tmp_path / "store.db"
        if names.physical(PIPELINES) == f"test-{PIPELINES.name}":
            lay_database(tmp_path, name=path.name, prefix="test-")
        store = SqliteStore.open(
            path, names=names, clock=clock, cursors=cursors, spill=spill, index_lag_seconds=lag_seconds
        )
        # The indexes have been looked at before the test writes: only then can their answers be old.
        store.query(Query(table=PIPELINES, index="GSI1", partition="nobody"))
        return store

    def open_one(*, keyring: Keyring = keyring, has_notices: bool = False) -> AnyStore:
        cursors = Cursors(keyring)
        store = open_sqlite(cursors) if aws is None else open_dynamodb(aws, cursors, has_notices=has_notices)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> AnyStore:
    """A fresh store, once for each backend."""
    return open_store()


@pytest.fixture
def eventually(clock: VirtualClock) -> Eventually:
    def poll(read: Callable[[], T], accept: Callable[[T], bool]) -> T:
        deadline = time.monotonic() + 60
        while not accept(answer := read()):
            assert time.monotonic() < deadline, f"still not accepted after 60 s: {answer!r:.2000}"
            # Whether a backend's index lags by the machine's clock or by the test's, it catches up.
            clock.advance(INDEX_LAG_SECONDS / 4)
            time.sleep(0.002)
        return answer

    return poll


@pytest.fixture(scope="session")
def aws_session() -> boto3.Session:
    """One session for all tests: loading the service models is what makes a client slow to build."""
    return boto3.Session(region_name=REGION)


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of MiniStack, one for each test process."""
    server = Ministack.start(tmp_path_factory.mktemp("ministack"))
    yield server.endpoint
    server.stop()


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[str]:
    """The endpoint of DynamoDB Local, from the folder that HEADGATE_TEST_DYNAMODB_LOCAL names."""
    assert DYNAMODB_LOCAL is not None
    server = DynamoDBLocal.start(Path(DYNAMODB_LOCAL))
    yield server.endpoint
    server.stop()


class Reader:
    """A consumer that checkpoints each batch once it has dealt with it."""

    def __init__(self, store: Store, eventually: Eventually, table: Table = PIPELINES, name: str = "reader") -> None:
        self._store = store
        self._eventually = eventually
        self._table = table
        self._name = name
        self.seen: list[Change] = []

    def take(self, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST) -> list[Change]:
        batch = self._store.changes(self._table, self._name, limit=limit, start=start)
        self._store.checkpoint(self._table, self._name, batch.position)
        self.seen += batch.changes
        return batch.changes

    def take_all(self) -> list[Change]:
        """Return every change so far."""
        self.take()
        return self.seen

    def read(self, count: int) -> list[Change]:
        """Return the first `count` changes, and see that none follows."""

        self._eventually(self.take_all, lambda seen: len(seen) >= count)
        self.take()
        return self.seen


def pages_of(store: Store, query: Query, *, between: Callable[[int], None] = lambda _: None) -> list[Page]:
    """Follow the cursors from the first page of `query` to the last; `between` gets how many pages there were."""
    pages: list[Page] = []
    cursor: str | None = None
    while True:
        pages.append(store.query(msgspec.structs.replace(query, cursor=cursor)))
        cursor = pages[-1].cursor
        if cursor is None:
            return pages
        assert len(pages) < 1_000, "the cursors never end"
        between(len(pages))


def items_of(pages: Sequence[Page]) -> list[Item]:
    return [item for page in pages for item in page.items]


def contents(store: Store, table: Table, *partitions: KeyPart) -> list[Item]:
    """Everything that is in some partitions of a table, read consistently."""
    queries = [Query(table=table, partition=partition, limit=1000, consistent=True) for partition in partitions]
    return [item for query in queries for item in items_of(pages_of(store, query))]


def assert_refused(
    error: type[HeadgateError], call: Callable[[], object], unchanged: Callable[[], object]
) -> HeadgateError:
    """Assert that `call` raises exactly `error` and that what `unchanged` reads is the same before and after."""
    before = unchanged()
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    assert unchanged() == before
    return caught.value
