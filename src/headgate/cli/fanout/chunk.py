"""`headgate chunk`: shows a chunk, and runs a worker process for chunks."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.fanout.fanout import chunks
from headgate.cli.fanout.views import FanoutId, Lane, error_text
from headgate.cli.output import compact, counted, short, show_facts, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import duration_text
from headgate.exit_codes import ExitCode

app = command_group("Show chunks of fan-outs, and run workers for them.")
server_command(app, "ls")(chunks)
_SHOWN_MAX: Final = 2000
_ITEMS_NAMED_MAX: Final = 10
# The key of a chunk of a range: its first number and its last.
_RANGE_KEY: Final = re.compile(r"range:(-?\d+)-(-?\d+)")


@server_command(app, "show")
def show(
    api: Api,
    run_id: FanoutId,
    chunk_id: Annotated[str, typer.Argument(metavar="CHUNK", help="Chunk id, such as chunk-0000500.")],
) -> Answer:
    """Show a chunk: its items, status and attempts."""
    found = api.get(at("fanouts", run_id, "chunks", chunk_id))
    yield found
    show_facts(_facts(found))
    for index, error in found.get("item_errors", {}).items():
        typer.echo(f"item {index} failed: {' '.join(error.split())}")
    attempts = found.get("attempts", [])
    if attempts:
        rows = [
            (
                each["attempt"],
                each["outcome"],
                short(each.get("started_at")),
                "" if each.get("duration_ms") is None else duration_text(each["duration_ms"] / 1000),
                "" if each.get("memory_mb") is None else f"{each['memory_mb']} MB",
                error_text(each),
            )
            for each in attempts
        ]
        show_table(("ATTEMPT", "OUTCOME", "STARTED", "DURATION", "MEMORY", "ERROR"), rows, nothing="")


@server_command(app, "logs")
def logs(
    api: Api,
    run_id: FanoutId,
    chunk_id: Annotated[str, typer.Argument(metavar="CHUNK", help="Chunk id, such as chunk-0000500.")],
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of the attempt. [default: the last with a log]")
    ] = None,
) -> Answer:
    """Show what an attempt at a chunk printed, and the traceback of its failure."""
    found = api.get(at("fanouts", run_id, "chunks", chunk_id, "logs"))
    kept = [each for each in found["logs"] if attempt is None or each["attempt"] == attempt]
    yield {**found, "logs": kept}
    if not kept:
        which = "no attempt" if attempt is None else f"attempt {attempt} has not"
        typer.echo(f"{chunk_id} of {run_id}: {which} printed anything or left a traceback")
        return
    log = kept[-1]
    typer.echo(f"{chunk_id} of {run_id}, attempt {log['attempt']}, ended {short(log['ended_at'])}")
    for text in (log["printed"], log["traceback"]):
        if text:
            typer.echo(text.rstrip("\n"))
    earlier = [str(each["attempt"]) for each in found["logs"] if each["attempt"] != log["attempt"]]
    if attempt is None and earlier:
        typer.echo(f"other attempts with a log: {', '.join(earlier)}; show one with --attempt N")


def _facts(found: dict[str, Any]) -> dict[str, Any]:
    done = found.get("items_ok", 0), found.get("items_failed", 0), found.get("items_deferred", 0)
    return {
        "run": found["run_id"],
        "chunk": found["chunk_id"],
        "status": found["status"],
        "disposition": found["disposition"],
        "items": _items(found),
        "done": "" if not any(done) else f"{done[0]} ok, {done[1]} failed, {done[2]} deferred",
        "input": _cut(compact(found["input"])) if "input" in found else found.get("input_key"),
        "output": _cut(compact(found["output"])) if "output" in found else found.get("output_key"),
        "attempt": found.get("attempt"),
        "lost": found.get("lost_attempts"),
        "redrives": found.get("redrives"),
        "healed": found.get("heals"),
        "worker": found.get("worker"),
        "created": short(found["created_at"]),
        "started": short(found.get("started_at")),
        "ended": short(found.get("completed_at")),
        "duration": None if found.get("duration_ms") is None else duration_text(found["duration_ms"] / 1000),
        "lease until": short(found.get("lease_expires_at")),
        "memory": f"{found['memory_mb']} MB" if "memory_mb" in found else None,
        "error": error_text(found),
        "fingerprint": found.get("error_fingerprint"),
        "message": found.get("message"),
    }


def _items(found: dict[str, Any]) -> str:
    """Return the number of items and which they are.

    Indexes identify items within the fan-out. The numbers of a range that does not begin at 0 are other ones, and are
    shown with their indexes. Items of the slow lane, and those that run again, need not follow each other.
    """
    start, count = found["start"], found["items"]
    key = _RANGE_KEY.fullmatch(found.get("input_key") or "")
    offset = 0 if key is None else int(key[1]) - start
    if found["lane"] == "slow" and found.get("deferred"):
        return f"{count}: {_named(found['deferred'], offset)}"
    text = f"{count}, from {start + offset} to {start + offset + count - 1}"
    if offset:
        text += f" (index {start} to {start + count - 1})"
    again = found.get("rerun_items")
    return f"{text}; {len(again)} to run again: {_named(again, offset)}" if again else text


def _named(places: list[int], offset: int) -> str:
    """Return the items at these indexes, the first of many."""
    shown = places[:_ITEMS_NAMED_MAX]
    more = "" if len(places) <= _ITEMS_NAMED_MAX else ", …"
    text = ", ".join(str(place + offset) for place in shown) + more
    return f"{text} (index {', '.join(map(str, shown))}{more})" if offset else text


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}… ({len(text)} characters; --json prints all)"


@app.command("work")
def work(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    handler: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Function to call. [default: the handler of each fan-out]"),
    ] = None,
    processes: Annotated[
        int, typer.Option("-p", "--processes", min=1, max=1000, help="Number of worker processes.")
    ] = 2,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Run only fan-outs of this group.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Run only this fan-out.")] = None,
    lane: Annotated[Lane, typer.Option(help="Lane; slow runs the deferred items.")] = Lane.MAIN,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Timeout of an attempt. [default: that of the fan-out]")
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", min=16, help="Memory limit of a process.")] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when no chunk is left.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run chunks in worker processes, on the same store as the server.

    Handlers are imported from the current folder first. Prints one line when it is ready. SIGTERM finishes
    running chunks and releases the rest. With --until-idle, the exit code is 1 if a chunk failed.
    """
    from headgate.clock import SystemClock
    from headgate.durable.model.duration import optional_seconds
    from headgate.fanout.local.worker import Options
    from headgate.serve import chunk_process
    from headgate.telemetry import configure_logs

    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    options = Options(
        processes=processes,
        handler=handler,
        group=group,
        run_id=run,
        lane=lane.value,
        memory_mb=memory_mb,
        timeout_seconds=optional_seconds(timeout, name="--timeout"),
        trusted=settings.fanout.handlers,
    )
    done = chunk_process.run(
        settings,
        options,
        clock=SystemClock(),
        until_idle=until_idle,
        announce=lambda line: typer.echo(line, err=as_json),
    )
    if as_json:
        echo_json(done)
    else:
        typer.echo(f"{counted(done.completed, 'chunk')} completed, {done.failed} failed")
        for why in done.unusable.values():
            typer.echo(f"not run: {why}")
    if until_idle and (done.failed or done.unusable):
        raise typer.Exit(ExitCode.FAILED)
