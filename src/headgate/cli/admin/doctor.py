"""`headgate doctor`: what is wrong with this installation and this home, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of

if TYPE_CHECKING:
    from headgate.cli.admin.diagnosis import Finding


def doctor(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Look for trouble, change nothing.

    The exit code is 0 if nothing fails, 1 if something does.
    """
    from headgate.cli.admin.diagnosis import Verdict, diagnose

    findings = diagnose(lambda: session_of(context).settings(config, home=home))
    if as_json:
        echo_json(findings)
    else:
        _print(findings)
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)


def _print(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
    table = Table("", "CHECK", "FACT", "REMEDY", box=None, pad_edge=False)
    for finding in findings:
        # As Text, so that brackets in a path or an address are not taken for markup.
        cells = (finding.check, finding.fact, finding.remedy)
        table.add_row(Text(finding.verdict, colours[finding.verdict]), *map(Text, cells))
    Console().print(table)
