"""`headgate fanout submit`: from options to a fan-out."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, read_json
from headgate.cli.fanout.views import work_command
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError

GROUP = "default"
Seconds = str | None


class HealAction(StrEnum):
    """What is done about dead chunks without anyone asking."""

    RETRY = "retry"
    SLOW_LANE = "slow-lane"
    SPLIT = "split"
    QUARANTINE = "quarantine"


@asks
def submit(  # noqa: PLR0913 - each is an option
    api: Api,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"What it is one of. [default: {GROUP}]", show_default=False)
    ] = None,
    handler: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What is called with the items of each chunk.")
    ] = None,
    lines: Annotated[Path | None, typer.Option(metavar="FILE", help="Split the lines of a text file.")] = None,
    bytes: Annotated[Path | None, typer.Option(metavar="FILE", help="Split the bytes of a file.")] = None,
    range: Annotated[
        str | None, typer.Option(metavar="A..B", help="Split the whole numbers from A to before B.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(metavar="JSON", help="Split a list: JSON, @file, or - for standard input.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON file with all of this; options take precedence.")
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Items to a chunk. [default: for 1000 chunks, or 500 lines]", show_default=False
        ),
    ] = None,
    run_id: Annotated[str | None, typer.Option(metavar="ID", help="Its id. The same again makes nothing new.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the handler; JSON or text. Repeatable.")
    ] = None,
    each: Annotated[bool | None, typer.Option("--each", help="Call the handler with one item at a time.")] = None,
    item_timeout: Annotated[
        Seconds, typer.Option(metavar="DURATION", help="With --each: leave longer items to the slow lane.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="Tries for a chunk. [default: 3]")] = None,
    timeout: Annotated[Seconds, typer.Option(metavar="DURATION", help="For one try at a chunk. [default: 15m]")] = None,
    backoff: Annotated[
        Seconds, typer.Option(metavar="DURATION", help="Pause before the second try, then twice that. [default: 1s]")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(metavar="N", help="Chunks that run at a time, at most.")] = None,
    priority: Annotated[int | None, typer.Option(metavar="1-9", help="Its share of the workers. [default: 5]")] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", help="Most memory of a worker process.")] = None,
    heal: Annotated[HealAction | None, typer.Option(help="What to do by itself about chunks that died.")] = None,
    heal_on: Annotated[
        list[str] | None, typer.Option(metavar="ERROR", help="Only for this class of errors. Repeatable.")
    ] = None,
    heal_max: Annotated[
        int | None, typer.Option(metavar="N", help="How often for a chunk. [default: 1, with --heal]")
    ] = None,
    budget: Annotated[float | None, typer.Option(metavar="COST", help="Say when it costs more.")] = None,
    retention_days: Annotated[float | None, typer.Option(metavar="N", help="Keep it so long. [default: 90]")] = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="What it is a part of.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Split work into chunks, have them run, and print the id.

    The items come from one of --lines, --bytes, --range, --items and --manifest. Files must be readable by the server
    and by the workers. The server runs chunks by itself, in the folder it was started in; 'headgate chunk work' adds
    workers.
    """
    body = {
        "group": group if group is not None or manifest is not None else GROUP,
        "handler": handler,
        "lines": _path(lines),
        "bytes": _path(bytes),
        "range": _range(range),
        "items": read_json(items, "--items"),
        "manifest": _path(manifest),
        "chunk_size": chunk_size,
        "run_id": run_id,
        "params": _params(param),
        "each": each,
        "item_timeout_seconds": _seconds(item_timeout, "--item-timeout"),
        "max_attempts": max_attempts,
        "timeout_seconds": _seconds(timeout, "--timeout"),
        "backoff_seconds": _seconds(backoff, "--backoff"),
        "concurrency": concurrency,
        "priority": priority,
        "memory_mb": memory_mb,
        "heal_action": None if heal is None else heal.value,
        "heal_on": heal_on or None,
        "heal_redrives_max": heal_max if heal_max is not None or heal is None else 1,
        "budget": budget,
        "retention_days": retention_days,
        "campaign": campaign,
        "submitted_by": user_name(),
    }
    answer = api.post("/fanouts", body)
    _say(answer, as_json=as_json, hint=not watch)
    if watch:
        from headgate.cli.fanout.watch import follow
        from headgate.clock import SystemClock

        run_ids = [answer["run_id"]]
        raise typer.Exit(follow(api, run_ids, stall_seconds=None, as_json=as_json, clock=SystemClock()))


def _say(answer: dict[str, Any], *, as_json: bool, hint: bool) -> None:
    if as_json:
        echo_json(answer)
        return
    run_id = answer["run_id"]
    typer.echo(run_id)
    if not answer["created"]:
        said = f"it is there already, {answer['status']}"
    elif answer["status"] == "SPLITTING":
        said = f"it is still being split, {answer['chunks_total']} chunks so far"
    else:
        said = f"{answer['chunks_total']} chunks of up to {answer['chunk_size']}, {answer['items_total']} items"
    if hint:
        said += f"; 'headgate fanout watch {run_id}' follows it"
    if not answer.get("handler"):
        said += f"; it has no handler, so that {work_command(answer)} has to run it"
    # Not for programs: those read the id.
    typer.echo(said, err=True)


def user_name() -> str:
    """Return who runs this program, for whoever reads about it later."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _path(given: Path | None) -> str | None:
    return None if given is None else str(given.absolute())


def _range(given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    match = re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})", given)
    if match is None:
        raise UserError(f"--range {given!r}: write A..B, such as 0..1000, which ends with 999")
    return int(match[1]), int(match[2])


def _params(given: list[str] | None) -> dict[str, Any] | None:
    import msgspec

    params: dict[str, Any] = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UserError(f"--param {text!r}: write NAME=VALUE")
        try:
            params[name] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError):
            params[name] = value
    return params or None


def _seconds(given: str | None, name: str) -> float | None:
    from headgate.durable.model.duration import optional_seconds

    return optional_seconds(given, name=name)
