"""`headgate doctor`: prints the results of the installation checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.cli.server.diagnosis import CheckResult


def doctor(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Check the installation and the home without changing anything.

    The exit code is 1 if a check fails.
    """
    from headgate.cli.server.diagnosis import CheckStatus, diagnose

    results = diagnose(lambda: session_of(context).settings(config, home=home))
    if as_json:
        echo_json(results)
    else:
        _print(results)
    if any(result.verdict is CheckStatus.FAIL for result in results):
        raise typer.Exit(ExitCode.FAILED)


def _print(results: Sequence[CheckResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
    table = Table("", "CHECK", "FACT", "REMEDY", box=None, pad_edge=False)
    for result in results:
        # Text, because brackets in paths and addresses are not markup.
        cells = (result.check, result.fact, result.remedy)
        table.add_row(Text(result.verdict, colours[result.verdict]), *map(Text, cells))
    Console().print(table)
