"""The program with one of its words: all of them take longer to be made known than a call takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import typer
from typer.testing import CliRunner

from headgate.cli import main
from headgate.cli.session import Session


def invoke(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Any:
    """Run a command in this process, and return how it ended."""
    return CliRunner().invoke(_part(arguments[0]), arguments, obj=Session(dict(environ or {})))


@cache
def _part(word: str) -> typer.Typer:
    if word not in (*main._COMMANDS, *main._GROUPS):
        return main.load()
    part = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    part.callback()(lambda: None)
    main.add_command(part, word)
    return part
