"""Lineage on a real store: what specs add and remove, which of them count, and what a crash leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import (
    AlreadyExistsError,
    HeadgateError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    PayloadTooLargeError,
)
from headgate.health.lineage import service as lineage
from headgate.health.lineage.manifests import Outcome
from headgate.health.lineage.rows import manifest_key, ties_key
from headgate.health.lineage.service import Applied, Lineage, ProducerLineage
from headgate.health.lineage.specs import EDGES_MAX, LineageSpec, bare_name, spec_id
from headgate.health.model.enums import Confidence, EntityType
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import COLUMN_READERS, CONTROL, DATASET_READERS, DATASET_WRITERS
from headgate.store.model.requests import Query, Write
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

ORDERS: Final = "urn:dp:orders:order_created:v1"
PAYMENTS: Final = "urn:dp:payments:paid:v1"
REVENUE: Final = "urn:dp:finance:revenue:v1"
JOB: Final = "job:orders-delta-landing"
DAY: Final = 24 * 3600


class CrashError(Exception):
    """The process is gone."""


class CrashingStore:
    """A store whose user dies at the n-th call, just before it or, having been carried out, just after."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls = 0
        self.crash_at = 0
        self.is_applied = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._counted(found) if name in ("get", "get_many", "query", "transact", "put", "update") else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.crash_at and not self.is_applied:
                raise CrashError
            answer = call(*args, **options)
            if self.calls == self.crash_at:
                raise CrashError
            return answer

        return counted


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


@pytest.fixture
def kept(store: SqliteStore, clock: VirtualClock) -> Lineage:
    return Lineage(store, clock)


def at(clock: VirtualClock, seconds: float = 0) -> str:
    return instant(int((clock.seconds() + seconds) * 1000))


def spec(
    clock: VirtualClock,
    commit: str,
    *,
    seconds: float = 0,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    producer: str = JOB,
    **more: Any,
) -> LineageSpec:
    return LineageSpec(
        spec_id=f"lspec:{producer}:git:{commit}",
        producer_id=producer,
        updated_at=at(clock, seconds),
        dataset_reads=tuple(reads),
        dataset_writes=tuple(writes),
        **more,
    )


def datasets(count: int, start: int = 0) -> list[str]:
    return [f"urn:dp:wide:t{number:04d}" for number in range(start, start + count)]


def known(kept: Lineage, producer: str = JOB) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = kept.by_producer(producer)
    return found.dataset_reads, found.dataset_writes


def names(entries: lineage.Entries) -> list[str]:
    return [entry.entity_id for entry in entries.entries]


# What specs add and remove.


def test_update__a_first_spec__is_found_from_datasets_and_columns(kept: Lineage, clock: VirtualClock) -> None:
    column = f"urn:col:{ORDERS}:customer_id"
    given = spec(
        clock, "9f31c2d", reads=[PAYMENTS], writes=[ORDERS], column_writes=(column,),
        column_reads=(f"urn:col:{PAYMENTS}:id",), producer_name="orders-delta-landing",
        confidence=Confidence.MEDIUM,
    )  # fmt: skip

    applied = kept.update(given)

    assert applied == Applied(outcome=Outcome.APPLIED, spec_id=given.spec_id, added=4)
    (writer,) = kept.writers(ORDERS).entries
    assert (writer.entity_id, writer.entity_name, writer.entity_type) == (JOB, "orders-delta-landing", EntityType.JOB)
    assert (writer.confidence, writer.spec_id, writer.commit) == (Confidence.MEDIUM, given.spec_id, "9f31c2d")
    assert writer.updated_at == given.updated_at
    assert names(kept.readers(PAYMENTS)) == names(kept.column_writers(column)) == [JOB]
    assert names(kept.column_readers(f"urn:col:{PAYMENTS}:id")) == [JOB]
    assert kept.readers(ORDERS).entries == []


def test_update__a_row__has_the_attributes_and_the_expiry_that_are_documented(
    kept: Lineage, store: SqliteStore, clock: VirtualClock
) -> None:
    kept.update(spec(clock, "9f31c2d", reads=[PAYMENTS], writes=[ORDERS]))

    (row,) = store.query(Query(table=DATASET_WRITERS, partition=ORDERS)).items
    (other,) = store.query(Query(table=DATASET_READERS, partition=PAYMENTS)).items
    assert row == {
        "PK": ORDERS, "SK": f"producer#{JOB}", "producer_id": JOB, "producer_name": "orders-delta-landing",
        "producer_type": "JOB", "confidence": "HIGH", "spec_id": f"lspec:{JOB}:git:9f31c2d", "commit": "9f31c2d",
        "updated_at": at(clock), "ttl": int(clock.seconds()) + 90 * DAY,
    }  # fmt: skip
    assert other["SK"] == f"consumer#{JOB}"
    assert {"consumer_id", "consumer_name", "consumer_type"} <= other.keys()


def test_update__a_newer_spec_without_an_edge__removes_it(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", reads=[PAYMENTS, ORDERS], writes=[REVENUE]))

    applied = kept.update(spec(clock, "b2", seconds=60, reads=[PAYMENTS], writes=[REVENUE]))

    assert (applied.outcome, applied.added, applied.removed) == (Outcome.APPLIED, 0, 1)
    assert kept.readers(ORDERS).entries == []
    assert known(kept) == ((PAYMENTS,), (REVENUE,))
    assert {entry.spec_id for entry in kept.writers(REVENUE).entries} == {f"lspec:{JOB}:git:b2"}


def test_update__an_older_spec__is_ignored(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "b2", reads=[PAYMENTS], writes=[REVENUE]))

    applied = kept.update(spec(clock, "a1", seconds=-60, reads=[ORDERS], writes=[REVENUE]))

    assert applied.outcome is Outcome.STALE
    assert known(kept) == ((PAYMENTS,), (REVENUE,))
    with pytest.raises(NotFoundError):
        kept.spec(f"lspec:{JOB}:git:a1")


def test_update__a_spec_confirmed_later__outdates_one_from_in_between(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", seconds=-100, reads=[PAYMENTS]))
    assert kept.update(spec(clock, "a1", reads=[PAYMENTS])).outcome is Outcome.REFRESHED

    assert kept.update(spec(clock, "b2", seconds=-50, reads=[ORDERS])).outcome is Outcome.STALE
    assert known(kept) == ((PAYMENTS,), ())


def test_update__the_same_spec_again__writes_nothing(kept: Lineage, store: SqliteStore, clock: VirtualClock) -> None:
    given = spec(clock, "a1", reads=[PAYMENTS], writes=[REVENUE])
    kept.update(given)
    commits = store.stats.commits

    assert kept.update(given) == Applied(outcome=Outcome.UNCHANGED, spec_id=given.spec_id)
    assert store.stats.commits == commits


def test_update__an_earlier_commit_put_back__counts_again(kept: Lineage, clock: VirtualClock) -> None:
    first = spec(clock, "a1", reads=[PAYMENTS])
    kept.update(first)
    kept.update(spec(clock, "b2", seconds=1, reads=[ORDERS]))

    kept.update(replace(first, updated_at=at(clock, 2)))

    assert known(kept) == ((PAYMENTS,), ())


@pytest.mark.parametrize("seconds", [-60, 0, 60])
def test_update__another_content_under_a_known_id__is_a_conflict(
    kept: Lineage, clock: VirtualClock, seconds: int
) -> None:
    given = spec(clock, "a1", reads=[PAYMENTS])
    kept.update(given)

    with pytest.raises(AlreadyExistsError, match="other content"):
        kept.update(replace(given, dataset_reads=(ORDERS,), updated_at=at(clock, seconds)))

    assert known(kept) == ((PAYMENTS,), ())


def test_update__an_empty_spec__leaves_nothing(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", reads=[PAYMENTS], writes=[REVENUE]))

    kept.update(spec(clock, "b2", seconds=1))

    assert kept.by_producer(JOB) == ProducerLineage(
        producer_id=JOB, dataset_writes=(), dataset_reads=(), column_writes=(), column_reads=(), complete=True
    )


def test_update__specs_of_two_producers__do_not_touch_each_other(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", reads=[ORDERS], writes=[REVENUE]))
    kept.update(spec(clock, "a1", reads=[ORDERS], writes=[REVENUE], producer="service:orders-delta-landing"))

    kept.update(spec(clock, "b2", seconds=1, writes=[REVENUE]))

    assert names(kept.readers(ORDERS)) == ["service:orders-delta-landing"]
    assert names(kept.writers(REVENUE)) == [JOB, "service:orders-delta-landing"]


# Specs that are not complete.


def test_update__a_partial_spec__adds_and_removes_nothing(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", reads=[PAYMENTS], writes=[REVENUE]))

    applied = kept.update(spec(clock, "b2", seconds=1, reads=[ORDERS], is_complete=False))

    assert (applied.outcome, applied.added, applied.removed) == (Outcome.APPLIED, 1, 0)
    assert known(kept) == ((ORDERS, PAYMENTS), (REVENUE,))


def test_update__a_partial_spec_of_what_is_known__writes_nothing(
    kept: Lineage, store: SqliteStore, clock: VirtualClock
) -> None:
    kept.update(spec(clock, "a1", reads=[PAYMENTS], writes=[REVENUE]))
    commits = store.stats.commits

    applied = kept.update(spec(clock, "b2", seconds=1, reads=[PAYMENTS], is_complete=False))

    assert applied.outcome is Outcome.UNCHANGED
    assert store.stats.commits == commits


def test_update__a_complete_spec_after_partial_ones__removes_what_they_added_before_it(
    kept: Lineage, clock: VirtualClock
) -> None:
    kept.update(spec(clock, "a1", reads=[ORDERS], is_complete=False))
    kept.update(spec(clock, "b2", seconds=20, reads=[PAYMENTS], is_complete=False))

    applied = kept.update(spec(clock, "c3", seconds=10, writes=[REVENUE]))

    assert applied.removed == 1
    assert known(kept) == ((PAYMENTS,), (REVENUE,)), "what was added after its moment stays"


def test_update__a_partial_spec_older_than_a_complete_one__is_ignored(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", reads=[ORDERS]))

    assert kept.update(spec(clock, "b2", seconds=-1, reads=[PAYMENTS], is_complete=False)).outcome is Outcome.STALE


# Expiry.


def test_update__a_job_that_goes_on_for_a_year__never_loses_its_edges(
    kept: Lineage, store: SqliteStore, clock: VirtualClock
) -> None:
    given = spec(clock, "a1", reads=[PAYMENTS], writes=[REVENUE])
    for _ in range(0, 365, 30):
        kept.update(replace(given, updated_at=at(clock)))
        clock.advance(30 * DAY)
        store.sweep()

    assert known(kept) == ((PAYMENTS,), (REVENUE,))
    assert kept.spec(given.spec_id).dataset_reads == (PAYMENTS,)


def test_update__confirmed_many_times_a_day__writes_rows_once_a_day(
    kept: Lineage, store: SqliteStore, clock: VirtualClock
) -> None:
    given = spec(clock, "a1", reads=[PAYMENTS])
    written = set()
    for _ in range(48):
        kept.update(replace(given, updated_at=at(clock)))
        written.add(store.query(Query(table=DATASET_READERS, partition=PAYMENTS)).items[0]["updated_at"])
        clock.advance(3600)

    assert len(written) == 2


def test_edges__not_confirmed_for_ninety_days__are_gone(kept: Lineage, clock: VirtualClock) -> None:
    kept.update(spec(clock, "a1", reads=[PAYMENTS]))

    clock.advance(90 * DAY + 1)

    assert kept.readers(PAYMENTS).entries == []
    assert known(kept) == ((), ())
    assert kept.update(spec(clock, "b2", reads=[PAYMENTS])).outcome is Outcome.APPLIED
    assert names(kept.readers(PAYMENTS)) == [JOB]


# Large specs, and crashes.


def everything(store: Store, targets: Sequence[str], producer: str) -> list[str]:
    """Return all rows that a producer has, as text in which every producer is called alike."""
    found: list[Item] = []
    for table in (DATASET_WRITERS, DATASET_READERS):
        for page in store.query_many([Query(table=table, partition=target, limit=1000) for target in targets]):
            found += [row for row in page.items if row["SK"].endswith(f"#{producer}")]
    for key in (manifest_key(producer), ties_key(producer)):
        row = store.get(CONTROL, key, consistent=True)
        assert row is not None
        # How often a version was moved differs between one telling of the story and another.
        found.append({**row, "version": 0, "due_at_ms": 0})
    return [repr(row).replace(bare_name(producer), "somebody") for row in found]


def test_update__three_hundred_edges__are_all_there_and_nothing_is_pending(
    kept: Lineage, store: SqliteStore, clock: VirtualClock
) -> None:
    applied = kept.update(spec(clock, "a1", reads=datasets(300)))

    assert applied.added == 300
    assert known(kept)[0] == tuple(datasets(300))
    row = store.get(CONTROL, manifest_key(JOB))
    assert row is not None
    assert not {"pending", "due_pk", "due_at_ms", "done"} & row.keys()


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("healer", ["again", "sweep", "next"])
def test_update__a_crash_at_any_call_of_a_large_spec__is_finished_by_the_caller_that_comes_next(
    kept: Lineage, store: SqliteStore, clock: VirtualClock, healer: str, is_applied: bool
) -> None:
    """Half of the edges go, half are new: the crash is tried at every single call of the store."""
    targets = [*datasets(450), REVENUE]
    outcomes: list[list[str]] = []
    has_crashed = True
    while has_crashed:
        producer = f"job:p{len(outcomes) + 1:03d}"
        first = spec(clock, "a1", seconds=-10, reads=datasets(300), producer=producer)
        second = spec(clock, "b2", reads=datasets(300, start=150), producer=producer)
        third = spec(clock, "c3", seconds=1, reads=datasets(300, start=150), writes=[REVENUE], producer=producer)
        kept.update(first)
        crashing = CrashingStore(store)
        crashing.crash_at, crashing.is_applied = len(outcomes) + 1, is_applied
        try:
            Lineage(crashing, clock).update(second)
            has_crashed = False
        except CrashError:
            has_crashed = True
        if healer == "sweep":
            clock.step(lineage.SWEEP_AFTER_MS / 1000 + 1)
            kept.sweep()
            assert kept.sweep() == 0
            clock.step(-lineage.SWEEP_AFTER_MS / 1000 - 1)
        kept.update(third if healer == "next" else second)
        outcomes.append(everything(store, targets, producer))

    assert len(outcomes) > 5, "there was a crash within the steps"
    assert len(outcomes[-1]) == (303 if healer == "next" else 302)
    assert all(outcome == outcomes[-1] for outcome in outcomes)


@pytest.mark.parametrize("count", [95, 96, 97, 191, 192, 193])
def test_update__as_many_edges_as_fit_into_steps_or_one_more__are_all_there_and_all_removed(
    kept: Lineage, clock: VirtualClock, count: int
) -> None:
    kept.update(spec(clock, "a1", reads=datasets(count)))
    assert known(kept)[0] == tuple(datasets(count))

    assert kept.update(spec(clock, "b2", seconds=1)).removed == count
    assert known(kept)[0] == ()


@pytest.mark.parametrize("overtaken_at", [2, 3, 4, 5])
def test_update__overtaken_by_a_newer_spec_between_two_steps__does_not_write_on(
    kept: Lineage, store: SqliteStore, clock: VirtualClock, overtaken_at: int
) -> None:
    newer = spec(clock, "b2", seconds=1, writes=[REVENUE])
    transactions: list[int] = []

    class Overtaken:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def transact(self, writes: Sequence[Write]) -> None:
            transactions.append(len(writes))
            if len(transactions) == overtaken_at:
                kept.update(newer)
            store.transact(writes)

    Lineage(Overtaken(), clock).update(spec(clock, "a1", reads=datasets(300)))  # type: ignore[arg-type]

    assert len(transactions) >= overtaken_at
    assert known(kept) == ((), (REVENUE,))


def test_update__two_at_once_of_one_producer__leave_one_of_them_whole(store: SqliteStore, clock: VirtualClock) -> None:
    specs = [
        spec(clock, f"c{number}", seconds=-number, reads=datasets(250, start=100 * number), writes=[REVENUE])
        for number in range(6)
    ]
    errors: list[BaseException] = []

    def send(given: LineageSpec) -> None:
        try:
            Lineage(store, clock).update(given)
        except HeadgateError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=send, args=(given,)) for given in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    kept = Lineage(store, clock)
    assert errors == []
    assert known(kept) == (tuple(datasets(250)), (REVENUE,))
    assert [kept.readers(urn).entries for urn in datasets(500, start=250)] == [[]] * 500


def test_update__five_thousand_columns__are_kept_and_removed(
    kept: Lineage, store: SqliteStore, clock: VirtualClock
) -> None:
    columns = tuple(f"urn:col:{ORDERS}:c{number}" for number in range(5_000))
    kept.update(spec(clock, "a1", reads=[ORDERS], column_reads=columns))
    assert names(kept.column_readers(columns[4_999])) == [JOB]
    assert len(kept.spec(f"lspec:{JOB}:git:a1").column_reads) == 5_000

    applied = kept.update(spec(clock, "b2", seconds=1, reads=[ORDERS], column_reads=columns[:1]))

    assert applied.removed == 4_999
    assert store.query(Query(table=COLUMN_READERS, partition=columns[4_999])).items == []
    assert kept.by_producer(JOB).column_reads == columns[:1]


# What is refused.


@pytest.mark.parametrize(
    "given",
    [
        "lspec:orders-delta-landing:git:9f31c2d", "lspec:job:orders-delta-landing:git:9f31c2d",
        "lspec:orders_svc:tag:v1.2.3", "lspec:x:branch:feature/a", "lspec:job:a.b~c:openlineage:0011aaff",
    ],
)  # fmt: skip
def test_spec_id__of_any_known_form__is_read(given: str) -> None:
    assert ":".join(("lspec", *spec_id(given).__reduce__()[1])) == given


@pytest.mark.parametrize(
    "given",
    ["", "lspec", "lspec:x:git", "orders:git:1", "lspec:a b:git:1", "lspec:a#b:git:1", "lspec:" + "x" * 900 + ":git:1"],
)
def test_spec_id__of_another_form__is_refused(given: str) -> None:
    with pytest.raises(InvalidIdError, match="lspec:PRODUCER:SOURCE:COMMIT"):
        spec_id(given)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"spec_id": "lspec:another:git:1"}, InvalidIdError),
        ({"producer_id": "job:with space"}, InvalidIdError),
        ({"dataset_reads": ("not a urn",)}, InvalidIdError),
        ({"column_reads": ("urn:col:orders",)}, InvalidIdError),
        ({"column_reads": (f"urn:col:{ORDERS}:{'ü' * 512}",)}, InvalidIdError),
        ({"updated_at": "2026-01-15 10:00"}, InvalidPayloadError),
        ({"updated_at": "2999-01-15T10:00:00Z"}, InvalidPayloadError),
        ({"ttl_seconds": 0}, InvalidPayloadError),
        ({"dataset_reads": tuple(datasets(EDGES_MAX + 1))}, PayloadTooLargeError),
    ],
)
def test_update__what_makes_no_sense__is_refused_before_anything_is_written(
    kept: Lineage, store: SqliteStore, clock: VirtualClock, change: dict[str, Any], error: type[HeadgateError]
) -> None:
    commits = store.stats.commits

    with pytest.raises(error):
        kept.update(replace(spec(clock, "a1", reads=[PAYMENTS]), **change))

    assert store.stats.commits == commits


# Looking up.


def test_specs__of_a_producer__are_paged_and_found_without_its_kind(kept: Lineage, clock: VirtualClock) -> None:
    for number in range(5):
        kept.update(spec(clock, f"c{number}", seconds=number, reads=[ORDERS]))

    page = kept.specs("orders-delta-landing", limit=3)
    rest = kept.specs(JOB, limit=3, cursor=page.cursor)

    assert [each.commit for each in (*page.specs, *rest.specs)] == [f"c{number}" for number in range(5)]
    assert rest.cursor is None
    assert kept.specs("job:nobody").specs == []


def test_spec__with_the_kind_left_out_of_its_id__is_found(kept: Lineage, clock: VirtualClock) -> None:
    given = replace(spec(clock, "9f31c2d", reads=[ORDERS]), spec_id="lspec:orders-delta-landing:git:9f31c2d")
    kept.update(given)

    assert kept.spec(given.spec_id).producer_id == JOB
    with pytest.raises(NotFoundError, match="never sent"):
        kept.spec("lspec:orders-delta-landing:git:000000")


def test_readers__more_than_a_page__come_in_pages(kept: Lineage, clock: VirtualClock) -> None:
    for number in range(7):
        kept.update(spec(clock, "a1", reads=[ORDERS], producer=f"job:p{number}"))

    first = kept.readers(ORDERS, limit=5)
    second = kept.readers(ORDERS, limit=5, cursor=first.cursor)

    assert [*names(first), *names(second)] == [f"job:p{number}" for number in range(7)]
