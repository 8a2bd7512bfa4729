"""Options that the commands about pipelines share."""

from __future__ import annotations

from typing import Annotated

import typer

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="Its id.")]
Date = Annotated[
    str,
    typer.Option("--date", metavar="DATE", help="The period: 2026-03-03, 2026-03-03T07, 2026-W10, 2026-03."),
]
OptionalDate = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="DATE",
        help="The period: 2026-03-03, 2026-03-03T07, 2026-W10, 2026-03. [default: the present one]",
        show_default=False,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Which of its schedules. [default: the only one]"),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever reads it later.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many at most.")]
