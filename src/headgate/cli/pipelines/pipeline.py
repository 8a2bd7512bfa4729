"""`headgate pipeline`: pipelines, defined from files, looked at, tried out, stopped and let go on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.events import events
from headgate.cli.pipelines.explain import evaluate, simulate
from headgate.cli.pipelines.files import ArchetypeFolder, Paths, load_right
from headgate.cli.pipelines.views import Limit, Pipeline, Reason, Walls, later, pages
from headgate.cli.session import Json, echo_json

app = typer.Typer(
    help="Pipelines: what they wait for, what they start, and by when.", no_args_is_help=True, rich_markup_mode=None
)
app.command("evaluate")(evaluate)
app.command("simulate")(simulate)
app.command("events")(events)


@app.command("apply")
@asks
def apply(
    api: Api,
    paths: Paths,
    archetypes: ArchetypeFolder = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for its versions.")] = None,
    as_json: Json = False,
) -> None:
    """Have the server keep definitions. The same again changes nothing. If one is wrong, none is sent.

    What runs programs on the server is not taken from here: 'headgate up --pipelines' reads it from a folder of its.
    """
    from headgate.cli.pipelines.files import kept, put

    loaded = load_right(paths, archetypes)
    known = {name: each["version"] for name, each in kept(api).items()}
    done: list[dict[str, Any]] = []
    for each in loaded.pipelines:
        answer = put(api, each, reason)
        before = known.get(each.pipeline.id)
        done.append({"pipeline_id": answer["id"], "version": answer["version"], "before": before})
        if not as_json:
            typer.echo(_applied(answer["id"], answer["version"], before))
    if as_json:
        echo_json(done)


def _applied(pipeline_id: str, version: int, before: int | None) -> str:
    if before == version:
        return f"{pipeline_id}: version {version}, unchanged"
    return f"{pipeline_id}: version {version}" + (", new" if before is None else f", was {before}")


@app.command("ls")
@asks
def ls(
    api: Api,
    owner: Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Those of this one.")] = None,
    as_json: Json = False,
) -> None:
    """List pipelines."""
    found = [each for each in pages(api, "/pipelines", "pipelines") if owner in (None, each["owner"])]
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["id"],
            each["period"],
            each["schedules"],
            each["definition"].get("timezone", "UTC"),
            each["tier"],
            each["owner"],
            f"v{each['version']}",
            each["description"],
        )
        for each in found
    ]
    columns = ("PIPELINE", "PERIOD", "SCHEDULES", "ZONE", "TIER", "OWNER", "VERSION", "")
    show_table(columns, rows, nothing="no pipelines; 'headgate init' makes a first one")


@app.command("show")
@asks
def show(
    api: Api,
    pipeline: Pipeline,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="As it was then. [default: now]")] = None,
    as_json: Json = False,
) -> None:
    """Show a pipeline: its definition, and what people have said about it."""
    found = api.get(at("pipelines", pipeline), version=version)
    if as_json:
        echo_json(found)
        return
    import msgspec

    facts = {name: found[name] for name in ("id", "description", "owner", "tier", "period", "schedules")}
    since = Walls(api).text(pipeline, found["at"])
    facts |= {"version": f"{found['version']}, by {found['by']} at {since}", "source": found["source"]}
    if version is None:
        control = api.get(at("pipelines", pipeline, "control"))
        by = f", by {control['by']}: {control['reason']}" if control["state"] != "ACTIVE" else ""
        facts["control"] = f"{control['state']}{by}"
    show_facts({**facts, "why": found["reason"]})
    definition = msgspec.json.encode(found["definition"])
    typer.echo(msgspec.json.format(definition, indent=2).decode())


@app.command("versions")
@asks
def versions(api: Api, pipeline: Pipeline, limit: Limit = 20, as_json: Json = False) -> None:
    """List the versions of a pipeline, the latest first. 'headgate diff' compares two."""
    found = list(pages(api, at("pipelines", pipeline, "versions"), "pipelines", limit))
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["version"],
            walls.text(pipeline, each["at"]),
            each["by"],
            each["source"],
            "taken away" if each["deleted"] else "",
            each["reason"],
        )
        for each in found
    ]
    show_table(("VERSION", "AT", "BY", "SOURCE", "", "WHY"), rows, nothing="no versions")


@app.command("rm")
@asks
def rm(api: Api, pipeline: Pipeline, reason: Reason = "", as_json: Json = False) -> None:
    """Take a pipeline away. Its versions and runs stay."""
    api.request("DELETE", at("pipelines", pipeline), query={"reason": reason or None})
    if as_json:
        echo_json({"deleted": pipeline})
    else:
        typer.echo(f"{pipeline}: it is taken away")


@app.command("pause")
@asks
def pause(
    api: Api,
    pipeline: Pipeline,
    reason: Reason,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="A time, or for how long: 2h. [default: resumed]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Begin nothing of a pipeline by itself, until it is resumed or a time has come. By hand it still can be."""
    answer = api.post(at("pipelines", pipeline, "pause"), {"reason": reason, "until": later(until, "--until")})
    _say_control(api, answer, as_json=as_json)


@app.command("resume")
@asks
def resume(api: Api, pipeline: Pipeline, reason: Reason, as_json: Json = False) -> None:
    """Let a pipeline go on that someone has paused, or that failures in a row have stopped."""
    _say_control(api, api.post(at("pipelines", pipeline, "resume"), {"reason": reason}), as_json=as_json)


def _say_control(api: Api, control: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(control)
        return
    until = f" until {Walls(api).text(control['pipeline_id'], control['until'])}" if control.get("until") else ""
    typer.echo(f"{control['pipeline_id']}: {control['state']}{until}")


@app.command("schema")
def schema(
    kind: Annotated[str, typer.Argument(metavar="[pipeline|archetype]", help="Of which kind of file.")] = "pipeline",
) -> None:
    """Print the JSON Schema of definitions, for editors. No server is asked."""
    import msgspec

    from headgate.errors import UserError
    from headgate.pipelines.authoring.json_schema import Kind, json_schema

    if kind not in list(Kind):
        raise UserError(f"schema {kind!r}: there is none; use one of {', '.join(Kind)}")
    made = msgspec.json.encode(json_schema(Kind(kind)))
    typer.echo(msgspec.json.format(made, indent=2).decode())
