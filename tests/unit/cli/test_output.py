"""Tables at the width of a terminal: one column is wrapped, or each row is a block."""

from __future__ import annotations

import pytest

from headgate.cli.output import block, flexible_column

COLUMNS = ("ID", "SEVERITY", "STATUS", "TEXT")
LINE = ("alert_01M7QRTA69BQPTFS66X8Q3PXHE", "warning", "OPEN", "orders: incident opened, SEV_2, of a long text")


@pytest.mark.parametrize(("width", "found"), [(200, 3), (80, 3), (72, 3), (71, None), (40, None)])
def test_table__of_a_width__wraps_the_longest_text_or_is_too_wide(width: int, found: int | None) -> None:
    assert flexible_column(COLUMNS, [LINE], width, 0) == found


def test_table__of_short_cells__fits_narrow_terminals() -> None:
    assert flexible_column(("A", "B"), [("x", "y")], 10, 0) == 1


def test_table__of_one_column__wraps_it() -> None:
    assert flexible_column(("A",), [("x" * 50,)], 30, 0) == 0


def test_block__empty_cells__are_left_out() -> None:
    assert block(COLUMNS, ("a", "", "OPEN", "text"), 0, 80) == "a\n  status    OPEN\n  text      text"


def test_block__long_cell__is_wrapped_below_itself() -> None:
    shown = block(COLUMNS, LINE, 0, 40).splitlines()

    assert shown[0] == LINE[0]
    assert shown[-2:] == ["  text      orders: incident opened,", "            SEV_2, of a long text"]
    assert max(map(len, shown)) <= 40
