"""`headgate fanout`: work that is split into chunks: made, listed, looked into, followed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.fanout import repair as mending
from headgate.cli.fanout.exit_codes import FanoutGroup
from headgate.cli.fanout.queues import doctor, drain
from headgate.cli.fanout.submit import submit
from headgate.cli.fanout.views import about, show_chunks, show_fanout, show_fanouts
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import asked
from headgate.errors import UserError

app = typer.Typer(
    cls=FanoutGroup,
    help="Work that is split into chunks. Exit codes: 0 all is well; 2 it ended partial or failed, or something is "
    "wrong; 3 it has stalled; 4 not found; 5 fix what was given; 75 try again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("submit")(submit)
app.command("doctor")(doctor)
app.command("drain")(drain)

Id = Annotated[str, typer.Argument(metavar="ID", help="The fan-out.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")]
_PAGE: Final = 1000
_CSV: Final = (
    "run_id", "chunk_id", "lane", "status", "disposition", "start", "items", "attempt", "created_at", "started_at",
    "completed_at", "duration_ms", "items_ok", "items_failed", "items_deferred", "worker", "input_key", "output_key",
    "error_class", "error_fingerprint", "error",
)  # fmt: skip


class FanoutStatus(StrEnum):
    """Where a fan-out stands."""

    SPLITTING = "SPLITTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class ChunkStatus(StrEnum):
    """Where a chunk stands."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


class Lane(StrEnum):
    """Where chunks run: most in the main lane, deferred items in the slow one."""

    MAIN = "main"
    SLOW = "slow"


class Format(StrEnum):
    """How chunks are written."""

    JSONL = "jsonl"
    CSV = "csv"


class Plot(StrEnum):
    """What can be drawn."""

    PROGRESS = "progress"
    DURATIONS = "durations"
    ATTEMPTS = "attempts"
    CHUNKS = "chunks"
    WORKERS = "workers"


Status = Annotated[ChunkStatus | None, typer.Option("--status", case_sensitive=False)]
InLane = Annotated[Lane, typer.Option("--lane")]


@app.command("ls")
@asks
def ls(
    api: Api,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Those of a group, the newest first.")] = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="Those of a campaign.")] = None,
    status: Annotated[FanoutStatus | None, typer.Option(case_sensitive=False)] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Made since, such as 2h or 2026-01-31.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Made until then.")] = None,
    latest: Annotated[bool, typer.Option("--latest", help="Only the newest one of the group.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """List fan-outs: those that have not ended first, or those that match."""
    query = {
        "group": group,
        "campaign": campaign,
        "status": None if status is None else status.value,
        "since": asked(since, "--since"),
        "until": asked(until, "--until"),
        "latest": "true" if latest else None,
    }
    found = list(_pages(api, "/fanouts", "fanouts", limit=1 if latest else limit, **query))
    if as_json:
        echo_json(found)
    else:
        show_fanouts(found)


@app.command("show")
@asks
def show(api: Api, id: Id, as_json: Json = False) -> None:
    """Show a fan-out: how far it is, how fast it goes, and what to do about it."""
    found = api.get(at("fanouts", id))
    if as_json:
        echo_json(found)
    else:
        show_fanout(found)


@app.command("watch")
@asks
def watch(
    api: Api,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="One or several.")] = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="All that belong to a campaign.")] = None,
    stall_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Give up if nothing happens for so long; 0s never does. [default: as its policy allows]",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow fan-outs until they have ended. The exit code is 2 if not all was done, 3 if one has stalled."""
    from headgate.cli.fanout.watch import follow
    from headgate.clock import SystemClock
    from headgate.durable.model.duration import optional_seconds

    run_ids = list(dict.fromkeys(ids or []))
    if campaign is not None:
        run_ids += [member["run_id"] for member in api.get(at("campaigns", campaign))["members"]]
    if not run_ids:
        raise UserError("watch: name one or several fan-outs, or a campaign with --campaign")
    seconds = optional_seconds(stall_after, name="--stall-after")
    raise typer.Exit(follow(api, run_ids, stall_seconds=seconds, as_json=as_json, clock=SystemClock()))


@app.command("chunks")
@asks
def chunks(
    api: Api,
    id: Id,
    status: Status = None,
    lane: InLane = Lane.MAIN,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: Json = False,
) -> None:
    """List its chunks in the order of their items."""
    found = list(_chunks(api, id, status, lane, limit))
    if as_json:
        echo_json(found)
    else:
        show_chunks(found)


def _chunks(api: Api, run_id: str, status: ChunkStatus | None, lane: Lane, limit: int | None) -> Iterator[Any]:
    wanted = None if status is None else status.value
    return _pages(api, at("fanouts", run_id, "chunks"), "chunks", limit=limit, status=wanted, lane=lane.value)


@app.command("events")
@asks
def events(api: Api, id: Id, as_json: Json = False) -> None:
    """List what was done to a fan-out, by whom and why."""
    found = list(_pages(api, at("fanouts", id, "events"), "events", limit=None))
    if as_json:
        echo_json(found)
        return
    rows = [
        (short(each["at"]), each["kind"], each.get("count", ""), each.get("by", ""), each.get("reason", ""))
        for each in found
    ]
    show_table(("AT", "WHAT", "CHUNKS", "BY", "WHY"), rows, nothing="nothing was done to it")


@app.command("export")
@asks
def export(
    api: Api,
    id: Id,
    format: Annotated[Format, typer.Option(help="One JSON object a line, or CSV.")] = Format.JSONL,
    output: Output = None,
    status: Status = None,
    lane: InLane = Lane.MAIN,
) -> None:
    """Write all its chunks, with their outputs and errors, for other programs."""
    found = _chunks(api, id, status, lane, None)
    write = _write_csv if format is Format.CSV else _write_jsonl
    if output is None:
        write(found, sys.stdout)
        return
    try:
        with output.open("w", encoding="utf-8", newline="") as file:
            count = write(found, file)
    except OSError as exc:
        raise UserError(f"--output {output}: it cannot be written: {exc.strerror}") from exc
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


@app.command("compare")
@asks
def compare(
    api: Api,
    before: Annotated[str, typer.Argument(metavar="ID")],
    after: Annotated[str, typer.Argument(metavar="OTHER")],
    as_json: Json = False,
) -> None:
    """Show what is different between two fan-outs."""
    found = api.get(at("fanouts", before, "compare", after))
    if as_json:
        echo_json(found)
        return
    if found["asked_differently"]:
        typer.echo(f"asked differently: {', '.join(found['asked_differently'])}")
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


@app.command("plot")
@asks
def plot(
    api: Api,
    id: Id,
    name: Annotated[Plot, typer.Argument(help="What to draw.")] = Plot.PROGRESS,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to. [default: ID-NAME.svg]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw a fan-out as SVG, and print the name of the file."""
    content = api.content(at("fanouts", id, "plots", f"{name.value}.svg"))
    path = output if output is not None else Path(f"{id.replace('/', '-')}-{name.value}.svg")
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise UserError(f"--output {path}: it cannot be written: {exc.strerror}") from exc
    if as_json:
        echo_json({"file": str(path), "bytes": len(content)})
    else:
        typer.echo(str(path))


@app.command("campaign")
@asks
def campaign(
    api: Api, name: Annotated[str, typer.Argument(metavar="NAME", help="The campaign.")], as_json: Json = False
) -> None:
    """Add up the fan-outs of a campaign."""
    found = api.get(at("campaigns", name))
    if as_json:
        echo_json(found)
        return
    rows = [
        (each["run_id"], each["group"], each["status"], f"{each['completed']}/{each['total']}", each["failed"] or "")
        for each in found["members"]
    ]
    show_table(("RUN", "GROUP", "STATUS", "CHUNKS", "FAILED"), rows, nothing="no fan-outs")
    left = "" if found["is_finished"] else f", {about(found['eta_seconds'])} left"
    counts = found["counts"]
    done = counts["done"] + counts["deferred"]
    typer.echo(f"{found['status']}: {done} of {counts['total']} chunks completed, {found['share']:.0%}{left}")


def _pages(api: Api, path: str, name: str, *, limit: int | None, **query: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield what is on the pages of a list, up to a limit."""
    cursor, count = None, 0
    while limit is None or count < limit:
        size = _PAGE if limit is None else min(_PAGE, limit - count)
        page = api.get(path, **query, limit=size, cursor=cursor)
        yield from page[name]
        count += len(page[name])
        cursor = page["cursor"]
        if cursor is None:
            return


mending.add_to(app)
