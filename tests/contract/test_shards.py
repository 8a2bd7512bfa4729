"""Shards: rows of one partition value that are spread over several partitions read like rows of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import ConflictError, CursorError, InvalidItemError
from headgate.store.catalogue.tables import ACTIVITIES, EVENTS, EXECUTIONS, IDEMPOTENCY, PIPELINES, STREAM_CHECKPOINTS
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, differs, equals, exists, one_of
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Check, Delete, Put, Query, Range, Sort, Update
from headgate.store.model.schema import Key, Shards, Table
from headgate.store.model.shards import shard_of
from headgate.store.model.values import Item
from headgate.store.sharded_store import ShardedStore
from tests.contract.conftest import AnyStore, Eventually, OpenStore, items_of, pages_of

TABLES = (ACTIVITIES, EVENTS, EXECUTIONS, IDEMPOTENCY, PIPELINES, STREAM_CHECKPOINTS)
ROWS = 40
DAY = "20400101"


def _sharded(table: Table, shards: Shards | None) -> Table:
    """Return a table of the catalogue with other shards of its key and of its indexes that have any."""
    return replace(
        table,
        shards=None if table.shards is None else shards,
        indexes=tuple(
            index if index.shards is None else replace(index, shards=shards and replace(shards, of=index.shards.of))
            for index in table.indexes
        ),
    )


FOUR, ONE, SEVEN = Shards(4), Shards(1), Shards(7, earlier=(4, 1))
ACTIVITY, EVENT = _sharded(ACTIVITIES, FOUR), _sharded(EVENTS, FOUR)
QUEUE = Query(table=ACTIVITY, index="queue-index", partition="Q#default", limit=1000)
LOG = Query(table=EVENT, partition=DAY, limit=1000)


@pytest.fixture
def inner(store: AnyStore) -> AnyStore:
    """The store as it is, without shards."""
    return store.store if isinstance(store, ShardedStore) else store


@pytest.fixture
def sharded(inner: AnyStore, keyring: Keyring) -> ShardedStore:
    return ShardedStore(inner, Cursors(keyring))


def _activity(number: int, *, at: int | None = None, **more: Any) -> Item:
    return {
        "activity_id": f"act-{number:03d}",
        "queue_pk": "Q#default",
        "available_at_ms": 1000 + (number if at is None else at),
        "version": 1,
        **more,
    }


def _event(number: int, type: str = "order.paid") -> Item:
    return {"day": DAY, "event_id": f"evt_{number:03d}", "type": type, "body": "{}", "source": "shop"}


def _write(store: ShardedStore, table: Table, make: Callable[[int], Item], count: int = ROWS) -> list[Item]:
    items = [make(number) for number in range(count)]
    store.batch_write([Put(table, item) for item in items])
    return items


def _settled(store: ShardedStore, eventually: Eventually, query: Query, count: int = ROWS) -> list[Item]:
    return eventually(lambda: items_of(pages_of(store, query)), lambda found: len(found) == count)


def _rest(store: ShardedStore, query: Query, cursor: str | None) -> list[Item]:
    """Return the rows after a cursor."""
    assert cursor is not None
    page = store.query(replace(query, cursor=cursor))
    return page.items if page.cursor is None else [*page.items, *_rest(store, query, page.cursor)]


# Where rows are


def test_shards__rows_of_one_value__are_spread_and_read_as_written(
    sharded: ShardedStore, inner: AnyStore, eventually: Eventually
) -> None:
    items = _write(sharded, ACTIVITY, _activity)

    assert _settled(sharded, eventually, QUEUE) == items
    assert sharded.get_many(ACTIVITY, [ACTIVITY.key_of(item) for item in items], consistent=True) == items
    stored = inner.get_many(ACTIVITIES, [ACTIVITY.key_of(item) for item in items], consistent=True)
    numbers = {shard_of(item["queue_pk"])[1] for item in stored if item is not None}
    assert numbers == {0, 1, 2, 3}


def test_shards__rows_of_a_sharded_table__are_spread_and_read_by_key(sharded: ShardedStore, inner: AnyStore) -> None:
    items = _write(sharded, EVENT, _event)

    assert items_of(pages_of(sharded, LOG)) == items
    assert [sharded.get(EVENT, EVENT.key_of(item), consistent=True) for item in items] == items
    assert sharded.get_many(EVENT, [EVENT.key_of(item) for item in items]) == items
    plain = inner.query(Query(table=EVENTS, partition=DAY, limit=1000, consistent=True)).items
    assert 0 < len(plain) < ROWS


def test_shards__index_of_a_sharded_table__is_merged_by_its_own_order(
    sharded: ShardedStore, eventually: Eventually
) -> None:
    _write(sharded, EVENT, lambda number: _event(number, "a" if number % 2 else "b"))

    found = _settled(sharded, eventually, Query(table=EVENT, index="type-index", partition="a", limit=1000), ROWS // 2)

    assert [item["event_id"] for item in found] == [f"evt_{number:03d}" for number in range(1, ROWS, 2)]


def test_shards__values_that_are_not_spread__stay_in_one_partition(sharded: ShardedStore, inner: AnyStore) -> None:
    for number in range(8):
        sharded.put(ACTIVITY, _activity(number, lease_pk="wrk_1", lease_expires_ms=number))

    stored = inner.get_many(ACTIVITIES, [Key(f"act-{number:03d}") for number in range(8)], consistent=True)

    assert {item["lease_pk"] for item in stored if item is not None} == {"wrk_1"}


def test_shards__value_that_names_a_shard__is_refused(sharded: ShardedStore) -> None:
    with pytest.raises(InvalidItemError, match=r"queue_pk.*shard"):
        sharded.put(ACTIVITY, _activity(1, queue_pk="Q#default*2"))


# Order and pages


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_shards__pages__hold_every_row_once_in_order(
    sharded: ShardedStore, eventually: Eventually, limit: int, descending: bool
) -> None:
    # Three rows each have the same sort key.
    _write(sharded, ACTIVITY, lambda number: _activity(number, at=number // 3), 30)
    _settled(sharded, eventually, QUEUE, 30)

    pages = pages_of(sharded, replace(QUEUE, limit=limit, descending=descending))

    found = items_of(pages)
    times = [item["available_at_ms"] for item in found]
    assert times == sorted(times, reverse=descending)
    assert sorted(item["activity_id"] for item in found) == [f"act-{number:03d}" for number in range(30)]
    assert all(len(page.items) == limit for page in pages[:-1])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        (Sort(Range.BETWEEN, 1010, 1020), range(10, 21)),
        (Sort(Range.AT_MOST, 1012), range(13)),
        (Sort(Range.LESS_THAN, 1012), range(12)),
        (Sort(Range.AT_LEAST, 1030), range(30, ROWS)),
        (Sort(Range.GREATER_THAN, 1030), range(31, ROWS)),
        (Sort(Range.EQUALS, 1012), range(12, 13)),
    ],
)
def test_shards__range_over_pages__holds_the_rows_in_it(
    sharded: ShardedStore, eventually: Eventually, sort: Sort, wanted: range, descending: bool
) -> None:
    _write(sharded, ACTIVITY, _activity)
    _settled(sharded, eventually, QUEUE)

    found = items_of(pages_of(sharded, replace(QUEUE, sort=sort, limit=3, descending=descending)))

    numbers = [f"act-{number:03d}" for number in (reversed(wanted) if descending else wanted)]
    assert [item["activity_id"] for item in found] == numbers


@pytest.mark.parametrize("descending", [False, True])
def test_shards__prefix_over_pages__holds_the_rows_with_it(sharded: ShardedStore, descending: bool) -> None:
    _write(sharded, EVENT, _event)

    query = replace(LOG, sort=Sort(Range.BEGINS_WITH, "evt_01"), limit=2, descending=descending, consistent=True)
    found = [item["event_id"] for item in items_of(pages_of(sharded, query))]

    assert found == sorted((f"evt_{number:03d}" for number in range(10, 20)), reverse=descending)


def test_shards__rows_of_equal_sort_key_over_pages__come_once(sharded: ShardedStore, eventually: Eventually) -> None:
    _write(sharded, ACTIVITY, lambda number: _activity(number, at=5))
    _settled(sharded, eventually, QUEUE)

    for sort in (None, Sort(Range.EQUALS, 1005)):
        found = items_of(pages_of(sharded, replace(QUEUE, sort=sort, limit=3)))
        assert sorted(item["activity_id"] for item in found) == [f"act-{number:03d}" for number in range(ROWS)]


def test_shards__rows_written_between_two_pages__neither_hide_nor_repeat_others(
    sharded: ShardedStore, eventually: Eventually
) -> None:
    _write(sharded, ACTIVITY, lambda number: _activity(number, at=10 * number))
    _settled(sharded, eventually, QUEUE)
    first = sharded.query(replace(QUEUE, limit=10))

    # One before the position and one after it.
    sharded.put(ACTIVITY, _activity(900, at=5))
    sharded.put(ACTIVITY, _activity(901, at=205))
    _settled(sharded, eventually, QUEUE, ROWS + 2)
    rest = _rest(sharded, replace(QUEUE, limit=10), first.cursor)

    ids = [item["activity_id"] for item in [*first.items, *rest]]
    assert ids == [
        *(f"act-{number:03d}" for number in range(21)),
        "act-901",
        *(f"act-{n:03d}" for n in range(21, ROWS)),
    ]


def test_shards__cursor_of_another_query__is_refused(sharded: ShardedStore) -> None:
    _write(sharded, EVENT, _event)
    cursor = sharded.query(replace(LOG, limit=3)).cursor

    with pytest.raises(CursorError):
        sharded.query(replace(LOG, limit=3, cursor=cursor, descending=True))


def test_shards__several_queries_at_once__are_each_answered(sharded: ShardedStore, eventually: Eventually) -> None:
    activities, events = _write(sharded, ACTIVITY, _activity), _write(sharded, EVENT, _event)
    _settled(sharded, eventually, QUEUE)

    pages = sharded.query_many([QUEUE, LOG, replace(LOG, partition="20400102")])

    assert [page.items for page in pages] == [activities, events, []]


def test_count__rows_in_shards__are_counted_together_up_to_the_most(
    sharded: ShardedStore, eventually: Eventually
) -> None:
    _write(sharded, ACTIVITY, _activity)
    _settled(sharded, eventually, QUEUE)

    assert sharded.count(QUEUE, most=1000) == {"": ROWS}
    assert sharded.count(QUEUE, "queue_pk", most=1000) == {"Q#default": ROWS}
    assert sharded.count(QUEUE, most=15) == {"": 15}


# Another number of shards


@pytest.mark.parametrize(("before", "after"), [(None, FOUR), (FOUR, SEVEN), (FOUR, Shards(2, earlier=(4, 1)))])
def test_shards__number_was_changed__rows_of_both_numbers_are_found(
    sharded: ShardedStore, eventually: Eventually, before: Shards | None, after: Shards
) -> None:
    old, new = _sharded(EVENTS, before), _sharded(EVENTS, after)
    sharded.batch_write([Put(old, _event(number)) for number in range(0, ROWS, 2)])
    cursor = sharded.query(Query(table=old, partition=DAY, limit=5, consistent=True)).cursor
    sharded.batch_write([Put(new, _event(number)) for number in range(1, ROWS, 2)])

    every = [_event(number) for number in range(ROWS)]
    query = Query(table=new, partition=DAY, limit=3, consistent=True)
    assert items_of(pages_of(sharded, query)) == every
    assert [sharded.get(new, EVENTS.key_of(item), consistent=True) for item in every] == every
    assert sharded.get_many(new, [EVENTS.key_of(item) for item in every], consistent=True) == every
    # A cursor from before the change still continues where it was.
    rest = _rest(sharded, query, cursor)
    assert rest == every[9:]
    by_type = Query(table=new, index="type-index", partition="order.paid", limit=7)
    assert _settled(sharded, eventually, by_type) == every


def test_shards__number_was_changed__old_rows_can_be_changed_and_deleted(sharded: ShardedStore) -> None:
    old = _sharded(EVENTS, ONE)
    sharded.batch_write([Put(old, _event(number)) for number in range(8)])

    for number in range(4):
        sharded.update(EVENT, Key(DAY, f"evt_{number:03d}"), set={"body": "changed"}, condition=exists())
        sharded.transact([Check(EVENT, Key(DAY, f"evt_{number + 4:03d}"), equals("source", "shop"))])
        sharded.delete(EVENT, Key(DAY, f"evt_{number + 4:03d}"), condition=exists())

    found = items_of(pages_of(sharded, replace(LOG, consistent=True)))
    assert [item["body"] for item in found] == ["changed"] * 4


# Writes


def test_update__value_of_a_sharded_index__moves_the_row(sharded: ShardedStore, eventually: Eventually) -> None:
    _write(sharded, ACTIVITY, _activity)

    for number in range(ROWS):
        key = Key(f"act-{number:03d}")
        changed = sharded.update(ACTIVITY, key, set={"queue_pk": "Q#slow"}, condition=equals("queue_pk", "Q#default"))
        assert changed["queue_pk"] == "Q#slow"

    slow = replace(QUEUE, partition="Q#slow")
    assert [item["queue_pk"] for item in _settled(sharded, eventually, slow)] == ["Q#slow"] * ROWS
    assert eventually(lambda: sharded.query(QUEUE).items, lambda found: not found) == []


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (equals("queue_pk", "Q#default"), True),
        (equals("queue_pk", "Q#slow"), False),
        (differs("queue_pk", "Q#default"), False),
        (differs("queue_pk", "Q#slow"), True),
        (one_of("queue_pk", "Q#slow", "Q#default"), True),
        (one_of("queue_pk", "Q#slow", "Q#fast"), False),
    ],
)
def test_condition__on_a_sharded_value__holds_as_on_the_plain_one(
    sharded: ShardedStore, condition: Any, holds: bool
) -> None:
    _write(sharded, ACTIVITY, _activity, 8)

    for number in range(8):
        write = Update(ACTIVITY, Key(f"act-{number:03d}"), set={"seen": True}, condition=condition)
        [refusal] = sharded.transact_many([[write]])
        assert (refusal is None) is holds
        if refusal is not None:
            assert isinstance(refusal, ConflictError)
            assert refusal.current == _activity(number)


def test_conflict__of_a_sharded_row__carries_it_as_it_was_written(sharded: ShardedStore) -> None:
    items = _write(sharded, ACTIVITY, _activity, 8)
    event = _event(1)
    sharded.put(EVENT, event)

    for item in items:
        with pytest.raises(ConflictError) as caught:
            sharded.transact([Put(EVENT, _event(2)), Put(ACTIVITY, item, absent())])
        assert (caught.value.write_index, caught.value.current) == (1, item)
    with pytest.raises(ConflictError) as caught:
        sharded.put(EVENT, event, condition=absent())
    assert caught.value.current == event


def test_transact__token_used_again__succeeds_without_effect(sharded: ShardedStore) -> None:
    writes = [Put(ACTIVITY, _activity(1), absent()), Put(EVENT, _event(1), absent())]

    sharded.transact(writes, token="once")
    sharded.transact(writes, token="once")

    assert sharded.get(EVENT, Key(DAY, "evt_001"), consistent=True) == _event(1)


def test_delete__of_a_sharded_row__returns_it(sharded: ShardedStore) -> None:
    items = _write(sharded, ACTIVITY, _activity, 8)

    assert [sharded.delete(ACTIVITY, ACTIVITY.key_of(item)) for item in items] == items
    sharded.batch_write([Delete(ACTIVITY, ACTIVITY.key_of(item)) for item in items])


def test_changes__of_sharded_rows__show_plain_values(sharded: ShardedStore) -> None:
    table = _sharded(PIPELINES, FOUR)
    for number in range(8):
        item = {"PK": "PIPELINE#a", "SK": f"WAIT#{number}", "GSI1PK": "WATCHED", "GSI1SK": f"{number}"}
        sharded.put(table, item)

    changes = sharded.changes(table, "test").changes

    assert {change.new["GSI1PK"] for change in changes if change.new is not None} == {"WATCHED"}
    assert len(changes) == 8


def test_shards__second_handle_without_the_wrapper__keeps_one_shard(
    open_store: OpenStore, eventually: Eventually
) -> None:
    opened = open_store()
    store = opened.store if isinstance(opened, ShardedStore) else opened
    for number in range(8):
        store.put(ACTIVITIES, _activity(number))

    query = replace(QUEUE, table=ACTIVITIES)
    found = eventually(lambda: store.query(query).items, lambda items: len(items) == 8)

    assert [item["queue_pk"] for item in found] == ["Q#default"] * 8
