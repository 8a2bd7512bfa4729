"""Options shared by commands of several groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# What a change is about.
Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="Pipeline id.")]
Date = Annotated[
    str,
    typer.Option("--date", metavar="DATE", help="Period: 2026-03-03, 2026-03-03T07, 2026-W10, 2026-03."),
]
OptionalDate = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="DATE",
        help="Period: 2026-03-03, 2026-03-03T07, 2026-W10, 2026-03. [default: the current one]",
        show_default=False,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Schedule of the pipeline. [default: the only one]"),
]
Urn = Annotated[str, typer.Argument(metavar="URN", help="Dataset, such as urn:dp:orders:created.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME:VALUE", help="Tag. Repeatable.")]

# Why it is made, and on which condition.
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")]
Ticket = Annotated[str | None, typer.Option("--ticket", metavar="ID", help="Approval ticket.")]
IfVersion = Annotated[
    int | None, typer.Option("--if-version", metavar="N", min=0, help="Fail unless this is the current version.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change without changing it.")]
Resources = Annotated[
    str | None,
    typer.Option(
        "--resources",
        metavar="FILE",
        help="Resource map of state machines, in the project folder. [tasks.resources]",
        show_default=False,
        # In the settings a relative path means the project folder; on the command line, the current one.
        callback=lambda file: None if file is None else str(Path(file).absolute()),
    ),
]
TestCase = Annotated[
    str, typer.Option("--test-case", metavar="NAME", help="Answer with the mocks of this test case of the map.")
]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON", help="JSON, @file, or - for standard input.")]

# How long a command that follows something waits for its end.
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Stop after this long, with exit code 75. [default: never]",
        show_default=False,
    ),
]

# Which rows a list over all pipelines has.
PipelineOption = Annotated[str | None, typer.Option("--pipeline", metavar="ID", help="Filter by pipeline.")]
OwnerOption = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Filter by owner of the pipeline.")]
TierOption = Annotated[
    int | None, typer.Option("--tier", metavar="N", min=1, help="Filter by tier of the pipeline; 1 is critical.")
]

# Which rows a list has.
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Start of the range, such as 2h (ago) or 2026-01-31.")
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="End of the range, such as 1h (ago).")]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Start of the range: 2026-01-31T06:00:00Z, 2026-01-31, or 2h (ago).",
    ),
]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="End of the range, exclusive.")]
