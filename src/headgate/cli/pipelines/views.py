"""Options that the commands about pipelines share.

What the commands about pipelines print for people: moments on the wall of a pipeline, runs, periods, rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


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

PAGE: Final = 1000
_UTC: Final = "UTC"
Row = Mapping[str, Any]


class Walls:
    """The clocks on the walls of pipelines: each is asked for once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._zones: dict[str, ZoneInfo] = {}

    def text(self, pipeline_id: str, moment: str | None) -> str:
        """Return a moment as the clock of a pipeline shows it, to the second, with its zone unless that is UTC."""
        if not moment:
            return ""
        from datetime import datetime

        local = datetime.fromisoformat(moment).astimezone(self._zone(pipeline_id))
        zone = local.tzname() or ""
        return f"{local:%Y-%m-%d %H:%M:%S}" + ("" if zone == _UTC else f" {zone}")

    def _zone(self, pipeline_id: str) -> ZoneInfo:
        if pipeline_id not in self._zones:
            self._zones[pipeline_id] = _zone_of(self._api, pipeline_id)
        return self._zones[pipeline_id]


def _zone_of(api: Api, pipeline_id: str) -> ZoneInfo:
    from headgate.pipelines.schedule.local_time import zone_of

    try:
        definition = api.get(at("pipelines", pipeline_id))["definition"]
    except NotFoundError:
        # Of a pipeline that was taken away, or of what is no pipeline's: its runs and events are still shown.
        return zone_of(_UTC)
    return zone_of(definition.get("timezone", _UTC))


def pages(api: Api, path: str, what: str, limit: int | None = None, **query: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield what is on the pages of a list, up to a limit. A page may be empty although there are more."""
    cursor, count = None, 0
    while limit is None or count < limit:
        size = PAGE if limit is None else min(PAGE, limit - count)
        page = api.get(path, **query, limit=size, cursor=cursor)
        yield from page[what]
        count += len(page[what])
        cursor = page.get("cursor")
        if cursor is None:
            return


def later(text: str | None, name: str) -> str | None:
    """Return a moment to come that was given as such, or as how long from now. Raises `UserError`."""
    from datetime import UTC, datetime, timedelta

    from headgate.cli.times import now
    from headgate.durable.model import duration

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()
    except ValueError:
        pass
    try:
        return (now() + timedelta(seconds=duration.seconds(text, name=name))).isoformat()
    except (UserError, OverflowError) as exc:
        raise UserError(f"{name} {text!r}: write a time such as 2026-01-31T06:00:00Z, or for how long: 2h") from exc


def show_tree(lines: Iterable[Row], indent: str = "  ") -> None:
    """Print lines with those below them: how each stands, what it is and why."""
    for line in lines:
        reason = f": {line['reason']}" if line.get("reason") else ""
        typer.echo(f"{indent}[{line['status']}] {line['label']}{reason}")
        show_tree(line.get("children", ()), f"{indent}  ")


def show_rules(rules: Iterable[Row], walls: Walls, pipeline_id: str) -> None:
    """Print what rules came to, with those below them."""
    show_tree([_rule_line(each, walls, pipeline_id) for each in rules])


def _rule_line(rule: Row, walls: Walls, pipeline_id: str) -> Row:
    warns = " (warns only)" if rule["severity"] == "warn" else ""
    is_passed = rule["verdict"] == "PASS" or not rule["since"]
    since = "" if is_passed else f", since {walls.text(pipeline_id, rule['since'])}"
    return {
        "status": rule["verdict"],
        "label": f"{rule['name']}{warns}",
        "reason": f"{rule['reason']}{since}",
        "children": [_rule_line(each, walls, pipeline_id) for each in rule["children"]],
    }


def show_lines(lines: Iterable[str]) -> None:
    """Print what differs, one thing a line."""
    for line in lines:
        typer.echo(f"  {line}")


def took(duration_ms: int | None) -> str:
    """Return how long something took, in two units at most."""
    if duration_ms is None:
        return ""
    from headgate.cli.fanout.views import about

    return about(duration_ms / 1000)


def progress_text(row: Row) -> str:
    """Return where a period stands and why, in a few words."""
    said = row.get("reason") or ""
    hold, order = row.get("hold"), row.get("order")
    if hold:
        said = f"held by {hold['by']}: {hold['reason']}"
    elif order:
        said = f"{order['order']} by {order['by']}: {order['reason']}"
    return f"{row['category']}: {said}" if row.get("category") and said else said
