"""Queries on a table: order, ranges, direction, limits, and pages that lose and repeat nothing."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import CursorError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, PIPELINES, TURNS
from headgate.store.model.requests import Delete, Page, Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.cases import each
from tests.contract.conftest import Eventually, items_of, pages_of

TABLES = (CONTROL, EVIDENCE_CACHE, TURNS)
SORTS = ["A", "Z", "a", "b", "b#1", "b#10", "b#2", "b%", "b_", "bb", "c", "é", "\uffff", "😀"]
NUMBERS = [-(2**53) - 1, -10, -9, -1, 0, 1, 2, 9, 10, 99, 100, 2**53 + 1]


@pytest.fixture
def letters(store: Store) -> Store:
    """A store with text sort keys in partition p, and neighbours around it."""
    writes = [Put(CONTROL, {"PK": partition, "SK": sort}) for partition in ("o", "p", "p ", "q") for sort in SORTS]
    store.batch_write(writes[::-1])
    return store


@pytest.fixture
def turns(store: Store) -> Store:
    store.batch_write([Put(TURNS, {"execution_id": "x", "turn": turn}) for turn in reversed(NUMBERS)])
    store.put(TURNS, {"execution_id": "y", "turn": 5})
    return store


def _numbered(count: int, partition: str = "p") -> list[Put]:
    return [Put(CONTROL, {"PK": partition, "SK": f"{number:04d}", "n": number}) for number in range(count)]


def _sorts(page: Page) -> list[Any]:
    return [item["SK"] for item in page.items]


# Order and ranges

TEXT_RANGES: dict[str, tuple[Sort | None, list[str]]] = {
    "all": (None, SORTS),
    "equals": (Sort(Range.EQUALS, "b"), ["b"]),
    "equals nothing": (Sort(Range.EQUALS, "bz"), []),
    "begins with": (Sort(Range.BEGINS_WITH, "b"), ["b", "b#1", "b#10", "b#2", "b%", "b_", "bb"]),
    "begins with separator": (Sort(Range.BEGINS_WITH, "b#"), ["b#1", "b#10", "b#2"]),
    "begins with percent": (Sort(Range.BEGINS_WITH, "b%"), ["b%"]),
    "begins with underscore": (Sort(Range.BEGINS_WITH, "b_"), ["b_"]),
    "begins with the last character": (Sort(Range.BEGINS_WITH, "\uffff"), ["\uffff"]),
    "begins with an emoji": (Sort(Range.BEGINS_WITH, "😀"), ["😀"]),
    "begins with nothing there": (Sort(Range.BEGINS_WITH, "B"), []),
    "between": (Sort(Range.BETWEEN, "a", "b#2"), ["a", "b", "b#1", "b#10", "b#2"]),
    "between one": (Sort(Range.BETWEEN, "a", "a"), ["a"]),
    "between none": (Sort(Range.BETWEEN, "a0", "a9"), []),
    "less than": (Sort(Range.LESS_THAN, "a"), ["A", "Z"]),
    "at most": (Sort(Range.AT_MOST, "a"), ["A", "Z", "a"]),
    "greater than": (Sort(Range.GREATER_THAN, "c"), ["é", "\uffff", "😀"]),
    "at least": (Sort(Range.AT_LEAST, "c"), ["c", "é", "\uffff", "😀"]),
    "less than the first": (Sort(Range.LESS_THAN, "A"), []),
    "greater than the last": (Sort(Range.GREATER_THAN, "😀"), []),
}

NUMBER_RANGES: dict[str, tuple[Sort | None, list[int]]] = {
    "all": (None, NUMBERS),
    "equals": (Sort(Range.EQUALS, 10), [10]),
    "between": (Sort(Range.BETWEEN, -9, 9), [-9, -1, 0, 1, 2, 9]),
    "less than": (Sort(Range.LESS_THAN, -9), [-(2**53) - 1, -10]),
    "at most": (Sort(Range.AT_MOST, -9), [-(2**53) - 1, -10, -9]),
    "greater than": (Sort(Range.GREATER_THAN, 9), [10, 99, 100, 2**53 + 1]),
    "at least": (Sort(Range.AT_LEAST, 2**53 + 1), [2**53 + 1]),
    "greater than a close one": (Sort(Range.GREATER_THAN, 2**53), [2**53 + 1]),
}


@each("descending", [False, True])
@each("name", TEXT_RANGES)
def test_query__range_of_text_keys__gives_them_in_byte_order(letters: Store, name: str, descending: bool) -> None:
    sort, expected = TEXT_RANGES[name]

    page = letters.query(Query(table=CONTROL, partition="p", sort=sort, descending=descending, consistent=True))

    assert _sorts(page) == (expected[::-1] if descending else expected)
    assert page.cursor is None


@each("descending", [False, True])
@each("name", NUMBER_RANGES)
def test_query__range_of_number_keys__gives_them_in_number_order(turns: Store, name: str, descending: bool) -> None:
    sort, expected = NUMBER_RANGES[name]

    page = turns.query(Query(table=TURNS, partition="x", sort=sort, descending=descending, consistent=True))

    assert [item["turn"] for item in page.items] == (expected[::-1] if descending else expected)
    assert page.cursor is None


@each("name", TEXT_RANGES)
def test_query__range_in_pages_of_one__gives_the_same(letters: Store, name: str) -> None:
    sort, expected = TEXT_RANGES[name]

    pages = pages_of(letters, Query(table=CONTROL, partition="p", sort=sort, limit=1, consistent=True))

    assert [item["SK"] for item in items_of(pages)] == expected


def test_query__partition_without_items__is_an_empty_last_page(letters: Store) -> None:
    assert letters.query(Query(table=CONTROL, partition="nowhere", consistent=True)) == Page([], None)


def test_query__table_without_a_sort_key__gives_the_one_item(store: Store) -> None:
    store.put(EVIDENCE_CACHE, {"evidence_id": "e", "n": 1})

    page = store.query(Query(table=EVIDENCE_CACHE, partition="e", consistent=True))

    assert page == Page([{"evidence_id": "e", "n": 1}], None)


def test_query__items__come_whole(store: Store) -> None:
    item = {"PK": "p", "SK": "s", "deep": {"list": [1, None]}, "raw": b"x", "tags": frozenset({"a"})}
    store.put(CONTROL, item)

    assert store.query(Query(table=CONTROL, partition="p", consistent=True)).items == [item]


def test_query__item_deleted_or_overwritten__shows_the_present(store: Store) -> None:
    store.batch_write(_numbered(3))
    store.delete(CONTROL, Key("p", "0001"))
    store.put(CONTROL, {"PK": "p", "SK": "0002", "n": "new"})

    page = store.query(Query(table=CONTROL, partition="p", consistent=True))

    assert [item["n"] for item in page.items] == [0, "new"]


# Limits and pages


def test_query__more_than_the_limit__gives_the_first_and_a_cursor(store: Store) -> None:
    store.batch_write(_numbered(5))

    page = store.query(Query(table=CONTROL, partition="p", limit=3, consistent=True))

    assert _sorts(page) == ["0000", "0001", "0002"]
    assert page.cursor is not None


@pytest.mark.parametrize("limit", [5, 6, 1000])
def test_query__no_more_than_the_limit__is_the_last_page(store: Store, limit: int) -> None:
    store.batch_write(_numbered(5))

    page = store.query(Query(table=CONTROL, partition="p", limit=limit, consistent=True))

    assert len(page.items) == 5
    assert page.cursor is None


def test_query__no_limit_given__is_a_hundred(store: Store) -> None:
    store.batch_write(_numbered(120))

    page = store.query(Query(table=CONTROL, partition="p", consistent=True))

    assert len(page.items) == 100
    assert page.cursor is not None


def test_query__pages_that_come_out_even__end_without_an_empty_page(store: Store) -> None:
    store.batch_write(_numbered(10))

    pages = pages_of(store, Query(table=CONTROL, partition="p", limit=5, consistent=True))

    assert [len(page.items) for page in pages] == [5, 5]


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_query__250_items_in_pages_of_7__loses_and_repeats_nothing(store: Store, descending: bool) -> None:
    store.batch_write(_numbered(250))

    pages = pages_of(store, Query(table=CONTROL, partition="p", limit=7, descending=descending, consistent=True))

    numbers = [item["n"] for item in items_of(pages)]
    assert numbers == (list(range(250))[::-1] if descending else list(range(250)))
    assert [len(page.items) for page in pages] == [7] * 35 + [5]


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_query__number_keys_in_pages_of_2__loses_and_repeats_nothing(turns: Store, descending: bool) -> None:
    pages = pages_of(turns, Query(table=TURNS, partition="x", limit=2, descending=descending, consistent=True))

    numbers = [item["turn"] for item in items_of(pages)]
    assert numbers == (NUMBERS[::-1] if descending else NUMBERS)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_query__range_in_pages__stays_within_the_range(store: Store, descending: bool) -> None:
    store.batch_write(_numbered(60))
    sort = Sort(Range.BETWEEN, "0010", "0049")

    pages = pages_of(
        store, Query(table=CONTROL, partition="p", sort=sort, limit=7, descending=descending, consistent=True)
    )

    numbers = [item["n"] for item in items_of(pages)]
    assert numbers == (list(range(10, 50))[::-1] if descending else list(range(10, 50)))


def test_query__limit_changed_between_pages__goes_on_where_it_was(store: Store) -> None:
    store.batch_write(_numbered(20))
    first = store.query(Query(table=CONTROL, partition="p", limit=3, consistent=True))

    second = store.query(Query(table=CONTROL, partition="p", limit=1000, cursor=first.cursor, consistent=True))

    assert [item["n"] for item in first.items + second.items] == list(range(20))


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_query__items_inserted_between_pages__appear_if_they_are_still_to_come(store: Store, descending: bool) -> None:
    store.batch_write([Put(CONTROL, {"PK": "p", "SK": f"{number:04d}"}) for number in range(0, 100, 2)])

    def insert(count: int) -> None:
        if count == 3:
            store.batch_write([Put(CONTROL, {"PK": "p", "SK": f"{number:04d}"}) for number in (1, 51, 97)])

    query = Query(table=CONTROL, partition="p", limit=7, descending=descending, consistent=True)
    pages = pages_of(store, query, between=insert)

    # Three pages of 7 reach 0040 upwards, and 0058 downwards.
    fresh = {"0001", "0051"} if descending else {"0051", "0097"}
    found = [item["SK"] for item in items_of(pages)]
    assert found == sorted({f"{number:04d}" for number in range(0, 100, 2)} | fresh, reverse=descending)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_query__items_deleted_between_pages__are_left_out_and_nothing_else(store: Store, descending: bool) -> None:
    store.batch_write(_numbered(50))

    def delete_last_seen_and_next(count: int) -> None:
        if count == 2:
            seen_last, next_one = ("0036", "0035") if descending else ("0013", "0014")
            store.batch_write([Delete(CONTROL, Key("p", seen_last)), Delete(CONTROL, Key("p", next_one))])

    query = Query(table=CONTROL, partition="p", limit=7, descending=descending, consistent=True)
    pages = pages_of(store, query, between=delete_last_seen_and_next)

    missing = 35 if descending else 14
    expected = [number for number in range(50) if number != missing]
    assert [item["n"] for item in items_of(pages)] == (expected[::-1] if descending else expected)


def test_query__everything_after_the_cursor_deleted__ends(store: Store) -> None:
    store.batch_write(_numbered(10))
    first = store.query(Query(table=CONTROL, partition="p", limit=5, consistent=True))
    store.batch_write([Delete(CONTROL, Key("p", f"{number:04d}")) for number in range(5, 10)])

    second = store.query(Query(table=CONTROL, partition="p", limit=5, cursor=first.cursor, consistent=True))

    assert second == Page([], None)


def test_query__more_bytes_than_a_backend_reads_at_once__gives_all(store: Store) -> None:
    # DynamoDB stops a query at 1 MB.
    for number in range(12):
        store.put(CONTROL, {"PK": "p", "SK": f"{number:02d}", "text": "x" * 200_000})

    pages = pages_of(store, Query(table=CONTROL, partition="p", limit=100, consistent=True))

    assert [item["SK"] for item in items_of(pages)] == [f"{number:02d}" for number in range(12)]


def test_query__without_consistency__comes_to_answer_the_same(store: Store, eventually: Eventually) -> None:
    store.batch_write(_numbered(20))
    consistent = items_of(pages_of(store, Query(table=CONTROL, partition="p", limit=7, consistent=True)))

    relaxed = Query(table=CONTROL, partition="p", limit=7)

    eventually(lambda: items_of(pages_of(store, relaxed)), lambda found: found == consistent)


# Several queries in one call


def test_query_many__several_queries__are_answered_in_order(letters: Store) -> None:
    letters.put(TURNS, {"execution_id": "x", "turn": 1})
    queries = [
        Query(table=CONTROL, partition="p", sort=Sort(Range.BEGINS_WITH, "b#"), consistent=True),
        Query(table=CONTROL, partition="nowhere", consistent=True),
        Query(table=TURNS, partition="x", consistent=True),
        Query(table=CONTROL, partition="q", limit=2, descending=True, consistent=True),
    ]

    pages = letters.query_many(queries)

    assert _sorts(pages[0]) == ["b#1", "b#10", "b#2"]
    assert pages[1] == Page([], None)
    assert pages[2].items == [{"execution_id": "x", "turn": 1}]
    assert _sorts(pages[3]) == ["😀", "\uffff"]
    assert [page.cursor is None for page in pages] == [True, True, True, False]


def test_query_many__no_queries__is_empty(store: Store) -> None:
    assert store.query_many([]) == []


def test_query_many__the_same_query_twice__is_answered_twice(letters: Store) -> None:
    query = Query(table=CONTROL, partition="p", consistent=True)

    first, second = letters.query_many([query, query])

    assert first == second
    assert _sorts(first) == SORTS


def test_query_many__cursor_of_one_of_the_pages__resumes_it(letters: Store) -> None:
    query = Query(table=CONTROL, partition="p", limit=5, consistent=True)
    _, page = letters.query_many([Query(table=CONTROL, partition="q", consistent=True), query])

    rest = letters.query(Query(table=CONTROL, partition="p", limit=1000, cursor=page.cursor, consistent=True))

    assert _sorts(page) + _sorts(rest) == SORTS


# What cannot be asked

BAD: dict[str, Query] = {
    "limit 0": Query(table=CONTROL, partition="p", limit=0),
    "limit -1": Query(table=CONTROL, partition="p", limit=-1),
    "limit 1001": Query(table=CONTROL, partition="p", limit=1001),
    "empty partition": Query(table=CONTROL, partition=""),
    "number for a text partition": Query(table=CONTROL, partition=7),
    "partition too long": Query(table=CONTROL, partition="x" * 2049),
    "half a surrogate pair as partition": Query(table=CONTROL, partition="\ud800"),
    "half a surrogate pair as low": Query(table=CONTROL, partition="p", sort=Sort(Range.AT_LEAST, "\ud800")),
    "empty low": Query(table=CONTROL, partition="p", sort=Sort(Range.AT_LEAST, "")),
    "number for a text range": Query(table=CONTROL, partition="p", sort=Sort(Range.AT_LEAST, 7)),
    "text for a number range": Query(table=TURNS, partition="x", sort=Sort(Range.AT_LEAST, "7")),
    "begins with a number": Query(table=TURNS, partition="x", sort=Sort(Range.BEGINS_WITH, 7)),
    "low too long": Query(table=CONTROL, partition="p", sort=Sort(Range.AT_LEAST, "x" * 1025)),
    "between without high": Query(table=CONTROL, partition="p", sort=Sort(Range.BETWEEN, "a")),
    "between the wrong way round": Query(table=CONTROL, partition="p", sort=Sort(Range.BETWEEN, "b", "a")),
    "between text and number": Query(table=CONTROL, partition="p", sort=Sort(Range.BETWEEN, "a", 7)),
    "range without a sort key": Query(table=EVIDENCE_CACHE, partition="e", sort=Sort(Range.EQUALS, "x")),
    "unknown index": Query(table=CONTROL, partition="p", index="no-such-index"),
    "index of another table": Query(table=CONTROL, partition="p", index="dataset-time-index"),
    "consistent index": Query(table=CONTROL, partition="p", index="due-index", consistent=True),
}


@each("bad", BAD)
def test_query__that_cannot_be_asked__is_refused(store: Store, bad: str) -> None:
    with pytest.raises(InvalidItemError) as caught:
        store.query(BAD[bad])

    assert caught.type is InvalidItemError


@each("bad", BAD)
def test_query_many__one_query_that_cannot_be_asked__is_refused(store: Store, bad: str) -> None:
    with pytest.raises(InvalidItemError) as caught:
        store.query_many([Query(table=CONTROL, partition="p"), BAD[bad]])

    assert caught.type is InvalidItemError


@pytest.mark.parametrize("limit", [1, 1000])
def test_query__limit_at_its_bounds__is_answered(store: Store, limit: int) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s"})

    assert len(store.query(Query(table=CONTROL, partition="p", limit=limit, consistent=True)).items) == 1


def test_query__cursor_for_another_table__is_refused(store: Store) -> None:
    store.batch_write(_numbered(5))
    cursor = store.query(Query(table=CONTROL, partition="p", limit=2, consistent=True)).cursor

    with pytest.raises(CursorError):
        store.query(Query(table=PIPELINES, partition="p", limit=2, cursor=cursor))
