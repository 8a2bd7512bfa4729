"""`headgate lineage`: shows and uploads lineage of datasets, columns and producers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.health.incident_views import show_entries, show_reach
from headgate.cli.input_files import read_content, read_document
from headgate.cli.options import Limit, Urn
from headgate.cli.output import show_facts, show_table
from headgate.cli.times import ago
from headgate.errors import InvalidPayloadError, UserError

app = command_group("Show and upload lineage.")

Target = Annotated[str, typer.Argument(metavar="URN", help="Dataset, or column: urn:col:urn:dp:orders:created:id.")]
_COLUMN: Final = "urn:col:"


class DeadLetterAction(StrEnum):
    """Action on dead-lettered events."""

    LS = "ls"
    REDRIVE = "redrive"
    DROP = "drop"


@server_command(app, "writers")
def writers(api: Api, urn: Target, limit: Limit = 100) -> Answer:
    """List the writers of a dataset or column."""
    return _entries(api, urn, "writers", limit)


@server_command(app, "readers")
def readers(api: Api, urn: Target, limit: Limit = 100) -> Answer:
    """List the readers of a dataset or column."""
    return _entries(api, urn, "readers", limit)


def _entries(api: Api, urn: str, side: str, limit: int) -> Answer:
    found = list(api.items(at("columns" if urn.startswith(_COLUMN) else "datasets", urn, side), limit))
    yield found
    show_entries(found, nothing=f"no {side} known")


@server_command(app, "downstream")
def downstream(api: Api, urn: Urn) -> Answer:
    """Show the dependants of a dataset, nearest first."""
    return _reach(api, urn, "downstream")


@server_command(app, "upstream")
def upstream(api: Api, urn: Urn) -> Answer:
    """Show the dependencies of a dataset, nearest first."""
    return _reach(api, urn, "upstream")


def _reach(api: Api, urn: str, side: str) -> Answer:
    found = api.get(at("datasets", urn, side))
    yield found
    show_reach(found, nothing=f"nothing {side} known")


@server_command(app, "producer")
def producer(
    api: Api,
    id: Annotated[str, typer.Argument(metavar="ID", help="Producer: a service, job or notebook.")],
) -> Answer:
    """Show the datasets and columns that a producer writes and reads."""
    found = api.get(at("lineage", "producers", id))
    yield found
    sides = {"dataset_writes": "writes", "dataset_reads": "reads", "column_writes": "writes", "column_reads": "reads"}
    rows = [(target, access) for name, access in sides.items() for target in found[name]]
    show_table(("TARGET", "ACCESS"), rows, nothing=f"{id}: unknown producer")
    if not found["complete"]:
        typer.echo("the list is incomplete")


@server_command(app, "specs")
def specs(
    api: Api,
    commit: Annotated[str | None, typer.Option(metavar="SHA", help="Filter by commit.")] = None,
    producer: Annotated[str | None, typer.Option(metavar="ID", help="Filter by producer.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List the lineage specs of a commit or producer."""
    found = list(api.items(at("lineage", "specs"), limit, commit=commit, producer_id=producer))
    yield found
    rows = [
        (each["spec_id"], len(each["dataset_writes"]), len(each["dataset_reads"]), ago(each["updated_at"]))
        for each in found
    ]
    show_table(("SPEC", "WRITES", "READS", "UPDATED"), rows, nothing="no specs")


@server_command(app, "push")
def push(
    api: Api,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lineage spec in JSON or TOML; - for standard input.")],
) -> Answer:
    """Upload the lineage spec of a producer."""
    spec = read_document(file, "spec")
    if not isinstance(spec.get("spec_id"), str) or not spec["spec_id"]:
        raise InvalidPayloadError(f"spec {file}: spec_id is required, such as lspec:my-job:git:SHA")
    answer = api.request("PUT", at("lineage", "specs", spec["spec_id"]), body=spec)
    yield answer
    typer.echo(f"{answer['spec_id']}: {answer['outcome']}, {answer['added']} edges added, {answer['removed']} removed")


@server_command(app, "dbt")
def dbt(
    api: Api,
    folder: Annotated[Path, typer.Argument(metavar="TARGET_DIR", help="Target folder of dbt.")],
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of the tables. [default: from the dbt profile]")
    ] = "",
    profiles_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of profiles.yml. [default: as dbt finds it]")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Profile. [default: from dbt_project.yml]")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Target. [default: of the profile]")] = None,
) -> Answer:
    """Import datasets, test results and lineage from the manifest, run results and sources of dbt."""
    import msgspec

    from headgate.cli.health.dbt_profile import profile_namespace

    if not namespace:
        found = profile_namespace(folder, profiles_dir=profiles_dir, profile=profile, target=target)
        if found is None:
            typer.echo("no profiles.yml found: tables are named by the dbt adapter; give --profiles-dir", err=True)
        namespace = found or ""
    body: dict[str, Any] = {"namespace": namespace}
    for name in ("manifest", "run_results", "sources", "catalog"):
        path = folder / f"{name}.json"
        if name != "manifest" and not path.exists():
            continue
        content = read_content(str(path), "dbt")
        try:
            msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise InvalidPayloadError(f"dbt {path}: not JSON ({exc}); run dbt again") from exc
        body[name] = msgspec.Raw(content)
    answer = api.request("POST", "/lineage/dbt", body=body, packed=True)
    yield answer
    typer.echo(
        f"{answer['invocation_id']}: {answer['datasets']} datasets, {answer['signals']} signals, "
        f"{answer['results']} results ({answer['failed']} failed), {answer['lineage']} lineage specs"
    )
    for each in answer["refused"]:
        typer.echo(f"refused: {each}", err=True)


@server_command(app, "dead")
def dead(
    api: Api,
    action: Annotated[
        DeadLetterAction, typer.Argument(metavar="[ls|redrive|drop]", help="Action.")
    ] = DeadLetterAction.LS,
    event_ids: Annotated[list[str] | None, typer.Argument(metavar="[EVENT]...", help="Event ids.")] = None,
    limit: Limit = 50,
) -> Answer:
    """List, redrive or drop OpenLineage events that could not be processed."""
    if action is DeadLetterAction.LS:
        found = list(api.items("/lineage/dead-letters", limit))
        yield found
        rows = [(each["event_id"], ago(each["failed_at"]), each["about"], each["reason"]) for each in found]
        show_table(("EVENT", "FAILED", "JOB OR DATASET", "REASON"), rows, nothing="no dead letters")
        return
    if not event_ids:
        raise UserError(f"dead {action.value}: event ids are required; see 'headgate lineage dead'")
    for event_id in event_ids:
        path = at("lineage", "dead-letters", event_id)
        if action is DeadLetterAction.REDRIVE:
            api.post(f"{path}/redrive")
        else:
            api.request("DELETE", path)
    yield {"action": action.value, "event_ids": event_ids}
    show_facts(dict.fromkeys(event_ids, "redriven" if action is DeadLetterAction.REDRIVE else "dropped"))
