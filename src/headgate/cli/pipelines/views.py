"""Text output shared by the pipeline commands: local times, run reasons and rule trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.times import duration_text
from headgate.errors import NotFoundError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_UTC: Final = "UTC"
Row = Mapping[str, Any]


class LocalTimes:
    """Formats times in the time zones of pipelines; each zone is read from the server once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._zones: dict[str, ZoneInfo] = {}

    def text(self, pipeline_id: str, moment: str | None) -> str:
        """Return a time to the second in the pipeline's time zone, with the zone; "Z" is UTC."""
        if not moment:
            return ""
        from datetime import datetime

        if pipeline_id not in self._zones:
            self._zones[pipeline_id] = self._read_zone(pipeline_id)
        local = datetime.fromisoformat(moment).astimezone(self._zones[pipeline_id])
        zone = local.tzname() or ""
        return f"{local:%Y-%m-%d %H:%M:%S}" + ("Z" if zone == _UTC else f" {zone}")

    def _read_zone(self, pipeline_id: str) -> ZoneInfo:
        from headgate.pipelines.schedule.local_time import zone_of

        try:
            definition = self._api.get(at("pipelines", pipeline_id))["definition"]
        except NotFoundError:
            # Runs and events outlive their pipeline.
            return zone_of(_UTC)
        return zone_of(definition.get("timezone", _UTC))


def show_tree(lines: Iterable[Row], indent: str = "  ") -> None:
    """Print lines with their children indented: status, label and reason."""
    for line in lines:
        reason = f": {line['reason']}" if line.get("reason") else ""
        typer.echo(f"{indent}[{line['status']}] {line['label']}{reason}")
        show_tree(line.get("children", ()), f"{indent}  ")


def show_rules(rules: Iterable[Row], times: LocalTimes, pipeline_id: str) -> None:
    """Print the verdicts of rules and of their children."""
    show_tree([_rule_line(each, times, pipeline_id) for each in rules])


def _rule_line(rule: Row, times: LocalTimes, pipeline_id: str) -> Row:
    warns = " (warns only)" if rule["severity"] == "warn" else ""
    is_passed = rule["verdict"] == "PASS" or not rule["since"]
    since = "" if is_passed else f", since {times.text(pipeline_id, rule['since'])}"
    return {
        "status": rule["verdict"],
        "label": f"{rule['name']}{warns}",
        "reason": f"{rule['reason']}{since}",
        "children": [_rule_line(each, times, pipeline_id) for each in rule["children"]],
    }


def show_lines(lines: Iterable[str]) -> None:
    """Print indented lines."""
    for line in lines:
        typer.echo(f"  {line}")


def milliseconds_text(duration_ms: int | None) -> str:
    """Return a duration in at most two units; empty for None."""
    return "" if duration_ms is None else duration_text(duration_ms / 1000)


def reason_text(row: Row) -> str:
    """Return why a run or a period has its status: its hold, its manual order, or its reason and failure category."""
    reason = row.get("reason") or ""
    hold, order = row.get("hold"), row.get("order")
    if hold:
        reason = f"held by {hold['by']}: {hold['reason']}"
    elif order:
        reason = f"{order['order']} by {order['by']}: {order['reason']}"
    return f"{row['category']}: {reason}" if row.get("category") and reason else reason
