"""`headgate schedule create` and `update`: what is started when, and what if slots collide or were missed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, Input, Tags, asks, at, read_payload, read_tags
from headgate.cli.output import short
from headgate.cli.pipelines.views import later
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError


class Overlap(StrEnum):
    """What to do when a slot comes while an execution of the schedule is still open."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    ALLOW = "allow"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class CatchUp(StrEnum):
    """What to do about slots that nobody was there to start."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


Id = Annotated[str, typer.Argument(metavar="ID", help="The schedule.")]
_WORKFLOW: Final = typer.Option("--workflow", metavar="NAME", help="What is started.")
_CRON: Final = typer.Option("--cron", metavar="WHEN", help="'0 6 * * MON-FRI', @hourly, or 'every 15m'.")
_ZONE: Final = typer.Option("--zone", metavar="ZONE", help="Such as Europe/Berlin.")
_OVERLAP: Final = typer.Option("--overlap", help="What to do while one is still open.")
_CATCHUP: Final = typer.Option("--catchup", help="What to do about slots that were missed.")
Window = Annotated[
    str | None,
    typer.Option("--catchup-window", metavar="DURATION", help="How far back missed slots are made up for: 7d."),
]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="DURATION", help="Spread the starts over this time.")]
Timeout = Annotated[str | None, typer.Option("--timeout", metavar="DURATION", help="End each execution after this.")]
Retention = Annotated[
    str | None, typer.Option("--retention", metavar="DURATION", help="Keep what became of each execution for so long.")
]
Start = Annotated[
    str | None, typer.Option("--start", metavar="TIME", help="No slots before: 2026-01-31T06:00:00Z, or in 2h.")
]
End = Annotated[str | None, typer.Option("--end", metavar="TIME", help="No slots from then on.")]
# What takes a limit away from a schedule that has one.
_NONE: Final = "none"
_REMOVABLE: Final = ("jitter", "timeout", "retention", "start", "end")


@asks
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
    paused: Annotated[bool, typer.Option("--paused", help="Start nothing yet.")] = False,
    as_json: Json = False,
) -> None:
    """Make a schedule."""
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
        "start": later(start, "--start"),
        "end": later(end, "--end"),
        "tags": read_tags(tag),
        "paused": paused,
    }
    say(api.post("/schedules", body), as_json=as_json)


@asks
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
    as_json: Json = False,
) -> None:
    """Change a schedule. What is not given stays as it is; tags are given all together.

    'none' takes away --jitter, --timeout, --retention, --start or --end.
    """
    given = {
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
        "start": start if start == _NONE else later(start, "--start"),
        "end": end if end == _NONE else later(end, "--end"),
        "tags": None if tag is None else read_tags(tag),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise UserError(f"schedule {id}: nothing to change is given; see 'headgate schedule update --help'")
    current = api.get(at("schedules", id))
    body = {**_spec(current), **changes}
    body = {name: value for name, value in body.items() if not (name in _REMOVABLE and value == _NONE)}
    # Only what was read is changed: what someone else has said meanwhile is not undone.
    say(api.request("PUT", at("schedules", id), body=body, if_match=current["revision"]), as_json=as_json)


def say(schedule: dict[str, Any], *, as_json: bool) -> None:
    """Print a schedule: what is started, when, and when next."""
    if as_json:
        echo_json(schedule)
    else:
        typer.echo(
            f"{schedule['id']}: {schedule['workflow']}, {schedule['cron']} {schedule['zone']}; "
            f"next {next_slot(schedule)}"
        )


def next_slot(schedule: dict[str, Any]) -> str:
    """Return when a schedule starts something next, in few words."""
    if schedule["paused"]:
        return "paused"
    return short(schedule.get("next")) or "never"


def _spec(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what a schedule that is shown was made with."""
    names = ("workflow", "cron", "zone", "input", "overlap", "catchup", "tags", "start", "end")
    spec = {name: shown[name] for name in names if name in shown}
    for name in ("catchup_window", "jitter", "timeout", "retention"):
        if f"{name}_seconds" in shown:
            spec[name] = shown[f"{name}_seconds"]
    return spec
