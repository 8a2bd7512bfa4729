"""`headgate fanout submit`: creates a fan-out from options for its work and its policy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, read_json
from headgate.cli.commands import OptionGroup, calls_server
from headgate.cli.fanout.views import work_command
from headgate.cli.output import counted
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError

GROUP = "default"


class HealAction(StrEnum):
    """Automatic treatment of dead chunks."""

    RETRY = "retry"
    SLOW_LANE = "slow-lane"
    SPLIT = "split"
    QUARANTINE = "quarantine"


class FailuresAction(StrEnum):
    """What happens with more failures than tolerated."""

    FAIL = "fail"
    PAUSE = "pause"


@dataclass(frozen=True)
class WorkOptions(OptionGroup):
    """Work of a fan-out: its items, the size of its chunks and the handler."""

    group: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Group of the fan-out. [default: {GROUP}]", show_default=False)
    ] = None
    handler: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Function that processes the items of a chunk.")
    ] = None
    lines: Annotated[Path | None, typer.Option(metavar="FILE", help="Split the lines of a text file.")] = None
    bytes: Annotated[Path | None, typer.Option(metavar="FILE", help="Split the bytes of a file.")] = None
    range: Annotated[
        str | None, typer.Option(metavar="A..B", help="Split the integers from A up to, but not including, B.")
    ] = None
    items: Annotated[
        str | None, typer.Option(metavar="JSON", help="Split a list: JSON, @file, or - for standard input.")
    ] = None
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file with these options; flags take precedence.")
    ] = None
    chunk_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Items per chunk. [default: for 1000 chunks, or 500 lines]", show_default=False),
    ] = None
    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Fan-out id; a second submit with the same id has no effect.")
    ] = None
    queue_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="SQS queue whose consumers run the chunks, instead of this server."),
    ] = None
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Parameter of the handler, JSON or text. Repeatable."),
    ] = None

    def body(self) -> dict[str, Any]:
        """Return the members of the request. Raises `UserError`."""
        return {
            "group": self.group if self.group is not None or self.manifest is not None else GROUP,
            "handler": self.handler,
            "lines": _path(self.lines),
            "bytes": _path(self.bytes),
            "range": _range(self.range),
            "items": read_json(self.items, "--items"),
            "manifest": _path(self.manifest),
            "chunk_size": self.chunk_size,
            "run_id": self.run_id,
            "queue_url": self.queue_url,
            "params": _params(self.param),
        }


@dataclass(frozen=True)
class PolicyOptions(OptionGroup):
    """Policy of a fan-out: attempts, timeouts, limits and healing."""

    each: Annotated[bool | None, typer.Option("--each", help="Call the handler once per item.")] = None
    item_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With --each: defer slower items to the slow lane.")
    ] = None
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="Attempts per chunk. [default: 3]")] = None
    lost_max: Annotated[
        int | None, typer.Option(metavar="N", help="Attempts per chunk that may be lost with a worker. [default: 20]")
    ] = None
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Timeout of an attempt. [default: 15m]")] = (
        None
    )
    backoff: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Delay before the first retry, doubled each time. [default: 1s]"),
    ] = None
    concurrency: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of running chunks.")] = None
    priority: Annotated[int | None, typer.Option(metavar="1-9", help="Share of the workers. [default: 5]")] = None
    memory_mb: Annotated[int | None, typer.Option(metavar="N", help="Memory limit of a worker process.")] = None
    heal: Annotated[HealAction | None, typer.Option(help="Automatic treatment of dead chunks.")] = None
    heal_on: Annotated[
        list[str] | None, typer.Option(metavar="ERROR", help="Heal only this error class. Repeatable.")
    ] = None
    heal_max: Annotated[
        int | None, typer.Option(metavar="N", help="Treatments per chunk. [default: 1, with --heal]")
    ] = None
    tolerated_failures: Annotated[
        str | None,
        typer.Option(metavar="N|P%", help="Failed chunks (items, with --each) that are tolerated. [default: no limit]"),
    ] = None
    on_failures: Annotated[
        FailuresAction | None, typer.Option(help="With more failures than tolerated. [default: fail]")
    ] = None
    budget: Annotated[float | None, typer.Option(metavar="COST", help="Warn when the cost exceeds this.")] = None
    retention_days: Annotated[
        float | None,
        typer.Option(metavar="N", help="Retention in days. [default: retention.fanouts_days of the server]"),
    ] = None

    def body(self) -> dict[str, Any]:
        """Return the members of the request. Raises `UserError`."""
        from headgate.durable.model.duration import optional_seconds

        return {
            "each": self.each,
            "item_timeout_seconds": optional_seconds(self.item_timeout, name="--item-timeout"),
            "max_attempts": self.max_attempts,
            "lost_attempts_max": self.lost_max,
            "timeout_seconds": optional_seconds(self.timeout, name="--timeout"),
            "backoff_seconds": optional_seconds(self.backoff, name="--backoff"),
            "concurrency": self.concurrency,
            "priority": self.priority,
            "memory_mb": self.memory_mb,
            "heal_action": self.heal,
            "heal_on": self.heal_on or None,
            "heal_redrives_max": self.heal_max if self.heal_max is not None or self.heal is None else 1,
            **tolerated(self.tolerated_failures),
            "failures_action": self.on_failures,
            "budget": self.budget,
            "retention_days": self.retention_days,
        }


@calls_server
def submit(
    api: Api,
    work: WorkOptions,
    policy: PolicyOptions,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="Campaign of the fan-out.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    as_json: Json = False,
) -> None:
    """Split work into chunks, run them and print the id of the fan-out.

    The items come from one of --lines, --bytes, --range, --items and --manifest. The server and the workers read the
    files, below the project folder or files.roots; --items @file reads a file here. The handler is a function of the
    project; 'headgate chunk work' adds workers.
    """
    body = {**work.body(), **policy.body(), "campaign": campaign, "submitted_by": user_name()}
    answer = api.post("/fanouts", body)
    if as_json:
        echo_json(answer)
    else:
        _show_submitted(answer, hint=not watch)
    if watch:
        from headgate.cli.fanout.watch import follow
        from headgate.clock import SystemClock

        run_ids = [answer["run_id"]]
        raise typer.Exit(follow(api, run_ids, stall_seconds=None, as_json=as_json, clock=SystemClock()))


def _show_submitted(answer: dict[str, Any], *, hint: bool) -> None:
    run_id = answer["run_id"]
    typer.echo(run_id)
    if not answer["created"]:
        text = f"already exists, {answer['status']}"
    elif answer["status"] == "SPLITTING":
        text = f"splitting, {answer['chunks_total']} chunks so far"
    else:
        size = answer["chunk_size"]
        each = f"of {counted(size, 'item')}" if size == 1 else f"of up to {size}"
        text = f"{counted(answer['chunks_total'], 'chunk')} {each}, {counted(answer['items_total'], 'item')}"
    if hint:
        text += f"; follow it with 'headgate fanout watch {run_id}'"
    if answer.get("queue_url"):
        text += f"; consumers of {answer['queue_url']} run it"
    elif not answer.get("handler"):
        text += f"; it has no handler: run it with {work_command(answer)}"
    # Standard output carries the id only.
    typer.echo(text, err=True)


def user_name() -> str:
    """Return the user who runs this program, for the event log."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def tolerated(text: str | None) -> dict[str, Any]:
    """Return the members of a policy for a number or a percentage of failures. Raises `UserError`."""
    if text is None:
        return {}
    match = re.fullmatch(r"(\d{1,12})|(\d{1,3}(?:\.\d{1,6})?)\s?%", text.strip())
    if match is None or (match[2] is not None and float(match[2]) > 100):
        raise UserError(
            f"--tolerated-failures {text!r}: write a number such as 5, or a percentage up to 100, such as 2%"
        )
    if match[1] is not None:
        return {"tolerated_failures": int(match[1])}
    return {"tolerated_failure_share": round(float(match[2]) / 100, 8)}


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})", text)
    if match is None:
        raise UserError(f"--range {text!r}: write A..B, such as 0..1000, which ends with 999")
    return int(match[1]), int(match[2])


def _params(texts: list[str] | None) -> dict[str, Any] | None:
    import msgspec

    params: dict[str, Any] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UserError(f"--param {text!r}: write NAME=VALUE")
        try:
            params[name] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError):
            params[name] = value
    return params or None
