"""`headgate dataset producers`: who sends to a topic."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api import Api, asks, at
from headgate.cli.health_options import Limit
from headgate.cli.moments import ago
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json


@asks
def producers(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Such as raw.orders.")],
    add: Annotated[str | None, typer.Option(metavar="ID", help="Say that this one sends to it.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List who sends to a topic, how that is known, and when they were last seen; or say it with --add."""
    path = at("topics", topic, "producers")
    if add is not None:
        found = [api.request("PUT", path + at(add), body={"source": "MANUAL"})]
    else:
        found = list(api.pages(path, limit))
    if as_json:
        echo_json(found)
        return
    rows = [(each["producer_id"], each["source"], each["confidence"], ago(each["last_seen_at"])) for each in found]
    show_table(("PRODUCER", "KNOWN BY", "CONFIDENCE", "LAST SEEN"), rows, nothing="nobody is known to send to it")
