"""Merged pages: what one sorted list would give, whatever the partitions, the ties and the page size."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.clock import VirtualClock
from headgate.errors import CursorError, InvalidItemError, UserError
from headgate.health.model.paging import MergedPages, Partition, Place, Span
from headgate.store.catalogue.tables import INCIDENT_INDEX
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Page, Query, Range
from headgate.store.model.values import Item
from headgate.store.port import Store

INDEX = "status-severity-index"
CLOCK = VirtualClock()
KEYRING = Keyring.generate(CLOCK)


class AnIndex:
    """An index as DynamoDB has it: in the order of its sort key, and equals of that in an unknown order."""

    def __init__(self, rows: Sequence[Item], salt: int = 0) -> None:
        self.rows = list(rows)
        self.salt = salt
        self.looked_at = 0

    def query(self, query: Query) -> Page:
        assert query.sort is not None
        assert query.sort.range is Range.BETWEEN
        if not 1 <= query.limit <= 1000:
            raise InvalidItemError(f"limit {query.limit} is outside 1 to 1000")
        low, high = str(query.sort.low), str(query.sort.high)
        found = [row for row in self.rows if row["GSI2PK"] == query.partition and low <= row["GSI2SK"] <= high]
        found.sort(key=lambda row: zlib.crc32(f"{self.salt}{row['id']}".encode()))
        found.sort(key=lambda row: str(row["GSI2SK"]), reverse=query.descending)
        start = int(query.cursor or 0)
        page = found[start : start + query.limit]
        self.looked_at += len(page)
        return Page(page, str(start + query.limit) if start + query.limit < len(found) else None)

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        return [self.query(each) for each in queries]


def row(partition: str, at: str, number: int, prefix: str = "") -> Item:
    return {"GSI2PK": partition, "GSI2SK": f"{prefix}{at}", "at": at, "id": f"{number:04d}"}


def place(item: Item) -> Place:
    return Place(item["at"], item["id"])


def pages_over(index: AnIndex) -> MergedPages:
    return MergedPages(cast("Store", index), KEYRING)


def everything(pages: MergedPages, partitions: Sequence[Partition], limit: int, **more: Any) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    for _ in range(2_000):
        page = pages.page(partitions, place, limit=limit, cursor=cursor, **more)
        assert len(page.items) <= limit
        found += [item["id"] for item in page.items]
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the cursors never end")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=50),
    limit=st.integers(1, 6),
    descending=st.booleans(),
    salt=st.integers(0, 5),
    low=st.integers(0, 2),
    high=st.integers(0, 3),
    modulo=st.integers(1, 4),
)
def test_page__over_any_rows__is_the_sorted_list(
    drawn: list[tuple[int, int]], limit: int, descending: bool, salt: int, low: int, high: int, modulo: int
) -> None:
    prefixes = ("", "A#", "B#", "")
    rows = [row(f"P{p}", f"t{at}", number, prefixes[p]) for number, (p, at) in enumerate(drawn)]
    partitions = [Partition(INCIDENT_INDEX, INDEX, f"P{p}", prefixes[p]) for p in range(4)]
    kept = [each for each in rows if int(each["id"]) % modulo == 0 and f"t{low}" <= each["at"] <= f"t{high}"]
    expected = [each["id"] for each in sorted(kept, key=place, reverse=descending)]
    found = everything(
        pages_over(AnIndex(rows, salt)),
        partitions,
        limit,
        descending=descending,
        span=Span(f"t{low}", f"t{high}"),
        keep=lambda item: int(item["id"]) % modulo == 0,
    )
    assert found == expected


@pytest.mark.parametrize("salt", range(4))
@pytest.mark.parametrize("descending", [True, False])
def test_page__more_equals_than_fit_on_a_page_of_the_index__each_once(salt: int, descending: bool) -> None:
    rows = [row("P", "t1", number) for number in range(60)]
    found = everything(
        pages_over(AnIndex(rows, salt)), [Partition(INCIDENT_INDEX, INDEX, "P")], 4, descending=descending
    )
    assert sorted(found) == [each["id"] for each in rows]


def test_page__a_prefix_that_is_the_beginning_of_another__takes_only_its_own() -> None:
    rows = [row("P", "t1", 1, "SEV_1#"), row("P", "t1", 2, "SEV_10#"), row("P", "t1", 3, "SEV_2#")]
    assert everything(pages_over(AnIndex(rows)), [Partition(INCIDENT_INDEX, INDEX, "P", "SEV_1#")], 5) == ["0001"]


def test_page__nothing_is_kept__comes_back_short_with_a_cursor_rather_than_look_at_all() -> None:
    index = AnIndex([row("P", f"t{number:05d}", number) for number in range(2_000)])
    page = pages_over(index).page(
        [Partition(INCIDENT_INDEX, INDEX, "P")], place, limit=2, keep=lambda item: item["id"] == "0000"
    )
    assert page.items == []
    assert page.cursor is not None
    assert index.looked_at < 500
    assert everything(
        pages_over(index), [Partition(INCIDENT_INDEX, INDEX, "P")], 2, keep=lambda item: item["id"] == "0000"
    ) == ["0000"]


def test_page__rows_come_and_go_between_pages__what_stays_is_there_once() -> None:
    rows = [row("P", f"t{number:02d}", number) for number in range(20)]
    index = AnIndex(rows)
    pages = pages_over(index)
    partitions = [Partition(INCIDENT_INDEX, INDEX, "P")]
    first = pages.page(partitions, place, limit=5)
    index.rows = [each for each in rows if each["id"] != "0015"] + [row("P", "t99", 99), row("P", "t03", 98)]
    found = [item["id"] for item in first.items]
    cursor = first.cursor
    while cursor is not None:
        page = pages.page(partitions, place, limit=5, cursor=cursor)
        found += [item["id"] for item in page.items]
        cursor = page.cursor
    assert [each for each in found if each != "0098"] == [f"{number:04d}" for number in range(19, -1, -1)]
    assert found.count("0098") == 1


def test_cursor__altered__is_refused() -> None:
    pages = pages_over(AnIndex([row("P", f"t{number}", number) for number in range(9)]))
    partitions = [Partition(INCIDENT_INDEX, INDEX, "P")]
    cursor = pages.page(partitions, place, limit=2).cursor
    assert cursor is not None
    for bad in (cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB"), "x", "", cursor + "x"):
        with pytest.raises(CursorError):
            pages.page(partitions, place, limit=2, cursor=bad)


def test_cursor__of_other_partitions_span_or_direction__is_refused() -> None:
    pages = pages_over(AnIndex([row("P", f"t{number}", number) for number in range(9)]))
    cursor = pages.page([Partition(INCIDENT_INDEX, INDEX, "P")], place, limit=2).cursor
    with pytest.raises(CursorError):
        pages.page([Partition(INCIDENT_INDEX, INDEX, "Q")], place, limit=2, cursor=cursor)
    with pytest.raises(CursorError):
        pages.page([Partition(INCIDENT_INDEX, INDEX, "P")], place, limit=2, cursor=cursor, span=Span("t1"))
    with pytest.raises(CursorError):
        pages.page([Partition(INCIDENT_INDEX, INDEX, "P")], place, limit=2, cursor=cursor, descending=False)


def test_cursor__signed_by_another_installation__is_refused() -> None:
    index = AnIndex([row("P", f"t{number}", number) for number in range(9)])
    partitions = [Partition(INCIDENT_INDEX, INDEX, "P")]
    theirs = MergedPages(cast("Store", index), Keyring.generate(CLOCK)).page(partitions, place, limit=2).cursor
    with pytest.raises(CursorError):
        pages_over(index).page(partitions, place, limit=2, cursor=theirs)


@pytest.mark.parametrize("limit", [0, -1])
def test_page__a_limit_of_nothing__is_refused_as_bad_input(limit: int) -> None:
    pages = pages_over(AnIndex([row("P", "t", 1)]))
    with pytest.raises(UserError):
        pages.page([Partition(INCIDENT_INDEX, INDEX, "P")], place, limit=limit)


@pytest.mark.parametrize("share", [1, 3, 48])
def test_page__of_many_partitions__reads_little_more_than_it_returns_and_loses_nothing(share: int) -> None:
    """`share` of the 48 partitions hold all rows."""
    rows = [row(f"p{number % share}", f"{number:04d}", number) for number in range(2_000)]
    index = AnIndex(rows)
    partitions = [Partition(INCIDENT_INDEX, INDEX, f"p{number}") for number in range(48)]

    first = pages_over(index).page(partitions, place, limit=100)

    assert [each["id"] for each in first.items] == [f"{number:04d}" for number in range(1_999, 1_899, -1)]
    assert index.looked_at <= 800
    assert everything(pages_over(index), partitions, 100) == [each["id"] for each in reversed(rows)]
