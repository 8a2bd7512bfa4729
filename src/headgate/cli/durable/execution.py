"""`headgate execution`: start executions, see how they are and why, tell them things, end them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, Tags, asks, at, read_payload, read_tags
from headgate.cli.durable.execution_waits import FAILED_EXIT_CODE, Id, download, logged, replay, result, watch
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import InvalidPayloadError, TransientError, UserError

app = typer.Typer(help="Durable runs of workflows.", no_args_is_help=True, rich_markup_mode=None)
app.command("result")(result)
app.command("watch")(watch)
app.command("replay")(replay)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON", help="JSON, @file, or - for standard input.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For whoever reads the history.")]
StatusOption = Annotated[
    str | None, typer.Option("--status", metavar="STATUS", help="RUNNING, STUCK, FAILED and so on, in any case.")
]
_PAGE = 1000
_REFUSED_SHOWN = 20


class Reuse(StrEnum):
    """What to do if there is an execution of this id already."""

    NEVER = "never"
    FAILED = "failed"
    CLOSED = "closed"
    TERMINATE = "terminate"


class Action(StrEnum):
    """What can be done to many at once."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    REDRIVE = "redrive"
    RETRY = "retry"


class Order(StrEnum):
    """Which come first."""

    NEWEST = "newest"
    OLDEST = "oldest"


@app.command("start")
@asks
def start(  # noqa: PLR0913 - each is an option
    api: Api,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW")],
    input: Input = None,
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id. The same again starts nothing.")] = None,
    reuse: Annotated[Reuse, typer.Option(help="What to do if there is one of this id.")] = Reuse.NEVER,
    tag: Tags = None,
    memo: Annotated[str | None, typer.Option(metavar="JSON", help="A note that is kept with it.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="End it after this time.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Begin after this time.")] = None,
    as_json: Json = False,
) -> None:
    """Start an execution, and print its id."""
    body = {
        "workflow": workflow,
        "input": read_payload(input, "--input"),
        "id": id,
        "reuse": reuse.value,
        "tags": read_tags(tag),
        "memo": read_payload(memo, "--memo"),
        "timeout": timeout,
        "delay": delay,
    }
    answer = api.post("/executions", body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(answer["id"] if answer["created"] else f"{answer['id']} is there already")


@app.command("ls")
@asks
def ls(
    api: Api,
    status: StatusOption = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    parent: Annotated[str | None, typer.Option(metavar="ID", help="Children of this execution.")] = None,
    tag: Tags = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    order: Annotated[Order, typer.Option()] = Order.NEWEST,
    as_json: Json = False,
) -> None:
    """List executions: the latest of all, or those that match."""
    found_by = {"status": _status(status), "workflow": workflow, "parent": parent, "tag": tag or None}
    found = _listed(api, {**found_by, "order": order.value}, limit)
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["id"],
            each["workflow"],
            each["status"],
            short(each["started_at"]),
            short(each.get("ended_at")),
            _note(each),
        )
        for each in found
    ]
    show_table(("ID", "WORKFLOW", "STATUS", "STARTED", "ENDED", ""), rows, nothing="no executions")


def _status(given: str | None) -> str | None:
    """Return a status as it is written, whatever its case. Raises `InvalidPayloadError` for what is none."""
    from headgate.durable.model.history import Status

    if given is None:
        return None
    if given.upper() not in Status.__members__:
        raise InvalidPayloadError(f"--status {given!r}: there is none; use {', '.join(Status)}")
    return Status[given.upper()].value


def _listed(api: Api, query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < limit:
        page = api.get("/executions", **query, limit=min(limit - len(found), _PAGE), cursor=cursor)
        found += page["executions"]
        cursor = page["cursor"]
        if cursor is None:
            break
    return found


def _note(each: dict[str, Any]) -> str:
    tags = " ".join(f"{name}:{value}" for name, value in each.get("tags", {}).items())
    return " ".join(filter(None, [tags, each.get("error", "")]))


@app.command("show")
@asks
def show(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Show an execution, and what it waits for."""
    found = api.get(at("executions", id))
    if as_json:
        echo_json(found)
        return
    waits = found.pop("waits_for", [])
    for name in ("error", "failure"):
        if name in found:
            found[name] = f"{found[name]['type']}: {found[name]['message']}"
    for name in ("input", "memo", "result"):
        if name in found:
            found[name] = compact(found[name])
    show_facts(found)
    for wait in waits:
        typer.echo(f"waits for {_wait(wait)}")


def _wait(wait: dict[str, Any]) -> str:
    """Return what an execution waits for, as a sentence."""
    match wait["kind"]:
        case "activity":
            said = f"activity {wait['name']}: {wait['state']}, attempt {wait['attempt']}"
            said += f", next try {short(wait['next_try_at'])}" if wait.get("next_try_at") else ""
            said += f" by {wait['worker']}" if wait.get("worker") else ""
            said += f"; last error: {wait['last_error']}" if wait.get("last_error") else ""
            return said + ("; no live worker would take it" if wait.get("no_worker") else "")
        case "timer" | "start":
            return f"{wait['kind']} at {short(wait['due_at'])}"
        case "signal":
            return f"signal {wait['name']}"
        case "child":
            return f"child {wait['execution_id']} ({wait['workflow']}, {wait['status'] or 'not started'})"
        case "worker":
            return f"a worker: {wait['fact']}"
        case "retry":
            return f"another try at {short(wait['next_try_at'])}; {wait['failures']} failed: {wait['error']}"
        case "redrive":
            return f"a redrive, once its code is mended; {wait['failures']} tries failed: {wait['error']}"
        case _:
            return str(wait["fact"])


@app.command("history")
@asks
def history(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Show every turn: what it was told, and what it asked for. With --json, what 'replay --history' reads."""
    found = download(api, id)
    if as_json:
        echo_json(found)
        return
    for turn in found["turns"]:
        from datetime import UTC, datetime

        moment = datetime.fromtimestamp(turn["at_ms"] / 1000, UTC)
        typer.echo(f"turn {turn['turn']}  run {turn['run']}  {moment:%Y-%m-%d %H:%M:%S}  {turn['worker']}")
        for mark, entries in (("<", turn["events"]), (">", turn["commands"])):
            for entry in entries:
                kind = entry.pop("kind")
                typer.echo(f"  {mark} {kind}  {compact(entry)}")


@app.command("logs")
@asks
def logs(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Show what the workflow and its activities logged."""
    found = logged(api, id)
    if as_json:
        echo_json(found)
        return
    for line in found:
        typer.echo(f"{short(line['at'])}  {line['level']:7}  {line['source']}  {line['text']}")


@app.command("signal")
@asks
def signal(  # noqa: PLR0913 - each is an option
    api: Api,
    id: Id,
    name: Name,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="JSON, @file, or - for standard input.")] = None,
    signal_id: Annotated[str | None, typer.Option(metavar="ID", help="The same again is the same signal.")] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="WORKFLOW", help="Start it first if none of this id is open.")
    ] = None,
    input: Input = None,
    tag: Tags = None,
    reuse: Annotated[
        Reuse | None, typer.Option(help="With --start: what to do if one has ended. [default: closed]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send a signal. With --start, to an execution that is started if need be; --input and --tag are then its own."""
    sent = read_payload(payload, "--payload")
    if start is None:
        if input is not None or tag or reuse is not None:
            raise UserError(f"execution {id}: --input, --tag and --reuse are of one to start; name it with --start")
        answer = api.post(at("executions", id, "signals"), {"name": name, "payload": sent, "id": signal_id})
        _say(answer, f"{id}: signal {name} is sent", as_json=as_json)
        return
    body = {
        "workflow": start,
        "id": id,
        "name": name,
        "payload": sent,
        "signal_id": signal_id,
        "input": read_payload(input, "--input"),
        "tags": read_tags(tag),
        "reuse": None if reuse is None else reuse.value,
    }
    answer = api.post("/executions/signal-with-start", body)
    told = f"it is started with signal {name}" if answer["created"] else f"signal {name} is sent"
    _say(answer, f"{id}: {told}", as_json=as_json)


@app.command("query")
@asks
def query(
    api: Api,
    id: Id,
    name: Name,
    input: Input = None,
) -> None:
    """Ask its code something, and print the answer as JSON."""
    body = {"name": name, "input": read_payload(input, "--input")}
    echo_json(api.post(at("executions", id, "queries"), body)["result"])


@app.command("update")
@asks
def update(
    api: Api,
    id: Id,
    name: Name,
    input: Input = None,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the answer.")] = "30s",
) -> None:
    """Have an update handler change something, and print its answer as JSON."""
    body = {"name": name, "input": read_payload(input, "--input"), "wait": wait}
    answer = api.post(at("executions", id, "updates"), body)
    if answer.get("pending"):
        raise TransientError(f"execution {id}: update {name} ({answer['id']}) has no answer after {wait}; look again")
    echo_json(answer.get("result"))


@app.command("cancel")
@asks
def cancel(
    api: Api,
    id: Id,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Ask an execution to end; it may clean up."""
    answer = api.post(at("executions", id, "cancel"), {"reason": reason})
    _say(answer, f"{id}: it is asked to end", as_json=as_json)


@app.command("terminate")
@asks
def terminate(
    api: Api,
    id: Id,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """End an execution without asking its code."""
    answer = api.post(at("executions", id, "terminate"), {"reason": reason})
    _say(answer, f"{id}: it will be ended", as_json=as_json)


@app.command("retry")
@asks
def retry(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Run an execution that has ended again from its beginning, with the same input."""
    answer = api.post(at("executions", id, "retry"))
    _say(answer, f"{id}: it begins again", as_json=as_json)


@app.command("redrive")
@asks
def redrive(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Let an execution that is stuck go on, after its code was mended."""
    answer = api.post(at("executions", id, "redrive"))
    _say(answer, f"{id}: it goes on", as_json=as_json)


@app.command("bulk")
@asks
def bulk(
    api: Api,
    action: Annotated[Action, typer.Argument()],
    status: StatusOption = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    tag: Tags = None,
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Do something to all executions that match. Give at least one of --status, --workflow and --tag.

    The exit code is 1 if it was not done to some of them; which and why is on standard error.
    """
    where = {"status": _status(status), "workflow": workflow, "tag": read_tags(tag)}
    if not any(where.values()):
        raise UserError("bulk: this would be every execution; give --status, --workflow or --tag")
    body = {"action": action.value, "where": {name: each for name, each in where.items() if each}, "reason": reason}
    total: dict[str, Any] = {"action": action.value, "dry_run": dry_run, "matched": 0, "done": 0, "refused": []}
    for page in _bulk_pages(api, {**body, "dry_run": dry_run}):
        total["matched"] += page["matched"]
        total["done"] += page["done"]
        total["refused"] += page["refused"]
    said = f"{total['matched']} match" if dry_run else f"{action.value}: {total['done']} of {total['matched']}"
    _say(total, said, as_json=as_json)
    if total["refused"]:
        _show_refused(total["refused"])
        raise typer.Exit(FAILED_EXIT_CODE)


def _show_refused(refused: list[dict[str, Any]]) -> None:
    for each in refused[:_REFUSED_SHOWN]:
        typer.echo(f"refused: {each['id']}: {each['detail']} ({each['code']})", err=True)
    if len(refused) > _REFUSED_SHOWN:
        typer.echo(f"refused: {len(refused) - _REFUSED_SHOWN} more; --json names them all", err=True)


def _bulk_pages(api: Api, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        page = api.post("/executions/bulk", {**body, "cursor": cursor})
        yield page
        cursor = page["cursor"]
        if cursor is None:
            return


def _say(answer: object, sentence: str, *, as_json: bool) -> None:
    if as_json:
        echo_json(answer)
    else:
        typer.echo(sentence)
