"""`headgate pipeline events`: what happened to pipelines, and what happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.pipelines.views import PAGE, Limit, Walls, pages
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, asked

_LOOK_SECONDS: Final = 1.0
# What two processes tell at the same moment may come to be seen in another order than it is dated.
_OVERLAP_SECONDS: Final = 10.0


@asks
def events(
    api: Api,
    pipeline: Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="[default: all]")] = None,
    name: Annotated[list[str] | None, typer.Option("--name", metavar="NAME", help="Such as JOB_FAILED.")] = None,
    since: SinceOption = None,
    limit: Limit = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
    as_json: Json = False,
) -> None:
    """Show what happened to a pipeline, or to all, the latest last."""
    from headgate.clock import SystemClock

    moment = asked(since, "--since")
    found = _past(api, pipeline, name, moment, limit)
    shown = _Shown(Walls(api), as_json=as_json)
    if as_json and not follow:
        echo_json(found)
        return
    shown.show(found)
    if not follow:
        if not found:
            typer.echo("nothing has happened")
        return
    clock = SystemClock()
    try:
        while True:
            clock.sleep(_LOOK_SECONDS)
            shown.show(_news(api, pipeline, name, shown.last or moment))
    except KeyboardInterrupt:
        return


def _past(
    api: Api, pipeline: str | None, names: list[str] | None, since: str | None, limit: int
) -> list[dict[str, Any]]:
    if pipeline is None:
        return list(_of_all(api, names, since, limit))
    found = pages(api, at("pipelines", pipeline, "events"), "events", limit, name=names or None, since=since)
    return list(found)[::-1]


def _of_all(api: Api, names: list[str] | None, since: str | None, limit: int) -> Iterator[dict[str, Any]]:
    """Yield what happened to all pipelines. One name is asked for at a time, several are picked out here."""
    only = names[0] if names is not None and len(names) == 1 else None
    page = api.get("/pipeline-events", name=only, since=since, limit=min(limit, PAGE))
    wanted = {each.upper() for each in names or ()}
    yield from (each for each in page["events"] if not wanted or each["name"] in wanted)


def _news(api: Api, pipeline: str | None, names: list[str] | None, last: str | None) -> list[dict[str, Any]]:
    from datetime import datetime, timedelta

    since = None
    if last is not None:
        since = (datetime.fromisoformat(last) - timedelta(seconds=_OVERLAP_SECONDS)).isoformat()
    if pipeline is None:
        return list(_of_all(api, names, since, PAGE))
    path = at("pipelines", pipeline, "events")
    return list(pages(api, path, "events", None, name=names or None, since=since, oldest_first="true"))


class _Shown:
    """Shows each event once."""

    def __init__(self, walls: Walls, *, as_json: bool) -> None:
        self.last: str | None = None
        self._walls = walls
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
        moment = self._walls.text(event["pipeline_id"], event["timestamp"])
        more = f"; {event['message']}" if event["message"] else ""
        return f"{moment}  {event['severity']:8}  {event['name']}  {event['text']}{more}"
