"""`headgate fanout`: lists, follows, exports and compares fan-outs, which split work into chunks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.fanout import repair
from headgate.cli.fanout.queues import doctor, drain
from headgate.cli.fanout.submit import submit
from headgate.cli.fanout.upload import upload
from headgate.cli.fanout.views import FanoutId, Lane, share_text, show_chunks, show_fanout, show_fanouts, show_more
from headgate.cli.output import short, show_table
from headgate.cli.session import Json
from headgate.cli.times import duration_text, past_time
from headgate.errors import UserError

app = command_group("Manage fan-outs: work split into chunks.")
app.command("submit")(submit)
app.command("upload")(upload)
app.command("doctor")(doctor)
app.command("drain")(drain)

Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file. [default: standard output]")
]
_CSV: Final = (
    "run_id", "chunk_id", "lane", "status", "disposition", "start", "items", "attempt", "created_at", "started_at",
    "completed_at", "duration_ms", "items_ok", "items_failed", "items_deferred", "worker", "input_key", "output_key",
    "error_class", "error_fingerprint", "error",
)  # fmt: skip


class FanoutStatus(StrEnum):
    """Status of a fan-out."""

    SPLITTING = "SPLITTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class ChunkStatus(StrEnum):
    """Status of a chunk."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


class Format(StrEnum):
    """Export format."""

    JSONL = "jsonl"
    CSV = "csv"


class Plot(StrEnum):
    """Plot of a fan-out."""

    PROGRESS = "progress"
    DURATIONS = "durations"
    ATTEMPTS = "attempts"
    CHUNKS = "chunks"
    WORKERS = "workers"


Status = Annotated[ChunkStatus | None, typer.Option("--status", case_sensitive=False, help="Filter by status.")]
InLane = Annotated[Lane, typer.Option("--lane", help="Filter by lane.")]


@server_command(app, "ls")
def ls(
    api: Api,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by group, newest first.")] = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by campaign.")] = None,
    status: Annotated[FanoutStatus | None, typer.Option(case_sensitive=False, help="Filter by status.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Created since, such as 2h (ago) or 2026-01-31.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Created until.")] = None,
    latest: Annotated[bool, typer.Option("--latest", help="Only the newest fan-out of the group.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 50,
) -> Answer:
    """List fan-outs, unfinished ones first."""
    query = {
        "group": group,
        "campaign": campaign,
        "status": status and status.value,
        "since": past_time(since, "--since"),
        "until": past_time(until, "--until"),
        "latest": "true" if latest else None,
    }
    found = list(api.entries("/fanouts", "fanouts", 1 if latest else limit, **query))
    yield found
    show_fanouts(found)


@server_command(app, "show")
def show(api: Api, id: FanoutId) -> Answer:
    """Show a fan-out: its progress, rate, errors and remedies."""
    found = api.get(at("fanouts", id))
    yield found
    show_fanout(found)


@server_command(app, "watch")
def watch(
    api: Api,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Fan-out ids.")] = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="All fan-outs of a campaign.")] = None,
    stall_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Exit after this long without progress; 0s: never. [default: by its policy]",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow fan-outs until they end. The exit code is 1 if one did not succeed, 5 if one stalled."""
    from headgate.cli.fanout.watch import follow
    from headgate.clock import SystemClock
    from headgate.durable.model.duration import optional_seconds

    run_ids = list(dict.fromkeys(ids or []))
    if campaign is not None:
        run_ids += [member["run_id"] for member in api.get(at("campaigns", campaign))["members"]]
    if not run_ids:
        raise UserError("watch: give fan-out ids, or --campaign")
    seconds = optional_seconds(stall_after, name="--stall-after")
    raise typer.Exit(follow(api, run_ids, stall_seconds=seconds, as_json=as_json, clock=SystemClock()))


# The earlier spelling of `chunk ls`.
@server_command(app, "chunks", hidden=True)
def chunks(
    api: Api,
    id: FanoutId,
    status: Status = None,
    lane: InLane = Lane.MAIN,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 100,
) -> Answer:
    """List the chunks of a fan-out in the order of their items."""
    query = {"status": status and status.value, "lane": lane.value}
    found, total = api.listed(at("fanouts", id, "chunks"), "chunks", limit, **query)
    yield found
    show_chunks(found)
    show_more(len(found), total, "chunks")


def _chunks(api: Api, run_id: str, status: ChunkStatus | None, lane: Lane, limit: int | None) -> Iterator[Any]:
    return api.entries(
        at("fanouts", run_id, "chunks"), "chunks", limit, status=status and status.value, lane=lane.value
    )


@server_command(app, "events")
def events(api: Api, id: FanoutId) -> Answer:
    """List the control events of a fan-out: who did what and why."""
    found = list(api.entries(at("fanouts", id, "events"), "events"))
    yield found
    rows = [
        (short(each["at"]), each["kind"], each.get("count", ""), each.get("by", ""), each.get("reason", ""))
        for each in found
    ]
    show_table(("AT", "EVENT", "CHUNKS", "BY", "REASON"), rows, nothing="no events")


@server_command(app, "export")
def export(
    api: Api,
    id: FanoutId,
    format: Annotated[Format, typer.Option(help="JSON lines or CSV.")] = Format.JSONL,
    output: Output = None,
    status: Status = None,
    lane: InLane = Lane.MAIN,
) -> None:
    """Export all chunks with their outputs and errors."""
    found = _chunks(api, id, status, lane, None)
    write = _write_csv if format is Format.CSV else _write_jsonl
    if output is None:
        write(found, sys.stdout)
        return
    try:
        with output.open("w", encoding="utf-8", newline="") as file:
            count = write(found, file)
    except OSError as exc:
        raise UserError(f"--output {output}: cannot be written: {exc.strerror}") from exc
    typer.echo(f"{count} chunks in {output}", err=True)


def _write_jsonl(chunks: Iterator[Any], file: TextIO) -> int:
    import msgspec

    count = 0
    for chunk in chunks:
        file.write(msgspec.json.encode(chunk).decode() + "\n")
        count += 1
    return count


def _write_csv(chunks: Iterator[Any], file: TextIO) -> int:
    import csv

    writer = csv.DictWriter(file, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    count = 0
    for chunk in chunks:
        writer.writerow(chunk)
        count += 1
    return count


@server_command(app, "compare")
def compare(
    api: Api,
    before: FanoutId,
    after: Annotated[str, typer.Argument(metavar="OTHER", help="Fan-out to compare it with.")],
) -> Answer:
    """Compare two fan-outs."""
    found = api.get(at("fanouts", before, "compare", after))
    yield found
    if found["asked_differently"]:
        typer.echo(f"submitted with different options: {', '.join(found['asked_differently'])}")
    rows = [
        (each["name"], _figure(each["before"]), _figure(each["after"]), _ratio(each["ratio"]))
        for each in found["figures"]
    ]
    show_table(("", before, after, "RATIO"), rows, nothing="nothing to compare")
    shifts = [(each["error_class"], each["before"], each["after"], each["message"]) for each in found["errors"]]
    if shifts:
        typer.echo()
        show_table(("ERROR", before, after, "MESSAGE"), shifts, nothing="")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _ratio(value: float | None) -> str:
    return "" if value is None or value == 1 else f"{value:.2f}"


@server_command(app, "plot")
def plot(
    api: Api,
    id: FanoutId,
    name: Annotated[Plot, typer.Argument(help="Plot to draw.")] = Plot.PROGRESS,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file. [default: ID-NAME.svg]")
    ] = None,
) -> Answer:
    """Plot a fan-out as SVG and print the file name."""
    content = api.content(at("fanouts", id, "plots", f"{name.value}.svg"))
    path = output if output is not None else Path(f"{id.replace('/', '-')}-{name.value}.svg")
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise UserError(f"--output {path}: cannot be written: {exc.strerror}") from exc
    yield {"file": str(path), "bytes": len(content)}
    typer.echo(str(path))


@server_command(app, "campaign")
def campaign(api: Api, name: Annotated[str, typer.Argument(metavar="NAME", help="Campaign name.")]) -> Answer:
    """Summarize the fan-outs of a campaign."""
    found = api.get(at("campaigns", name))
    yield found
    rows = [
        (each["run_id"], each["group"], each["status"], f"{each['completed']}/{each['total']}", each["failed"] or "")
        for each in found["members"]
    ]
    show_table(("RUN", "GROUP", "STATUS", "CHUNKS", "FAILED"), rows, nothing="no fan-outs")
    eta = found["eta_seconds"]
    left = "" if found["is_finished"] else f", remaining {'unknown' if eta is None else 'about ' + duration_text(eta)}"
    counts = found["counts"]
    done = counts["done"] + counts["deferred"]
    typer.echo(f"{found['status']}: {done} of {counts['total']} chunks completed, {share_text(found)}{left}")


repair.add_commands(app)
