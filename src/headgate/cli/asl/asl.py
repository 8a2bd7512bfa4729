"""`headgate asl`: state machines in Amazon States Language, checked, drawn, run and looked into."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.asl import task as asl_task
from headgate.cli.asl.files import File, Variables, read_checked, read_variables, validate
from headgate.cli.asl.follow import read_events
from headgate.cli.asl.graph import graph
from headgate.cli.asl.run import run
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="State machines in Amazon States Language.", no_args_is_help=True, rich_markup_mode=None)
app.command("validate")(validate)
app.command("run")(run)
app.command("graph")(graph)
app.add_typer(asl_task.app, name="task")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The machine.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The execution: MACHINE:NAME.")]
_PAGE = 1000


@app.command("put")
@asks
def put(
    api: Api,
    name: Name,
    file: File,
    var: Variables = None,
    expected_version: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Refuse if the newest is another; 0 is none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Keep a definition on the server as the newest version of a machine. The same again changes nothing."""
    variables = read_variables(var)
    text, _ = read_checked(file, variables)
    body = {"definition": text, "variables": variables, "expected_version": expected_version}
    kept = api.request("PUT", at("machines", name), body=body)
    if as_json:
        echo_json(kept)
    else:
        typer.echo(f"{name}: version {kept['version']}")


@app.command("ls")
@asks
def ls(api: Api, as_json: Json = False) -> None:
    """List machines, each in its newest version."""
    found = _pages(api, "/machines", "machines")
    if as_json:
        echo_json(found)
        return
    rows = [(each["name"], each["version"], short(each["created_at"]), each.get("comment", "")) for each in found]
    show_table(("MACHINE", "VERSION", "KEPT", ""), rows, nothing="no machines; keep one with 'headgate asl put'")


@app.command("show")
@asks
def show(
    api: Api,
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="[default: newest]", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a machine: its versions, and the definition of one."""
    found = api.get(at("machines", name), version=version)
    if as_json:
        echo_json(found)
        return
    import json

    definition = found.pop("definition")
    versions = _pages(api, at("machines", name, "versions"), "machines")
    show_facts({**found, "versions": " ".join(str(each["version"]) for each in versions)})
    typer.echo(json.dumps(definition, indent=2, ensure_ascii=False))


@app.command("executions")
@asks
def executions(
    api: Api,
    name: Name,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="RUNNING, SUCCEEDED, FAILED, TIMED_OUT or ABORTED.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """List the executions of a machine, the latest first."""
    found = _pages(api, at("machines", name, "executions"), "executions", limit, status=status)
    if as_json:
        echo_json(found)
        return
    rows = [
        (each["id"], each["status"], short(each["started_at"]), short(each.get("ended_at")), each.get("error", ""))
        for each in found
    ]
    show_table(("ID", "STATUS", "STARTED", "ENDED", ""), rows, nothing="no executions")


@app.command("describe")
@asks
def describe(api: Api, id: Id, as_json: Json = False) -> None:
    """Show how an execution is: what it was given, where it stands, how it ended."""
    found = api.get(at("machine-executions", id))
    if as_json:
        echo_json(found)
        return
    for name in ("input", "output"):
        if name in found:
            found[name] = compact(found[name])
    show_facts(found)


@app.command("history")
@asks
def history(
    api: Api,
    id: Id,
    reverse: Annotated[bool, typer.Option("--reverse", help="The latest first.")] = False,
    as_json: Json = False,
) -> None:
    """Show every event of an execution, in the words of Step Functions. With --json, in its shape."""
    found = list(read_events(api, id))
    visits = _states(found)
    order = found[::-1] if reverse else found
    if as_json:
        echo_json({"events": order})
        return
    rows = [(each["id"], each["timestamp"][11:23], each["type"], visits[each["id"]], _told(each)) for each in order]
    show_table(("ID", "AT", "EVENT", "STATE", ""), rows, nothing="no events yet", key=2)


@app.command("stop")
@asks
def stop(
    api: Api,
    id: Id,
    error: Annotated[str, typer.Option(metavar="NAME", help="What to call the reason.")] = "",
    cause: Annotated[str, typer.Option(metavar="TEXT", help="For whoever reads the history.")] = "",
    as_json: Json = False,
) -> None:
    """Stop an execution."""
    answer = api.post(at("machine-executions", id, "stop"), {"error": error, "cause": cause})
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{id}: it is asked to end")


@app.command("redrive")
@asks
def redrive(api: Api, id: Id, as_json: Json = False) -> None:
    """Have an execution that did not succeed go on from where it failed; what went well is not done again."""
    answer = api.post(at("machine-executions", id, "redrive"))
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{id}: it goes on, redrive {answer['redrive_count']}")


def _pages(api: Api, path: str, what: str, limit: int | None = None, **query: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while limit is None or len(found) < limit:
        size = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = api.get(path, **query, limit=size, cursor=cursor)
        found += page[what]
        cursor = page["cursor"]
        if cursor is None:
            break
    return found


def _states(events: list[dict[str, Any]]) -> dict[int, str]:
    """Return the state that each event belongs to, with the number of the iteration that it is in."""
    from headgate.serve.rest.asl.state_visits import Visits

    visits, states = Visits(), {}
    for event in events:
        visit = visits.take(event)
        index = "" if visit is None or visit.index is None else f"[{visit.index}] "
        states[event["id"]] = "" if visit is None or event["type"].startswith("Execution") else f"{index}{visit.name}"
    return states


def _told(event: dict[str, Any]) -> str:
    """Return what an event says besides the state that it is about."""
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
