"""`headgate pipeline`: applies definitions, shows pipelines and their versions, pauses and resumes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_deletion, command_group, keep_spelling, server_command
from headgate.cli.options import Limit, Pipeline, Reason
from headgate.cli.output import counted, show_facts, show_table
from headgate.cli.pipelines.events import events
from headgate.cli.pipelines.explain import evaluate, simulate
from headgate.cli.pipelines.files import ArchetypeFolder, Paths, validate
from headgate.cli.pipelines.plan import diff, plan, plan_changes
from headgate.cli.pipelines.views import LocalTimes
from headgate.cli.session import Json, echo_json
from headgate.cli.times import future_time
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.pipelines.authoring.loader import LoadedPipeline

# Digits of a digest that are shown; --json has all.
_DIGEST_CHARS: Final = 12
app = command_group("Manage pipelines.")
app.command("evaluate")(evaluate)
app.command("simulate")(simulate)
app.command("events")(events)
app.command("validate")(validate)
app.command("plan")(plan)
app.command("diff")(diff)


@server_command(app, "apply")
def apply(
    api: Api,
    paths: Paths,
    archetypes: ArchetypeFolder = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Recorded with the new version.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, as 'headgate pipeline plan' does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upload pipeline definitions. Unchanged ones get no new version. The exit code is 2 if one is refused.

    What can be applied is applied, and each definition that is refused is named with the reason. Definitions that run
    programs come from the server's own folder: change them there, then run 'headgate reload'.
    """
    from headgate.cli.pipelines.files import load, show_problems, split, stored_pipelines, unknown_dataset_warnings

    if dry_run:
        plan_changes(api, paths, archetypes, as_json=as_json)
        return
    loaded = load(paths, archetypes)
    show_problems(loaded)
    known = stored_pipelines(api)
    for warning in unknown_dataset_warnings(api, loaded, known):
        typer.echo(warning.text(), err=True)
    results = [_apply_one(api, each, known.get(each.pipeline.id), reason) for each in loaded.pipelines]
    invalid, _ = split(loaded)
    refused = len(invalid) + sum("refused" in each for each in results)
    if as_json:
        echo_json(results)
    else:
        for each in results:
            _show_applied(each)
    if refused:
        typer.echo(f"error: {counted(refused, 'problem')}; the rest was applied\ncode: bad_definition", err=True)
        raise typer.Exit(ExitCode.INVALID)


def _apply_one(api: Api, loaded: LoadedPipeline, known: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    """Upload a definition, and return the outcome: the versions, or why it is refused."""
    from headgate.cli.pipelines.files import put
    from headgate.errors import ConflictError, UserError

    before = None if known is None else known["version"]
    result = {"pipeline_id": loaded.pipeline.id, "source": loaded.source, "version": before, "before": before}
    try:
        answer = put(api, loaded, reason)
    except (UserError, ConflictError) as exc:
        return {**result, "refused": exc.message}
    return {**result, "version": answer["version"]}


def _show_applied(result: dict[str, Any]) -> None:
    name, version, before = result["pipeline_id"], result["version"], result["before"]
    if "refused" in result:
        typer.echo(f"{name}: refused: {result['refused']}", err=True)
        return
    if before == version:
        typer.echo(f"{name}: version {version}, unchanged")
    else:
        typer.echo(f"{name}: version {version}" + (", new" if before is None else f", was {before}"))


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
    facts |= {"version": f"{found['version']}, by {found['by']} at {since}", "source": _source(found, since)}
    if version is None:
        facts["folder"] = _folder(found.get("folder"))
    if version is None:
        control = api.get(at("pipelines", pipeline, "control"))
        by = f", by {control['by']}: {control['reason']}" if control["state"] != "ACTIVE" else ""
        facts["control"] = f"{control['state']}{by}"
    show_facts({**facts, "reason": found["reason"]})
    definition = msgspec.json.encode(found["definition"])
    typer.echo(msgspec.json.format(definition, indent=2).decode())


def _place(version: dict[str, Any]) -> str:
    """Return the file of a version with the digest of its text, or the API."""
    digest = version["provenance"]["sha256"][:_DIGEST_CHARS]
    return f"{version['source']}@{digest}" if digest else str(version["source"])


def _source(found: dict[str, Any], since: str) -> str:
    """Return where a definition came from. A server of an earlier build states the source only."""
    provenance = found.get("provenance")
    if provenance is None:
        return str(found["source"])
    digest = f"@{provenance['sha256'][:_DIGEST_CHARS]}" if provenance["sha256"] else ""
    if provenance["origin"] == "folder":
        return f"folder: {provenance['source']}{digest}, loaded at {since}"
    if provenance["origin"] == "api":
        return f"API: by {provenance['by']} at {since}"
    return f"{provenance['origin']}: {provenance['source'] or 'not recorded'}{digest}"


def _folder(copy: dict[str, Any] | None) -> str | None:
    """Return whether the project folder holds the same definition; None if it holds none."""
    if copy is None:
        return None
    file = f"{copy['file']}@{copy['sha256'][:_DIGEST_CHARS]}"
    if not copy["differs"]:
        return f"{file}, the same"
    return f"{file}, differs" + (f": {copy['detail']}" if copy["detail"] else "; 'headgate reload' loads it")


@server_command(app, "versions")
def versions(api: Api, pipeline: Pipeline, limit: Limit = 20) -> Answer:
    """List the versions of a pipeline, newest first. Compare two with 'headgate pipeline diff'."""
    found = list(api.entries(at("pipelines", pipeline, "versions"), "pipelines", limit))
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["version"],
            times.text(pipeline, each["at"]),
            each["by"],
            _place(each),
            "deleted" if each["deleted"] else "",
            each["reason"],
        )
        for each in found
    ]
    show_table(("VERSION", "AT", "BY", "SOURCE", "", "REASON"), rows, nothing="no versions")


add_deletion(
    app,
    "delete",
    "/pipelines/{pipeline}",
    "Delete a pipeline. Its versions and runs are kept.",
    pipeline=Pipeline,
    reason=Option(Reason, ""),
)
keep_spelling(app, "rm", "delete")


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
    kind: Annotated[str, typer.Argument(metavar="[pipeline|archetype|probe]", help="Kind of file.")] = "pipeline",
) -> None:
    """Print the JSON Schema of definitions, for editors. No server is needed."""
    from headgate.errors import UserError
    from headgate.pipelines.authoring.json_schema import SchemaKind, schema_text

    if kind not in list(SchemaKind):
        raise UserError(f"schema {kind!r}: unknown; use one of {', '.join(SchemaKind)}")
    typer.echo(schema_text(SchemaKind(kind)), nl=False)
