"""Options that the commands about the health of datasets share."""

from __future__ import annotations

from typing import Annotated

import typer

Urn = Annotated[str, typer.Argument(metavar="URN", help="The dataset, such as urn:dp:orders:created.")]
Ticket = Annotated[str | None, typer.Option("--ticket", metavar="ID", help="The ticket that approves of it.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For whoever asks later.")]
IfVersion = Annotated[
    int | None, typer.Option("--if-version", metavar="N", min=0, help="Only if it is still at this version.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many at most.")]
