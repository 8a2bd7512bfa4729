"""`headgate pipeline`: applies definitions, shows pipelines and their versions, pauses and resumes them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_deletion, command_group, server_command
from headgate.cli.options import Limit, Pipeline, Reason
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.events import events
from headgate.cli.pipelines.explain import evaluate, simulate
from headgate.cli.pipelines.files import ArchetypeFolder, Paths, load_valid
from headgate.cli.pipelines.views import LocalTimes
from headgate.cli.session import Json, echo_json
from headgate.cli.times import future_time

app = command_group("Manage pipelines.")
app.command("evaluate")(evaluate)
app.command("simulate")(simulate)
app.command("events")(events)


@server_command(app, "apply")
def apply(
    api: Api,
    paths: Paths,
    archetypes: ArchetypeFolder = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Recorded with the new version.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload pipeline definitions. Unchanged ones get no new version; if one is invalid, none is uploaded.

    Definitions that run programs on the server are refused: 'headgate up --pipelines' loads them from a folder.
    """
    from headgate.cli.pipelines.files import put, stored_pipelines

    loaded = load_valid(paths, archetypes)
    known = {name: each["version"] for name, each in stored_pipelines(api).items()}
    applied: list[dict[str, Any]] = []
    for each in loaded.pipelines:
        answer = put(api, each, reason)
        before = known.get(each.pipeline.id)
        applied.append({"pipeline_id": answer["id"], "version": answer["version"], "before": before})
        if not as_json:
            typer.echo(_applied(answer["id"], answer["version"], before))
    if as_json:
        echo_json(applied)


def _applied(pipeline_id: str, version: int, before: int | None) -> str:
    if before == version:
        return f"{pipeline_id}: version {version}, unchanged"
    return f"{pipeline_id}: version {version}" + (", new" if before is None else f", was {before}")


@server_command(app, "ls")
def ls(
    api: Api,
    owner: Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Filter by owner.")] = None,
) -> Answer:
    """List pipelines."""
    found = [each for each in api.entries("/pipelines", "pipelines") if owner in (None, each["owner"])]
    yield found
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
    columns = ("PIPELINE", "PERIOD", "SCHEDULES", "ZONE", "TIER", "OWNER", "VERSION", "DESCRIPTION")
    show_table(columns, rows, nothing="no pipelines; create one with 'headgate init'")


@server_command(app, "show")
def show(
    api: Api,
    pipeline: Pipeline,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="Version. [default: newest]")] = None,
) -> Answer:
    """Show a pipeline: its definition, version and control state."""
    found = api.get(at("pipelines", pipeline), version=version)
    yield found
    import msgspec

    facts = {name: found[name] for name in ("id", "description", "owner", "tier", "period", "schedules")}
    since = LocalTimes(api).text(pipeline, found["at"])
    facts |= {"version": f"{found['version']}, by {found['by']} at {since}", "source": _source(found)}
    if version is None:
        control = api.get(at("pipelines", pipeline, "control"))
        by = f", by {control['by']}: {control['reason']}" if control["state"] != "ACTIVE" else ""
        facts["control"] = f"{control['state']}{by}"
    show_facts({**facts, "reason": found["reason"]})
    definition = msgspec.json.encode(found["definition"])
    typer.echo(msgspec.json.format(definition, indent=2).decode())


def _source(found: dict[str, Any]) -> str:
    """Return where a definition came from. A server of an earlier build states the source only."""
    provenance = found.get("provenance")
    if provenance is None:
        return str(found["source"])
    digest = f", sha256 {provenance['sha256']}" if provenance["sha256"] else ""
    return f"{provenance['origin']}: {provenance['source'] or 'not recorded'}{digest}"


@server_command(app, "versions")
def versions(api: Api, pipeline: Pipeline, limit: Limit = 20) -> Answer:
    """List the versions of a pipeline, newest first. Compare two with 'headgate diff'."""
    found = list(api.entries(at("pipelines", pipeline, "versions"), "pipelines", limit))
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["version"],
            times.text(pipeline, each["at"]),
            each["by"],
            each["source"],
            "deleted" if each["deleted"] else "",
            each["reason"],
        )
        for each in found
    ]
    show_table(("VERSION", "AT", "BY", "SOURCE", "", "REASON"), rows, nothing="no versions")


add_deletion(
    app,
    "rm",
    "/pipelines/{pipeline}",
    "Delete a pipeline. Its versions and runs are kept.",
    pipeline=Pipeline,
    reason=Option(Reason, ""),
)


@server_command(app, "pause")
def pause(
    api: Api,
    pipeline: Pipeline,
    reason: Reason,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Resume at a time, or after 2h. [default: resume by hand]"),
    ] = None,
) -> Answer:
    """Pause a pipeline: no period starts on schedule. Periods can still be started by hand."""
    answer = api.post(at("pipelines", pipeline, "pause"), {"reason": reason, "until": future_time(until, "--until")})
    yield answer
    _show_control(api, answer)


@server_command(app, "resume")
def resume(api: Api, pipeline: Pipeline, reason: Reason) -> Answer:
    """Resume a pipeline that was paused, or stopped by its circuit breaker."""
    answer = api.post(at("pipelines", pipeline, "resume"), {"reason": reason})
    yield answer
    _show_control(api, answer)


def _show_control(api: Api, control: dict[str, Any]) -> None:
    until = f" until {LocalTimes(api).text(control['pipeline_id'], control['until'])}" if control.get("until") else ""
    typer.echo(f"{control['pipeline_id']}: {control['state']}{until}")


@app.command("schema")
def schema(
    kind: Annotated[str, typer.Argument(metavar="[pipeline|archetype]", help="SchemaKind of file.")] = "pipeline",
) -> None:
    """Print the JSON Schema of definitions, for editors. No server is needed."""
    import msgspec

    from headgate.errors import UserError
    from headgate.pipelines.authoring.json_schema import SchemaKind, json_schema

    if kind not in list(SchemaKind):
        raise UserError(f"schema {kind!r}: unknown; use one of {', '.join(SchemaKind)}")
    encoded = msgspec.json.encode(json_schema(SchemaKind(kind)))
    typer.echo(msgspec.json.format(encoded, indent=2).decode())
