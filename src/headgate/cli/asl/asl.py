"""`headgate asl`: validates, stores, runs and inspects state machines in Amazon States Language."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.asl import state_test, task
from headgate.cli.asl.files import File, Variables, read_valid, read_variables
from headgate.cli.asl.follow import read_events
from headgate.cli.asl.graph import graph
from headgate.cli.asl.run import run
from headgate.cli.asl.validate import validate
from headgate.cli.commands import Answer, Option, add_action, command_group, keep_spelling, server_command
from headgate.cli.output import compact, short, show_facts, show_table

app = command_group("Manage state machines in Amazon States Language.")
app.command("validate")(validate)
app.command("run")(run)
app.command("test")(state_test.run_state)
app.command("graph")(graph)
app.add_typer(task.app, name="task")

Name = Annotated[str, typer.Argument(metavar="NAME", help="State machine name.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Execution id: MACHINE:NAME.")]


@server_command(app, "put")
def put(
    api: Api,
    name: Name,
    file: File,
    var: Variables = None,
    expected_version: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Fail unless this is the newest version; 0: there is none.")
    ] = None,
) -> Answer:
    """Store a definition as the newest version of a machine. An unchanged definition creates no version."""
    variables = read_variables(var)
    text, _ = read_valid(file, variables)
    body = {"definition": text, "variables": variables, "expected_version": expected_version}
    stored = api.request("PUT", at("machines", name), body=body)
    yield stored
    typer.echo(f"{name}: version {stored['version']}")


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List machines with their newest versions."""
    found = list(api.entries("/machines", "machines"))
    yield found
    rows = [(each["name"], each["version"], short(each["created_at"]), each.get("comment", "")) for each in found]
    show_table(
        ("MACHINE", "VERSION", "CREATED", "COMMENT"), rows, nothing="no machines; store one with 'headgate asl put'"
    )


@server_command(app, "show")
def show(
    api: Api,
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Version. [default: newest]", show_default=False)
    ] = None,
) -> Answer:
    """Show a machine: its versions and a definition."""
    found = api.get(at("machines", name), version=version)
    yield found
    import json

    definition = found.pop("definition")
    versions = list(api.entries(at("machines", name, "versions"), "machines"))
    show_facts({**found, "versions": " ".join(str(each["version"]) for each in versions)})
    typer.echo(json.dumps(definition, indent=2, ensure_ascii=False))


@server_command(app, "executions")
def executions(
    api: Api,
    name: Name,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Filter by status: RUNNING, SUCCEEDED, FAILED, TIMED_OUT or ABORTED."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 50,
) -> Answer:
    """List the executions of a machine, newest first."""
    found = list(api.entries(at("machines", name, "executions"), "executions", limit, status=status))
    yield found
    rows = [
        (each["id"], each["status"], short(each["started_at"]), short(each.get("ended_at")), each.get("error", ""))
        for each in found
    ]
    show_table(("ID", "STATUS", "STARTED", "ENDED", "ERROR"), rows, nothing="no executions")


@server_command(app, "show-execution")
def describe(api: Api, id: Id) -> Answer:
    """Show an execution: its status, input and output."""
    found = api.get(at("machine-executions", id))
    yield found
    for name in ("input", "output"):
        if name in found:
            found[name] = compact(found[name])
    show_facts(found)


keep_spelling(app, "describe", "show-execution")


@server_command(app, "history")
def history(
    api: Api,
    id: Id,
    reverse: Annotated[bool, typer.Option("--reverse", help="Newest first.")] = False,
) -> Answer:
    """List the events of an execution, with the names and, in JSON, the format of Step Functions."""
    found = list(read_events(api, id))
    visits = _states(found)
    order = found[::-1] if reverse else found
    yield {"events": order}
    rows = [
        (each["id"], each["timestamp"][11:23], each["type"], visits[each["id"]], _details_text(each)) for each in order
    ]
    show_table(("ID", "AT", "EVENT", "STATE", ""), rows, nothing="no events yet", key=2)


add_action(
    app,
    "stop",
    "/machine-executions/{id}/stop",
    "Stop an execution.",
    "{id}: stop requested",
    id=Id,
    error=Option(Annotated[str, typer.Option(metavar="NAME", help="Error name.")], ""),
    cause=Option(Annotated[str, typer.Option(metavar="TEXT", help="Recorded in the history.")], ""),
)
add_action(
    app,
    "redrive",
    "/machine-executions/{id}/redrive",
    "Redrive an unsuccessful execution from the state that failed. Completed states do not run again.",
    "{id}: resumed, redrive {answer[redrive_count]}",
    id=Id,
)


def _states(events: list[dict[str, Any]]) -> dict[int, str]:
    """Return the state of each event, with its iteration number in a Map."""
    from headgate.serve.rest.asl.state_visits import Visits

    visits, states = Visits(), {}
    for event in events:
        visit = visits.take(event)
        index = "" if visit is None or visit.index is None else f"[{visit.index}] "
        states[event["id"]] = "" if visit is None or event["type"].startswith("Execution") else f"{index}{visit.name}"
    return states


def _details_text(event: dict[str, Any]) -> str:
    """Return the error, payload or other details of an event."""
    from headgate.serve.rest.asl.events import details_of, error_text

    details = {name: value for name, value in details_of(event).items() if name != "name"}
    if "error" in details:
        return error_text(details["error"], details.get("cause", ""))
    for member in ("input", "output", "parameters"):
        if member in details:
            return f"{member} {_shortened(compact(details[member]))}"
    return _shortened(compact(details)) if details else ""


def _shortened(text: str, length_max: int = 120) -> str:
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"
