"""Text output: tables, name-value lists and short timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import typer

FILE_WIDTH: Final = 240


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str, key: int = 0) -> None:
    """Print a table, or `nothing` if it has no rows. `key` is the index of the identifying column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [[Text(_text(cell)) for cell in row] for row in rows]
    if not lines:
        typer.echo(nothing)
        return
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        # The identifying column is never wrapped, so that it can be copied.
        table.add_column(column, no_wrap=index == key, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:
        # Files and pipes get one line per row.
        console.width = max(console.width, FILE_WIDTH)
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
