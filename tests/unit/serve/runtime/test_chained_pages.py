"""Chained pages: lists in sequence under one cursor, with a limit on the reads of a page."""

from __future__ import annotations

import pytest

from headgate.errors import CursorError
from headgate.serve.runtime.chained_pages import Fetch, chained_page, counted


def numbers(count: int, *, of: int) -> Fetch[int]:
    """Return a list of numbers below `count`, read two at a time, of which every `of`-th matches."""

    def fetch(limit: int, cursor: str | None) -> tuple[list[int], str | None]:
        start = int(cursor or 0)
        read = range(start, min(count, start + 2))
        following = str(read.stop) if read.stop < count else None
        return [number for number in read if number % of == 0][:limit], following

    return fetch


def test_page__reads_used_up__is_short_and_has_a_cursor() -> None:
    stages = [("a", numbers(20, of=10)), ("b", numbers(3, of=1))]

    first, cursor = chained_page(stages, 5, None, reads_max=2)
    second, following = chained_page(stages, 5, cursor, reads_max=20)

    assert (first, cursor) == ([0], "a|4")
    assert (second, following) == ([10, 0, 1, 2], None)


def test_page__no_reads_used_up__is_full() -> None:
    assert chained_page([("a", numbers(20, of=3))], 3, None) == ([0, 3, 6], "a|8")


@pytest.mark.parametrize("cursor", ["", "a", "c|1"])
def test_page__malformed_cursor__is_refused(cursor: str) -> None:
    with pytest.raises(CursorError, match="not valid for this list"):
        chained_page([("a", numbers(1, of=1))], 1, cursor)


def test_counted__as_many_found_as_there_are__reads_no_further() -> None:
    stages = [("a", counted(numbers(1_000_000, of=3), 3)), ("b", numbers(1, of=1))]

    first, cursor = chained_page(stages, 2, None)
    second, following = chained_page(stages, 2, cursor)

    assert (first, cursor) == ([0, 3], "a|1.4")
    assert (second, following) == ([6, 0], None)


def test_counted__total_grows_between_pages__reads_no_further_than_it_was_at_first() -> None:
    first, cursor = chained_page([("a", counted(numbers(20, of=4), 3))], 2, None)

    assert (first, cursor) == ([0, 4], "a|1.6")
    assert chained_page([("a", counted(numbers(20, of=4), 4))], 9, cursor) == ([8], None)


def test_counted__none__reads_nothing() -> None:
    def unread(limit: int, cursor: str | None) -> tuple[list[int], str | None]:
        raise AssertionError(limit, cursor)

    assert chained_page([("a", counted(unread, 0))], 9, None) == ([], None)


@pytest.mark.parametrize("cursor", ["a|4", "a|x.4", "a|.4", f"a|{'9' * 19}.4"])
def test_counted__malformed_cursor__is_refused(cursor: str) -> None:
    with pytest.raises(CursorError, match="not valid for this list"):
        chained_page([("a", counted(numbers(9, of=1), 9))], 1, cursor)
