"""Fan-out views: the numbers that are printed add up, and their words fit the state."""

from __future__ import annotations

import pytest

from headgate.cli.fanout.views import error_line, error_text, items_text

ITEMS = {"ok": 590, "failed": 3, "deferred": 0, "open": 1407, "total": 2000}


@pytest.mark.parametrize(("is_finished", "left"), [(False, "1407 open"), (True, "1407 not run")])
def test_items__chunks_were_cancelled__their_items_are_open_until_the_end(is_finished: bool, left: str) -> None:
    assert items_text(ITEMS, is_finished=is_finished) == f"590 of 2000 ok, 3 failed, {left}"


def test_error__long_and_of_several_lines__is_one_line_that_is_cut() -> None:
    text = error_line("ValueError: no\n  peak " + "x" * 3000)

    assert text.startswith("ValueError: no peak xxx")
    assert (len(text), text[-1]) == (201, "…")
    assert error_text({"error_class": "OOM", "error": ""}) == "OOM"
    assert error_text({}) == ""
