"""Secondary indexes: sparse, whole or with few attributes, in order, and only ever a hint."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import InvalidItemError
from headgate.store.catalogue.tables import (
    ACTIVITIES,
    CONTROL,
    DATASET_REGISTRY,
    EVIDENCE_CACHE,
    EXECUTIONS,
    FANOUT,
    INBOXES,
)
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import Eventually, contents, items_of, pages_of

TABLES = (ACTIVITIES, CONTROL, DATASET_REGISTRY, EVIDENCE_CACHE, EXECUTIONS, FANOUT, INBOXES)
ATTENTION = Query(table=FANOUT, index="attention-index", partition="run#FAILED", limit=1000)
DUE = Query(table=CONTROL, index="due-index", partition="work", limit=1000)
URN = "urn:dp:orders:order_created:v1"
EVIDENCE = Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition=URN, limit=1000)


def _chunk(start: int, **attributes: Any) -> Item:
    return {"PK": "run", "SK": f"CHUNK#chunk-{start:07d}", **attributes}


def _failed(start: int, since: str = "2040-01-01T00:00:00Z") -> Item:
    return _chunk(start, status="FAILED", attention_pk="run#FAILED", attention_sk=f"{since}#{start:07d}")


def _settled(store: Store, eventually: Eventually, query: Query, expected: list[Item]) -> list[Item]:
    """Return what the index holds, once it holds as many items as expected."""
    return eventually(lambda: items_of(pages_of(store, query)), lambda found: len(found) == len(expected))


def _await(store: Store, eventually: Eventually, query: Query, expected: list[Item]) -> None:
    """Assert that the index comes to answer exactly `expected`."""
    eventually(lambda: items_of(pages_of(store, query)), lambda found: found == expected)


# What is in it


def test_index__items_with_its_attributes__are_all_it_holds(store: Store, eventually: Eventually) -> None:
    store.batch_write([Put(FANOUT, _chunk(start)) for start in range(0, 2000, 500)])
    store.batch_write([Put(FANOUT, _failed(start)) for start in (2000, 2500)])
    # Half of an index key places an item nowhere.
    store.put(FANOUT, _chunk(3000, attention_pk="run#FAILED"))
    store.put(FANOUT, _chunk(3500, attention_sk="2040-01-01T00:00:00Z#x"))

    _await(store, eventually, ATTENTION, [_failed(2000), _failed(2500)])


def test_index__item__comes_whole(store: Store, eventually: Eventually) -> None:
    item = {
        "evidence_id": "e",
        "dataset_urn": URN,
        "created_at": "2040-01-01T00:00:00Z",
        "deep": {"list": [1, None, b"x"]},
        "tags": frozenset({"a"}),
    }
    store.put(EVIDENCE_CACHE, item)

    _await(store, eventually, EVIDENCE, [item])


def test_index__of_keys_only__answers_with_all_keys_and_the_ttl(store: Store, eventually: Eventually) -> None:
    keys = {"activity_id": "a#1#000001", "execution_id": "a", "seq": 1, "ttl": 4_000_000_000}
    store.put(ACTIVITIES, {**keys, "input": "x" * 5_000, "token": "t", "queue_pk": "Q#default", "available_at_ms": 7})

    _await(store, eventually, Query(table=ACTIVITIES, index="execution-index", partition="a"), [keys])


def test_index__with_some_attributes__answers_with_those_that_an_item_has(store: Store, eventually: Eventually) -> None:
    row = {"execution_id": "e", "ready_pk": "WORK", "at_ms": 1}
    query = {"message_id": "Q#1", "workflow": "pay", "name": "progress", "input": "null", "timeout_seconds": 5}
    store.put(INBOXES, {**row, "message_id": "M#1", "body": "x" * 5_000, "run": 3})
    store.put(INBOXES, {**row, **query, "at_ms": 2})

    found = [{**row, "message_id": "M#1"}, {**row, **query, "at_ms": 2}]
    _await(store, eventually, Query(table=INBOXES, index="ready-index", partition="WORK"), found)


def test_index__of_keys_only__is_counted_and_paged(store: Store, eventually: Eventually) -> None:
    rows = [{"activity_id": f"a#{number}", "execution_id": "a", "seq": number} for number in range(5)]
    store.batch_write([Put(ACTIVITIES, {**row, "input": "x"}) for row in rows])
    query = Query(table=ACTIVITIES, index="execution-index", partition="a", limit=2)

    _await(store, eventually, query, rows)
    assert store.count(query, most=100) == {"": 5}


def test_index__attributes_given_by_an_update__brings_the_item_in(store: Store, eventually: Eventually) -> None:
    store.put(FANOUT, _chunk(0))

    store.update(FANOUT, Key("run", "CHUNK#chunk-0000000"), set={"attention_pk": "run#FAILED", "attention_sk": "a"})

    _await(store, eventually, ATTENTION, [_chunk(0, attention_pk="run#FAILED", attention_sk="a")])


@pytest.mark.parametrize("removed", [("attention_pk",), ("attention_sk",), ("attention_pk", "attention_sk")])
def test_index__attributes_removed_by_an_update__takes_the_item_out(
    store: Store, eventually: Eventually, removed: tuple[str, ...]
) -> None:
    store.batch_write([Put(FANOUT, _failed(0)), Put(FANOUT, _failed(500))])
    _settled(store, eventually, ATTENTION, [_failed(0), _failed(500)])

    store.update(FANOUT, Key("run", "CHUNK#chunk-0000000"), remove=removed)

    _await(store, eventually, ATTENTION, [_failed(500)])
    assert len(contents(store, FANOUT, "run")) == 2


def test_index__item_overwritten_without_its_attributes__loses_it(store: Store, eventually: Eventually) -> None:
    store.put(FANOUT, _failed(0))
    _settled(store, eventually, ATTENTION, [_failed(0)])

    store.put(FANOUT, _chunk(0))

    _await(store, eventually, ATTENTION, [])


def test_index__item_deleted__loses_it(store: Store, eventually: Eventually) -> None:
    store.batch_write([Put(FANOUT, _failed(0)), Put(FANOUT, _failed(500))])
    _settled(store, eventually, ATTENTION, [_failed(0), _failed(500)])

    store.transact([Delete(FANOUT, Key("run", "CHUNK#chunk-0000000"))])

    _await(store, eventually, ATTENTION, [_failed(500)])


def test_index__key_changed_by_an_update__moves_the_item(store: Store, eventually: Eventually) -> None:
    store.put(FANOUT, _failed(0))
    _settled(store, eventually, ATTENTION, [_failed(0)])

    moved = store.update(FANOUT, Key("run", "CHUNK#chunk-0000000"), set={"attention_pk": "run#STUCK"})

    _await(store, eventually, ATTENTION, [])
    _await(store, eventually, Query(table=FANOUT, index="attention-index", partition="run#STUCK"), [moved])


def test_index__item_changed_in_other_attributes__shows_the_change(store: Store, eventually: Eventually) -> None:
    store.put(FANOUT, _failed(0))

    changed = store.update(FANOUT, Key("run", "CHUNK#chunk-0000000"), set={"error": "timed out"})

    _await(store, eventually, ATTENTION, [changed])


def test_index__changed_in_a_transaction__follows(store: Store, eventually: Eventually) -> None:
    store.put(FANOUT, _failed(0))

    store.transact(
        [
            Put(FANOUT, _failed(500)),
            Update(FANOUT, Key("run", "CHUNK#chunk-0000000"), remove=("attention_pk", "attention_sk")),
        ]
    )

    _await(store, eventually, ATTENTION, [_failed(500)])


def test_index__partitions__are_kept_apart(store: Store, eventually: Eventually) -> None:
    for dataset in ("a", "b"):
        store.put(EVIDENCE_CACHE, {"evidence_id": dataset, "dataset_urn": dataset, "created_at": "t"})

    for dataset in ("a", "b"):
        query = Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition=dataset)
        _await(store, eventually, query, [{"evidence_id": dataset, "dataset_urn": dataset, "created_at": "t"}])


def test_index__sorted_by_a_key_of_the_table__works(store: Store, eventually: Eventually) -> None:
    rows = [{"PK": f"urn:{n}", "SK": "CONFIG#LATEST", "latest_tier": "TIER_1"} for n in range(3)]
    history = [{"PK": f"urn:{n}", "SK": "CONFIG#v000001", "tier": "TIER_1"} for n in range(3)]
    store.batch_write([Put(DATASET_REGISTRY, row) for row in rows + history])

    query = Query(table=DATASET_REGISTRY, index="tier-index", partition="TIER_1")
    _await(store, eventually, query, rows)
    sort = Sort(Range.AT_LEAST, "urn:1")
    ranged = Query(table=DATASET_REGISTRY, index="tier-index", partition="TIER_1", sort=sort, descending=True)
    _await(store, eventually, ranged, rows[:0:-1])


def test_index__sorted_by_the_only_key_of_the_table__pages(store: Store, eventually: Eventually) -> None:
    rows = [{"execution_id": f"exe_{n:02d}", "parent_id": "root"} for n in range(10)]
    store.batch_write([Put(EXECUTIONS, row) for row in rows])
    query = Query(table=EXECUTIONS, index="parent-index", partition="root", limit=3)

    _await(store, eventually, query, rows)


# Order, ranges, pages


def _due(name: str, at_ms: int) -> Item:
    return {"PK": name, "SK": "s", "due_pk": "work", "due_at_ms": at_ms}


NUMBERS = [-100, -9, -1, 0, 2, 9, 10, 100, 2**53 + 1]
RANGES: dict[str, tuple[Sort | None, list[int]]] = {
    "all": (None, NUMBERS),
    "equals": (Sort(Range.EQUALS, 9), [9]),
    "less than": (Sort(Range.LESS_THAN, 0), [-100, -9, -1]),
    "at most": (Sort(Range.AT_MOST, 0), [-100, -9, -1, 0]),
    "greater than": (Sort(Range.GREATER_THAN, 9), [10, 100, 2**53 + 1]),
    "at least": (Sort(Range.AT_LEAST, 9), [9, 10, 100, 2**53 + 1]),
    "between": (Sort(Range.BETWEEN, -9, 10), [-9, -1, 0, 2, 9, 10]),
}


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("name", RANGES)
def test_index__range_of_number_keys__gives_them_in_number_order(
    store: Store, eventually: Eventually, name: str, descending: bool
) -> None:
    sort, expected = RANGES[name]
    store.batch_write([Put(CONTROL, _due(f"{number}", number)) for number in NUMBERS])
    query = Query(table=CONTROL, index="due-index", partition="work", sort=sort, descending=descending)

    found = _settled(store, eventually, query, [_due("", number) for number in expected])

    assert [item["due_at_ms"] for item in found] == (expected[::-1] if descending else expected)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_index__prefix_of_text_keys__gives_them_in_order(
    store: Store, eventually: Eventually, descending: bool
) -> None:
    times = ["2040-01-01T10", "2040-01-02T09", "2040-01-02T10", "2040-01-03T00"]
    rows = [{"evidence_id": f"e{at}", "dataset_urn": URN, "created_at": at} for at in times]
    store.batch_write([Put(EVIDENCE_CACHE, row) for row in rows])
    query = Query(
        table=EVIDENCE_CACHE,
        index="dataset-time-index",
        partition=URN,
        sort=Sort(Range.BEGINS_WITH, "2040-01-02"),
        descending=descending,
    )

    _await(store, eventually, query, rows[2:0:-1] if descending else rows[1:3])


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_index__250_items_in_pages_of_7__loses_and_repeats_nothing(
    store: Store, eventually: Eventually, descending: bool
) -> None:
    rows = [_due(f"{(number * 37) % 250:03d}", number) for number in range(250)]
    store.batch_write([Put(CONTROL, row) for row in rows])
    _settled(store, eventually, DUE, rows)

    pages = pages_of(store, Query(table=CONTROL, index="due-index", partition="work", limit=7, descending=descending))

    found = [item["due_at_ms"] for item in items_of(pages)]
    assert found == (list(range(250))[::-1] if descending else list(range(250)))
    assert [len(page.items) for page in pages] == [7] * 35 + [5]


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("limit", [1, 7, 10])
def test_index__many_items_with_one_sort_key_in_pages__loses_and_repeats_nothing(
    store: Store, eventually: Eventually, descending: bool, limit: int
) -> None:
    rows = [_due(f"{number:02d}", 5 if number < 40 else 6) for number in range(50)]
    store.batch_write([Put(CONTROL, row) for row in rows])
    _settled(store, eventually, DUE, rows)

    pages = pages_of(
        store, Query(table=CONTROL, index="due-index", partition="work", limit=limit, descending=descending)
    )

    found = items_of(pages)
    assert sorted(item["PK"] for item in found) == [row["PK"] for row in rows]
    assert [item["due_at_ms"] for item in found] == sorted((row["due_at_ms"] for row in rows), reverse=descending)


def test_index__many_text_sort_keys_the_same_in_a_table_with_a_sort_key__pages(
    store: Store, eventually: Eventually
) -> None:
    rows = [
        {"PK": f"run-{n % 3}", "SK": f"{n:02d}", "GSI1_PK": "grs-15", "GSI1_SK": "2040-01-01T00:00:00Z"}
        for n in range(30)
    ]
    store.batch_write([Put(FANOUT, row) for row in rows])
    _settled(store, eventually, Query(table=FANOUT, index="GSI1", partition="grs-15", limit=1000), rows)

    pages = pages_of(store, Query(table=FANOUT, index="GSI1", partition="grs-15", limit=4))

    assert sorted(item["SK"] for item in items_of(pages)) == [row["SK"] for row in rows]


def test_index__pages__go_on_although_the_item_of_the_cursor_is_gone(store: Store, eventually: Eventually) -> None:
    rows = [_due(f"{number:02d}", number) for number in range(10)]
    store.batch_write([Put(CONTROL, row) for row in rows])
    _settled(store, eventually, DUE, rows)
    first = store.query(Query(table=CONTROL, index="due-index", partition="work", limit=4))

    store.delete(CONTROL, Key("03", "s"))
    _settled(store, eventually, DUE, rows[1:])
    query = Query(table=CONTROL, index="due-index", partition="work", limit=100, cursor=first.cursor)
    second = store.query(query)

    assert first.items + second.items == rows


# What cannot be asked or stored


def test_index__read_consistently__is_refused(store: Store) -> None:
    with pytest.raises(InvalidItemError) as caught:
        store.query(Query(table=CONTROL, index="due-index", partition="work", consistent=True))

    assert caught.type is InvalidItemError


@pytest.mark.parametrize("backend", ["sqlite-lagging"], indirect=True)
def test_index__of_the_lagging_backend__does_not_show_what_was_just_written(
    store: Store, eventually: Eventually
) -> None:
    store.put(CONTROL, _due("a", 1))

    assert store.get(CONTROL, Key("a", "s"), consistent=True) == _due("a", 1)
    assert store.query(DUE).items == []
    _await(store, eventually, DUE, [_due("a", 1)])


# Counts


def _execution(number: int, workflow: str, status: str = "RUNNING", **more: Any) -> Item:
    started = f"2040-01-01T00:00:{number:02d}Z"
    return {"execution_id": f"e{number}", "workflow": workflow, "status": status, "started_at": started, **more}


def test_count__of_a_partition__counts_by_a_key_attribute(store: Store, eventually: Eventually) -> None:
    rows = [_execution(number, "pay" if number < 4 else "ship") for number in range(6)]
    store.batch_write([Put(EXECUTIONS, row) for row in [*rows, _execution(6, "pay", "STUCK")]])
    running = Query(table=EXECUTIONS, index="status-index", partition="RUNNING", limit=1)

    counted = eventually(lambda: store.count(running, "workflow", most=100), lambda found: sum(found.values()) == 6)

    assert counted == {"pay": 4, "ship": 2}
    assert store.count(running, most=100) == {"": 6}
    assert store.count(running, most=4) == {"": 4}
    assert sum(store.count(running, "workflow", most=5).values()) == 5
    assert store.count(replace(running, sort=Sort(Range.AT_MOST, "2040-01-01T00:00:02Z")), most=100) == {"": 3}
    assert store.count(replace(running, partition="FAILED"), "workflow", most=100) == {}


def test_count__of_expired_items__leaves_them_out(store: Store, eventually: Eventually) -> None:
    store.put(EXECUTIONS, _execution(1, "pay", ttl=1))
    store.put(EXECUTIONS, _execution(2, "pay"))
    running = Query(table=EXECUTIONS, index="status-index", partition="RUNNING", limit=1)

    eventually(lambda: store.count(running, "workflow", most=100), lambda found: found == {"pay": 1})


def test_count__by_an_attribute_that_is_no_key__is_refused(store: Store) -> None:
    running = Query(table=EXECUTIONS, index="status-index", partition="RUNNING")

    with pytest.raises(InvalidItemError, match="no key attribute"):
        store.count(running, "memo", most=100)
    with pytest.raises(InvalidItemError, match="from 1"):
        store.count(running, most=0)
