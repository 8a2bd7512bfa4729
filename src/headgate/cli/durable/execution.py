"""`headgate execution`: starts, lists, inspects, signals and ends executions of workflows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at, read_payload, read_tags
from headgate.cli.commands import Answer, Option, add_action, command_group, server_command
from headgate.cli.durable.execution_repair import StatusOption, bulk, read_status, reset, retry
from headgate.cli.durable.execution_waits import Id, download, read_logs, replay, result, watch
from headgate.cli.options import SinceOption, Tags, UntilOption
from headgate.cli.output import compact, short, show_cut, show_facts, show_table
from headgate.cli.session import echo_json
from headgate.cli.times import past_time
from headgate.cli.tracebacks import error_text, show_traceback
from headgate.errors import TransientError, UserError

app = command_group("Manage executions of workflows.")
app.command("result")(result)
app.command("watch")(watch)
app.command("replay")(replay)

HandlerName = Annotated[str, typer.Argument(metavar="NAME", help="Signal, query or update handler.")]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON", help="JSON, @file, or - for standard input.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the history.")]


class Reuse(StrEnum):
    """Policy for an id that is already in use."""

    NEVER = "never"
    FAILED = "failed"
    CLOSED = "closed"
    TERMINATE = "terminate"


class Order(StrEnum):
    """Sort order of a list."""

    NEWEST = "newest"
    OLDEST = "oldest"


@server_command(app, "start")
def start(  # noqa: PLR0913 - each is an option of users
    api: Api,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Workflow name.")],
    input: Input = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Execution id; a second start with the same id has no effect."),
    ] = None,
    reuse: Annotated[Reuse, typer.Option(help="When to start again with an id that is in use.")] = Reuse.NEVER,
    tag: Tags = None,
    memo: Annotated[str | None, typer.Option(metavar="JSON", help="Note stored with the execution.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Time out after this duration.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Start after this duration.")] = None,
    retry: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Retry policy in place of the declared one, such as {"attempts": 3}.'),
    ] = None,
) -> Answer:
    """Start an execution and print its id."""
    body = {
        "workflow": workflow,
        "input": read_payload(input, "--input"),
        "id": id,
        "reuse": reuse.value,
        "tags": read_tags(tag),
        "memo": read_payload(memo, "--memo"),
        "timeout": timeout,
        "delay": delay,
        "retry": read_payload(retry, "--retry"),
    }
    answer = api.post("/executions", body)
    yield answer
    typer.echo(answer["id"] if answer["created"] else f"{answer['id']} already exists")


@server_command(app, "ls")
def ls(  # noqa: PLR0913 - each is a filter of the list
    api: Api,
    status: StatusOption = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by workflow.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="ID", help="Only children of this execution.")] = None,
    tag: Tags = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text in the id, the workflow, a tag or the error.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 50,
    order: Annotated[Order, typer.Option(help="Sort by start time.")] = Order.NEWEST,
    all: Annotated[
        bool, typer.Option("--all", help="Include executions of state machines, such as the lifecycles of pipelines.")
    ] = False,
) -> Answer:
    """List executions of workflows by start time, newest first; with --all, those of state machines too."""
    query: dict[str, Any] = {
        "status": read_status(status),
        "workflow": workflow,
        "parent": parent,
        "tag": tag or None,
        "since": past_time(since, "--since"),
        "until": past_time(until, "--until"),
        "text": text,
    }
    if not (all or workflow or parent):
        query["machines"] = "false"
    # One more than is shown, to know whether there are more.
    found = list(api.entries("/executions", "executions", limit + 1, **query, order=order.value))
    has_more, found = len(found) > limit, found[:limit]
    yield found
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
    show_cut(limit, is_cut=has_more)


def _note(each: dict[str, Any]) -> str:
    tags = " ".join(f"{name}:{value}" for name, value in each.get("tags", {}).items())
    return " ".join(filter(None, [tags, each.get("error", "")]))


@server_command(app, "show")
def show(
    api: Api,
    id: Id,
    attempts: Annotated[
        int, typer.Option("--attempts", min=0, max=100, help="How many failed attempts at activities to show.")
    ] = 5,
) -> Answer:
    """Show an execution, what it is waiting for, and the tracebacks of its errors."""
    from headgate.durable.model.payload_codec import readable

    found = api.get(at("executions", id))
    failures = api.get(at("executions", id, "failures"), limit=attempts)["failures"] if attempts else []
    yield {**found, "failed_attempts": failures}
    waits = found.pop("waits_for", [])
    errors = [(name, found[name]) for name in ("error", "failure") if name in found]
    for name, _ in errors:
        found[name] = error_text(found[name])
    for name in ("input", "memo", "result"):
        if name in found:
            found[name] = compact(readable(found[name]))
    if "retry" in found:
        found["retry"] = ", ".join(f"{name} {compact(value)}" for name, value in found["retry"].items() if value)
    show_facts(found)
    for wait in waits:
        typer.echo(f"waiting for {_wait_text(wait)}")
    for name, error in errors:
        show_traceback("error of the workflow" if name == "error" else "error of its last turn", error)
    for each in failures:
        last = ", the last" if each["final"] else ""
        worker = f" on {each['worker']}" if each.get("worker") else ""
        show_traceback(
            f"{each['activity']}, attempt {each['attempt']}{last}, {short(each['at'])}{worker}", each["error"]
        )


def _wait_text(wait: dict[str, Any]) -> str:
    """Describe what an execution is waiting for."""
    match wait["kind"]:
        case "activity":
            most = f" of {wait['attempts_max']}" if wait.get("attempts_max") else ""
            attempt = f", attempt {wait['attempt']}{most}" if wait["attempt"] else ""
            text = f"activity {wait['name']}: {wait['state']}{attempt}"
            text += f", next attempt {short(wait['next_try_at'])}" if wait.get("next_try_at") else ""
            text += f" by {wait['worker']}" if wait.get("worker") else ""
            text += f"; last error: {wait['last_error']}" if wait.get("last_error") else ""
            return text + ("; no live worker serves it" if wait.get("no_worker") else "")
        case "timer" | "start":
            return f"{wait['kind']} at {short(wait['due_at'])}"
        case "signal":
            return f"signal {wait['name']}"
        case "child":
            return f"child {wait['execution_id']} ({wait['workflow']}, {wait['status'] or 'not started'})"
        case "worker":
            return f"a worker: {wait['fact']}"
        case "retry":
            return f"a retry at {short(wait['next_try_at'])}; {wait['failures']} attempts failed: {wait['error']}"
        case "redrive":
            return f"a worker with other code, or a redrive; {wait['failures']} attempts failed: {wait['error']}"
        case _:
            return str(wait["fact"])


@server_command(app, "history")
def history(
    api: Api,
    id: Id,
) -> Answer:
    """Show the history: the events and commands of every turn. 'replay --history' reads its JSON."""
    from headgate.durable.model.payload_codec import readable

    found = download(api, id)
    yield found
    for turn in found["turns"]:
        from datetime import UTC, datetime

        moment = datetime.fromtimestamp(turn["at_ms"] / 1000, UTC)
        typer.echo(f"turn {turn['turn']}  run {turn['run']}  {moment:%Y-%m-%d %H:%M:%S}  {turn['worker']}")
        for mark, entries in (("<", turn["events"]), (">", turn["commands"])):
            for entry in entries:
                kind = entry.pop("kind")
                typer.echo(f"  {mark} {kind}  {compact(readable(entry))}")


@server_command(app, "logs")
def logs(
    api: Api,
    id: Id,
) -> Answer:
    """Show the logs of the workflow and its activities."""
    found = read_logs(api, id)
    yield found
    for line in found:
        typer.echo(f"{short(line['at'])}  {line['level']:7}  {line['source']}  {line['text']}")


@server_command(app, "signal")
def signal(
    api: Api,
    id: Id,
    name: HandlerName,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="JSON, @file, or - for standard input.")] = None,
    signal_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Signal id; a signal with the same id is delivered once.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start", metavar="WORKFLOW", help="Start this workflow first if no execution with this id is open."
        ),
    ] = None,
    input: Input = None,
    tag: Tags = None,
    reuse: Annotated[Reuse | None, typer.Option(help="With --start: when to reuse the id. [default: closed]")] = None,
) -> Answer:
    """Signal an execution. With --start, start it first if needed, with --input and --tag."""
    sent = read_payload(payload, "--payload")
    if start is None:
        if input is not None or tag or reuse is not None:
            raise UserError(f"execution {id}: --input, --tag and --reuse need --start")
        yield api.post(at("executions", id, "signals"), {"name": name, "payload": sent, "id": signal_id})
        typer.echo(f"{id}: signal {name} sent")
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
    yield answer
    typer.echo(f"{id}: started with signal {name}" if answer["created"] else f"{id}: signal {name} sent")


@server_command(app, "query")
def query(
    api: Api,
    id: Id,
    name: HandlerName,
    input: Input = None,
) -> None:
    """Query an execution and print the result as JSON."""
    body = {"name": name, "input": read_payload(input, "--input")}
    echo_json(api.post(at("executions", id, "queries"), body)["result"])


@server_command(app, "update")
def update(
    api: Api,
    id: Id,
    name: HandlerName,
    input: Input = None,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the result.")] = "30s",
) -> None:
    """Run an update handler of an execution and print its result as JSON."""
    body = {"name": name, "input": read_payload(input, "--input"), "wait": wait}
    answer = api.post(at("executions", id, "updates"), body)
    if answer.get("pending"):
        raise TransientError(f"execution {id}: update {name} ({answer['id']}) has no result after {wait}; try again")
    echo_json(answer.get("result"))


for _name, _help, _text in (
    ("cancel", "Request cancellation of an execution. Its code may clean up.", "cancellation requested"),
    ("terminate", "Terminate an execution without running its code.", "termination requested"),
):
    add_action(app, _name, f"/executions/{{id}}/{_name}", _help, f"{{id}}: {_text}", id=Id, reason=Option(Reason, ""))
add_action(
    app,
    "redrive",
    "/executions/{id}/redrive",
    "Resume a stuck execution after its code was fixed.",
    "{id}: resumed",
    id=Id,
)
server_command(app, "retry")(retry)
server_command(app, "reset")(reset)
server_command(app, "bulk")(bulk)
