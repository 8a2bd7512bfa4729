"""Chained pages: lists in sequence under one cursor, with a limit on the reads of a page."""

from __future__ import annotations

import pytest

from headgate.errors import CursorError
from headgate.serve.runtime.chained_pages import Fetch, chained_page


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
