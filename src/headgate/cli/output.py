"""What commands print for people: tables, facts, and moments without what nobody reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import typer

WIDTH_OF_FILES: Final = 240


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str, key: int = 0) -> None:
    """Print rows under their columns, or `nothing` if there are none. `key` is the column that rows are found by."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [[Text(_text(cell)) for cell in row] for row in rows]
    if not lines:
        typer.echo(nothing)
        return
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        # What a row is found by is not broken over lines: it is what people copy.
        table.add_column(column, no_wrap=place == key, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:
        # Nobody's window is that narrow: a program reads it, or a file, and lines are what it reads.
        console.width = max(console.width, WIDTH_OF_FILES)
    console.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print one fact a line; those that are empty are left out."""
    shown = {name: _text(value) for name, value in facts.items() if value not in (None, "", [], {})}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        typer.echo(f"{name.ljust(width)}  {value}")


def short(moment: str | None) -> str:
    """Return a moment to the second, as tables have room for."""
    return "" if not moment else f"{moment[:10]} {moment[11:19]}"


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


def compact(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Return a value as JSON on one line."""
    import msgspec

    return msgspec.json.encode(value).decode()
