"""`headgate chunk`: look at one chunk, and run chunks beside the server."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.fanout.exit_codes import FAILED, FanoutGroup
from headgate.cli.fanout.views import about, error_text
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of

app = typer.Typer(
    cls=FanoutGroup, help="Pieces of fan-outs, and who runs them.", no_args_is_help=True, rich_markup_mode=None
)
_SHOWN_MAX: Final = 2000


class Lane(StrEnum):
    """Where chunks run: most in the main lane, deferred items in the slow one."""

    MAIN = "main"
    SLOW = "slow"


@app.command("show")
@asks
def show(
    api: Api,
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The fan-out.")],
    chunk_id: Annotated[str, typer.Argument(metavar="CHUNK", help="Such as chunk-0000500.")],
    as_json: Json = False,
) -> None:
    """Show a chunk: what it is about, where it stands, and each try at it."""
    found = api.get(at("fanouts", run_id, "chunks", chunk_id))
    if as_json:
        echo_json(found)
        return
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
                "" if each.get("duration_ms") is None else about(each["duration_ms"] / 1000),
                error_text(each),
            )
            for each in attempts
        ]
        show_table(("TRY", "OUTCOME", "STARTED", "TOOK", "ERROR"), rows, nothing="")


def _facts(found: dict[str, Any]) -> dict[str, Any]:
    last = found["start"] + found["items"] - 1
    done = found.get("items_ok", 0), found.get("items_failed", 0), found.get("items_deferred", 0)
    return {
        "run": found["run_id"],
        "chunk": found["chunk_id"],
        "status": found["status"],
        "disposition": found["disposition"],
        "items": f"{found['items']}, from {found['start']} to {last}",
        "done": "" if not any(done) else f"{done[0]} ok, {done[1]} failed, {done[2]} deferred",
        "input": _cut(compact(found["input"])) if "input" in found else found.get("input_key"),
        "output": _cut(compact(found["output"])) if "output" in found else found.get("output_key"),
        "attempt": found.get("attempt"),
        "redrives": found.get("redrives"),
        "healed": found.get("heals"),
        "worker": found.get("worker"),
        "created": short(found["created_at"]),
        "started": short(found.get("started_at")),
        "ended": short(found.get("completed_at")),
        "took": None if found.get("duration_ms") is None else about(found["duration_ms"] / 1000),
        "lease until": short(found.get("lease_expires_at")),
        "memory": f"{found['memory_mb']} MB" if "memory_mb" in found else None,
        "error": error_text(found),
        "fingerprint": found.get("error_fingerprint"),
        "message": found.get("message"),
    }


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}… ({len(text)} characters, all with --json)"


@app.command("work")
def work(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    handler: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="What to call. [default: the handler of each fan-out]"),
    ] = None,
    processes: Annotated[int, typer.Option("-p", "--processes", min=1, max=1000, help="How many at a time.")] = 2,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only fan-outs of this group.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only this fan-out.")] = None,
    lane: Annotated[Lane, typer.Option(help="slow: the items that took too long elsewhere.")] = Lane.MAIN,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="For one try. [default: that of the fan-out]")
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", min=16, help="Most memory of a process.")] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no chunk is left.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run chunks until a signal asks to stop, on the same store as the server and beside it.

    Modules are looked for in the current folder first. When it has begun, one line says so. SIGTERM
    lets what runs end and gives back the rest. The exit code with --until-idle is 2 if a chunk was given up.
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
        typer.echo(f"{done.completed} chunks completed, {done.failed} given up")
        for why in done.unusable.values():
            typer.echo(f"left to others: {why}")
    if until_idle and (done.failed or done.unusable):
        raise typer.Exit(FAILED)
