"""`headgate pipeline plan` and `headgate pipeline diff`: what an upload would change, and what two versions changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, calls_server
from headgate.cli.output import counted
from headgate.cli.pipelines.files import (
    ArchetypeFolder,
    Paths,
    load_valid,
    unknown_dataset_warnings,
    unknown_upstream_warnings,
)
from headgate.cli.pipelines.views import show_lines
from headgate.cli.session import Json, echo_json
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.pipelines.authoring.loader import LoadedPipeline


@calls_server
def plan(api: Api, paths: Paths, archetypes: ArchetypeFolder = None, as_json: Json = False) -> None:
    """Show what 'pipeline apply' would change on the server. The exit code is 2 if it would refuse one.

    Pipelines that exist only on the server are listed and stay unchanged.
    """
    plan_changes(api, paths, archetypes, as_json=as_json)


def plan_changes(api: Api, paths: Sequence[str], archetypes: Path | None, *, as_json: bool) -> None:
    """Print what applying the definitions would change. Exits with 2 if it would refuse one."""
    from headgate.cli.pipelines.files import stored_pipelines

    loaded = load_valid(paths, archetypes)
    known = stored_pipelines(api)
    changes = [_planned(api, each, known.get(each.pipeline.id)) for each in loaded.pipelines]
    local = {each.pipeline.id for each in loaded.pipelines}
    warnings = [*unknown_upstream_warnings(loaded, known), *unknown_dataset_warnings(api, loaded, known)]
    others = sorted(known.keys() - local)
    if as_json:
        echo_json({"changes": changes, "others": others, "warnings": warnings})
    else:
        for problem in warnings:
            typer.echo(problem.text(), err=True)
        _show(changes, others)
    if any(each["problems"] for each in changes):
        raise typer.Exit(ExitCode.INVALID)


def _planned(api: Api, loaded: LoadedPipeline, known: dict[str, Any] | None) -> dict[str, Any]:
    from headgate.cli.pipelines.files import send
    from headgate.pipelines.definition.serialization import digest

    pipeline = loaded.pipeline
    planned = {"pipeline_id": pipeline.id, "source": loaded.source, "is_new": known is None, "lines": []}
    if known is not None and known["digest"] == digest(pipeline):
        return {**planned, "problems": []}
    answer = send(api, "POST", "/pipelines/plan", loaded.text)
    lines = [line for each in answer["changes"] for line in each["lines"]]
    return {**planned, "lines": lines, "problems": [_problem_text(loaded.source, each) for each in answer["problems"]]}


def _problem_text(source: str, problem: dict[str, Any]) -> str:
    from headgate import typed_decode
    from headgate.pipelines.definition.problems import Problem

    return typed_decode.convert({**problem, "source": source}, Problem).text()


def _show(changes: list[dict[str, Any]], others: list[str]) -> None:
    counts = {"new": 0, "changed": 0, "unchanged": 0, "refused": 0}
    for each in changes:
        outcome = _outcome(each)
        counts[outcome] += 1
        if outcome != "unchanged":
            typer.echo(f"{each['pipeline_id']}: {outcome}")
            show_lines(each["lines"])
        for problem in each["problems"]:
            typer.echo(problem, err=True)
    for pipeline_id in others:
        typer.echo(f"{pipeline_id}: only on the server, unchanged")
    typer.echo(f"{counted(len(changes), 'pipeline')}: " + ", ".join(f"{n} {name}" for name, n in counts.items() if n))


def _outcome(change: dict[str, Any]) -> str:
    if change["problems"]:
        return "refused"
    if change["is_new"]:
        return "new"
    return "changed" if change["lines"] else "unchanged"


@calls_server
def diff(
    api: Api,
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="Pipeline id.")],
    before: Annotated[
        int | None, typer.Argument(metavar="[FROM]", min=1, help="Version. [default: the one before TO]")
    ] = None,
    after: Annotated[int | None, typer.Argument(metavar="[TO]", min=1, help="Version. [default: newest]")] = None,
) -> Answer:
    """Show the changes between two versions of a pipeline: + added, - removed, ~ changed."""
    found = api.get(at("pipelines", pipeline, "diff"), **{"from": before, "to": after})
    yield found
    typer.echo(f"{pipeline}: version {found['from']} to {found['to']}")
    show_lines(found["changes"] or ["no differences"])
