"""`headgate pipeline events`: lists and follows the events of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import ENTRIES_PAGE, Api, at
from headgate.cli.commands import calls_server
from headgate.cli.options import Limit, SinceOption
from headgate.cli.pipelines.views import LocalTimes
from headgate.cli.session import Json, echo_json
from headgate.cli.times import past_time

_POLL_SECONDS: Final = 1.0
# Events of several processes may become visible out of order, so each poll reads this much again.
_OVERLAP_SECONDS: Final = 10.0


@calls_server
def events(
    api: Api,
    pipeline: Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Pipeline id. [default: all]")] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="Event name, such as JOB_FAILED. Repeatable.")
    ] = None,
    since: SinceOption = None,
    limit: Limit = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events until interrupted.")] = False,
    as_json: Json = False,
) -> None:
    """List the events of a pipeline, or of all pipelines, newest last."""
    from headgate.clock import SystemClock

    moment = past_time(since, "--since")
    found = _past_events(api, pipeline, name, moment, limit)
    printer = _EventPrinter(LocalTimes(api), as_json=as_json)
    if as_json and not follow:
        echo_json(found)
        return
    printer.show(found)
    if not follow:
        if not found:
            typer.echo("no events")
        return
    clock = SystemClock()
    try:
        while True:
            clock.sleep(_POLL_SECONDS)
            printer.show(_new_events(api, pipeline, name, printer.last or moment))
    except KeyboardInterrupt:
        return


def _past_events(
    api: Api, pipeline: str | None, names: list[str] | None, since: str | None, limit: int
) -> list[dict[str, Any]]:
    if pipeline is None:
        return list(_all_events(api, names, since, limit))
    found = api.entries(at("pipelines", pipeline, "events"), "events", limit, name=names or None, since=since)
    return list(found)[::-1]


def _all_events(api: Api, names: list[str] | None, since: str | None, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the events of all pipelines. The server filters by one name; several are filtered here."""
    only = names[0] if names is not None and len(names) == 1 else None
    page = api.get("/pipeline-events", name=only, since=since, limit=min(limit, ENTRIES_PAGE))
    selected = {each.upper() for each in names or ()}
    yield from (each for each in page["events"] if not selected or each["name"] in selected)


def _new_events(api: Api, pipeline: str | None, names: list[str] | None, last: str | None) -> list[dict[str, Any]]:
    from datetime import datetime, timedelta

    since = None
    if last is not None:
        since = (datetime.fromisoformat(last) - timedelta(seconds=_OVERLAP_SECONDS)).isoformat()
    if pipeline is None:
        return list(_all_events(api, names, since, ENTRIES_PAGE))
    path = at("pipelines", pipeline, "events")
    return list(api.entries(path, "events", None, name=names or None, since=since, oldest_first="true"))


class _EventPrinter:
    """Prints each event once."""

    def __init__(self, times: LocalTimes, *, as_json: bool) -> None:
        self.last: str | None = None
        self._times = times
        self._as_json = as_json
        self._seen: set[str] = set()

    def show(self, found: list[dict[str, Any]]) -> None:
        for event in found:
            if event["event_id"] in self._seen:
                continue
            self._seen.add(event["event_id"])
            self.last = max(self.last or "", event["timestamp"])
            if self._as_json:
                echo_json(event)
            else:
                typer.echo(self._line(event))

    def _line(self, event: dict[str, Any]) -> str:
        moment = self._times.text(event["pipeline_id"], event["timestamp"])
        more = f"; {event['message']}" if event["message"] else ""
        return f"{moment}  {event['severity']:8}  {event['name']}  {event['text']}{more}"
