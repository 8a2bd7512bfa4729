"""Text output: tables, name-value lists and short timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH: Final = 240
# A column that is wrapped to less than this is hard to read.
FLEXIBLE_WIDTH_MIN: Final = 20
_GAP: Final = 2


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str, key: int = 0) -> None:
    """Print a table, or `nothing` if it has no rows. `key` is the index of the identifying column.

    On a terminal that is too narrow for a table, each row is a block in which each column has lines of its own.
    """
    from rich.console import Console

    lines = [[_text(cell) for cell in row] for row in rows]
    if not lines:
        typer.echo(nothing)
        return
    console = Console()
    if not console.is_terminal:
        # Files and pipes get one line per row.
        console.width = max(console.width, FILE_WIDTH)
    flexible = flexible_column(columns, lines, console.width, key)
    if flexible is None:
        for line in lines:
            typer.echo(block(columns, line, key, console.width))
        return
    _print_table(console, columns, lines, flexible)


def flexible_column(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int, key: int) -> int | None:
    """Return the column that is wrapped so that a table fits the width, or None if the table fits in no way.

    The other columns are never wrapped, so that ids can be copied and numbers read.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(columns, *lines, strict=True)]
    others = [index for index in range(len(columns)) if index != key] or [key]
    widest = max(others, key=lambda index: widths[index])
    room = width - sum(widths) - _GAP * (len(columns) - 1) + widths[widest]
    return widest if room >= min(widths[widest], FLEXIBLE_WIDTH_MIN) else None


def block(columns: Sequence[str], line: Sequence[str], key: int, width: int) -> str:
    """Return a row as its identifying cell, never wrapped, and the further cells that are not empty below it."""
    import textwrap

    names = [name.lower() for name in columns]
    longest = max(map(len, names))
    indent = " " * (longest + 4)
    found = [line[key]]
    for index, cell in enumerate(line):
        if index != key and cell:
            label = f"  {names[index]:{longest}}  "
            found += textwrap.wrap(
                cell,
                max(width, len(indent) + FLEXIBLE_WIDTH_MIN),
                initial_indent=label,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
    return "\n".join(found)


def _print_table(console: Console, columns: Sequence[str], lines: Sequence[Sequence[str]], flexible: int) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index != flexible, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print one name and value per line; empty values are left out."""
    shown = {name: _text(value) for name, value in facts.items() if value not in (None, "", [], {})}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        typer.echo(f"{name.ljust(width)}  {value}")


def short(moment: str | None) -> str:
    """Return a timestamp to the second, in UTC."""
    return "" if not moment else f"{moment[:10]} {moment[11:19]}Z"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return " ".join(f"{name}:{each}" for name, each in value.items())
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return compact(value)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def compact(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Return a value as JSON on one line."""
    import msgspec

    return msgspec.json.encode(value).decode()


def show_cut(limit: int, *, is_cut: bool) -> None:
    """Print to standard error that a list has more rows than are shown."""
    if is_cut:
        typer.echo(f"only the first {limit} are shown; use --limit for more", err=True)
