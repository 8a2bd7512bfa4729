"""`headgate schedule create` and `update`: the specification of a schedule."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at, read_payload, read_tags
from headgate.cli.commands import Answer, calls_server
from headgate.cli.options import Input, Tags
from headgate.cli.output import short
from headgate.cli.times import future_time
from headgate.errors import UserError


class Overlap(StrEnum):
    """Policy for a slot that is due while an execution of the schedule is open."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    ALLOW = "allow"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class CatchUp(StrEnum):
    """Policy for slots that were missed."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


Id = Annotated[str, typer.Argument(metavar="ID", help="Schedule id.")]
_WORKFLOW: Final = typer.Option("--workflow", metavar="NAME", help="Workflow to start.")
_CRON: Final = typer.Option("--cron", metavar="WHEN", help="Cron expression, @hourly, or 'every 15m'.")
_ZONE: Final = typer.Option("--zone", metavar="ZONE", help="Time zone, such as Europe/Berlin.")
_OVERLAP: Final = typer.Option("--overlap", help="Policy while an execution is open.")
_CATCHUP: Final = typer.Option("--catchup", help="Policy for missed slots.")
Window = Annotated[
    str | None,
    typer.Option("--catchup-window", metavar="DURATION", help="How far back missed slots are started, such as 7d."),
]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="DURATION", help="Spread starts over this duration.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="Time out each execution after this.")
]
Retention = Annotated[
    str | None, typer.Option("--retention", metavar="DURATION", help="How long to keep closed executions.")
]
Start = Annotated[
    str | None,
    typer.Option("--start", metavar="TIME", help="First possible slot: 2026-01-31T06:00:00Z, or 2h from now."),
]
End = Annotated[str | None, typer.Option("--end", metavar="TIME", help="No slots from this time on.")]
# Removes a limit from a schedule.
_NONE: Final = "none"
_REMOVABLE: Final = ("jitter", "timeout", "retention", "start", "end")


@calls_server
def create(  # noqa: PLR0913 - each is an option
    api: Api,
    id: Id,
    workflow: Annotated[str, _WORKFLOW],
    cron: Annotated[str, _CRON],
    zone: Annotated[str, _ZONE] = "UTC",
    input: Input = None,
    overlap: Annotated[Overlap, _OVERLAP] = Overlap.SKIP,
    catchup: Annotated[CatchUp, _CATCHUP] = CatchUp.LAST,
    catchup_window: Window = None,
    jitter: Jitter = None,
    timeout: Timeout = None,
    retention: Retention = None,
    start: Start = None,
    end: End = None,
    tag: Tags = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
) -> Answer:
    """Create a schedule."""
    body = {
        "id": id,
        "workflow": workflow,
        "cron": cron,
        "zone": zone,
        "input": read_payload(input, "--input"),
        "overlap": overlap.value,
        "catchup": catchup.value,
        "catchup_window": catchup_window,
        "jitter": jitter,
        "timeout": timeout,
        "retention": retention,
        "start": future_time(start, "--start"),
        "end": future_time(end, "--end"),
        "tags": read_tags(tag),
        "paused": paused,
    }
    schedule = api.post("/schedules", body)
    yield schedule
    typer.echo(schedule_text(schedule))


@calls_server
def update(  # noqa: PLR0913 - each is an option
    api: Api,
    id: Id,
    workflow: Annotated[str | None, _WORKFLOW] = None,
    cron: Annotated[str | None, _CRON] = None,
    zone: Annotated[str | None, _ZONE] = None,
    input: Input = None,
    overlap: Annotated[Overlap | None, _OVERLAP] = None,
    catchup: Annotated[CatchUp | None, _CATCHUP] = None,
    catchup_window: Window = None,
    jitter: Jitter = None,
    timeout: Timeout = None,
    retention: Retention = None,
    start: Start = None,
    end: End = None,
    tag: Tags = None,
) -> Answer:
    """Update a schedule. Omitted options keep their values; --tag replaces all tags.

    The value 'none' removes --jitter, --timeout, --retention, --start or --end.
    """
    options = {
        "workflow": workflow,
        "cron": cron,
        "zone": zone,
        "input": read_payload(input, "--input"),
        "overlap": None if overlap is None else overlap.value,
        "catchup": None if catchup is None else catchup.value,
        "catchup_window": catchup_window,
        "jitter": jitter,
        "timeout": timeout,
        "retention": retention,
        "start": start if start == _NONE else future_time(start, "--start"),
        "end": end if end == _NONE else future_time(end, "--end"),
        "tags": None if tag is None else read_tags(tag),
    }
    changes = {name: value for name, value in options.items() if value is not None}
    if not changes:
        raise UserError(f"schedule {id}: no changes; see 'headgate schedule update --help'")
    current = api.get(at("schedules", id))
    body = {**_spec(current), **changes}
    body = {name: value for name, value in body.items() if not (name in _REMOVABLE and value == _NONE)}
    # The revision guards against overwriting a concurrent update.
    schedule = api.request("PUT", at("schedules", id), body=body, if_match=current["revision"])
    yield schedule
    typer.echo(schedule_text(schedule))


def schedule_text(schedule: dict[str, Any]) -> str:
    """Describe a schedule: its workflow, its cron expression and its next slot."""
    cron = f"{schedule['cron']} {schedule['zone']}"
    return f"{schedule['id']}: {schedule['workflow']}, {cron}; next {next_slot(schedule)}"


def next_slot(schedule: dict[str, Any]) -> str:
    """Return the time of the next slot, or why there is none."""
    if schedule["paused"]:
        return "paused"
    return short(schedule.get("next")) or "never"


def _spec(view: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a schedule from its view."""
    names = ("workflow", "cron", "zone", "input", "overlap", "catchup", "tags", "start", "end")
    spec = {name: view[name] for name in names if name in view}
    for name in ("catchup_window", "jitter", "timeout", "retention"):
        if f"{name}_seconds" in view:
            spec[name] = view[f"{name}_seconds"]
    return spec
