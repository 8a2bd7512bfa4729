"""`headgate lineage`: who writes and reads what, what depends on it, and telling it to the server."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.incident_views import show_entries, show_reach
from headgate.cli.health.options import Limit, Urn
from headgate.cli.input_files import read_content, read_document
from headgate.cli.output import show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import ago
from headgate.errors import InvalidPayloadError, UserError

app = typer.Typer(help="Lineage: who writes and reads what.", no_args_is_help=True, rich_markup_mode=None)

Target = Annotated[str, typer.Argument(metavar="URN", help="A dataset, or a column: urn:col:urn:dp:orders:created:id.")]
_COLUMN: Final = "urn:col:"


class Dead(StrEnum):
    """What is done with events that could not be carried out."""

    LS = "ls"
    REDRIVE = "redrive"
    DROP = "drop"


@app.command("writers")
@asks
def writers(api: Api, urn: Target, limit: Limit = 100, as_json: Json = False) -> None:
    """List who writes a dataset or a column."""
    _entries(api, urn, "writers", limit, as_json=as_json)


@app.command("readers")
@asks
def readers(api: Api, urn: Target, limit: Limit = 100, as_json: Json = False) -> None:
    """List who reads a dataset or a column."""
    _entries(api, urn, "readers", limit, as_json=as_json)


def _entries(api: Api, urn: str, side: str, limit: int, *, as_json: bool) -> None:
    found = list(api.pages(at("columns" if urn.startswith(_COLUMN) else "datasets", urn, side), limit))
    if as_json:
        echo_json(found)
    else:
        show_entries(found, nothing=f"no {side} are known")


@app.command("downstream")
@asks
def downstream(api: Api, urn: Urn, as_json: Json = False) -> None:
    """Show what depends on a dataset, the nearest first."""
    _reach(api, urn, "downstream", as_json=as_json)


@app.command("upstream")
@asks
def upstream(api: Api, urn: Urn, as_json: Json = False) -> None:
    """Show what a dataset depends on, the nearest first."""
    _reach(api, urn, "upstream", as_json=as_json)


def _reach(api: Api, urn: str, side: str, *, as_json: bool) -> None:
    found = api.get(at("datasets", urn, side))
    if as_json:
        echo_json(found)
    else:
        show_reach(found, nothing=f"nothing {side} is known")


@app.command("producer")
@asks
def producer(
    api: Api,
    id: Annotated[str, typer.Argument(metavar="ID", help="A service, job or notebook.")],
    as_json: Json = False,
) -> None:
    """Show what a producer writes and reads."""
    found = api.get(at("lineage", "producers", id))
    if as_json:
        echo_json(found)
        return
    sides = {"dataset_writes": "writes", "dataset_reads": "reads", "column_writes": "writes", "column_reads": "reads"}
    rows = [(target, said) for name, said in sides.items() for target in found[name]]
    show_table(("WHAT", ""), rows, nothing=f"{id}: nothing is known of it")
    if not found["complete"]:
        typer.echo("and more than these")


@app.command("specs")
@asks
def specs(
    api: Api,
    commit: Annotated[str | None, typer.Option(metavar="SHA", help="What was told of this commit.")] = None,
    producer: Annotated[str | None, typer.Option(metavar="ID", help="What this producer has told.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List the specs of a commit or of a producer."""
    found = list(api.pages(at("lineage", "specs"), limit, commit=commit, producer_id=producer))
    if as_json:
        echo_json(found)
        return
    rows = [
        (each["spec_id"], len(each["dataset_writes"]), len(each["dataset_reads"]), ago(each["updated_at"]))
        for each in found
    ]
    show_table(("SPEC", "WRITES", "READS", "TOLD"), rows, nothing="no spec is known")


@app.command("push")
@asks
def push(
    api: Api,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A spec in JSON or TOML; - for standard input.")],
    as_json: Json = False,
) -> None:
    """Say what a producer writes and reads."""
    spec = read_document(file, "spec")
    if not isinstance(spec.get("spec_id"), str) or not spec["spec_id"]:
        raise InvalidPayloadError(f"spec {file}: it has no spec_id; write one such as lspec:my-job:git:SHA")
    answer = api.request("PUT", at("lineage", "specs", spec["spec_id"]), body=spec)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{answer['spec_id']}: {answer['outcome']}, {answer['added']} edges new, {answer['removed']} gone")


@app.command("dbt")
@asks
def dbt(
    api: Api,
    folder: Annotated[Path, typer.Argument(metavar="TARGET_DIR", help="dbt's folder target.")],
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Where the tables are. [default: as dbt's adapter says]")
    ] = "",
    as_json: Json = False,
) -> None:
    """Take over what dbt knows: datasets, tests and lineage, from its manifest, run results and sources."""
    import msgspec

    body: dict[str, Any] = {"namespace": namespace}
    for name in ("manifest", "run_results", "sources"):
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
    if as_json:
        echo_json(answer)
        return
    typer.echo(
        f"{answer['invocation_id']}: {answer['datasets']} datasets, {answer['signals']} signals, "
        f"{answer['lineage']} specs of lineage"
    )
    for each in answer["refused"]:
        typer.echo(f"refused: {each}", err=True)


@app.command("dead")
@asks
def dead(
    api: Api,
    action: Annotated[Dead, typer.Argument(metavar="[ls|redrive|drop]", help="What to do.")] = Dead.LS,
    event_ids: Annotated[list[str] | None, typer.Argument(metavar="[EVENT]...", help="To which of them.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List events of OpenLineage that could not be carried out, try them again, or throw them away."""
    if action is Dead.LS:
        found = list(api.pages("/lineage/dead-letters", limit))
        if as_json:
            echo_json(found)
        else:
            rows = [(each["event_id"], ago(each["failed_at"]), each["about"], each["reason"]) for each in found]
            show_table(("EVENT", "FAILED", "ABOUT", "WHY"), rows, nothing="no dead events")
        return
    if not event_ids:
        raise UserError(f"dead {action.value}: name the events; 'headgate lineage dead' lists them")
    for event_id in event_ids:
        path = at("lineage", "dead-letters", event_id)
        if action is Dead.REDRIVE:
            api.post(f"{path}/redrive")
        else:
            api.request("DELETE", path)
    if as_json:
        echo_json({"action": action.value, "event_ids": event_ids})
    else:
        show_facts(dict.fromkeys(event_ids, "tried again" if action is Dead.REDRIVE else "thrown away"))
