"""`headgate check`: lists, shows, runs, tries and back-tests the checks of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, CaFile, KeyFile, Server, api_of, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import Reason, Urn
from headgate.cli.output import compact, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import ago
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.settings import Settings

app = command_group("List and run checks, which Headgate makes on datasets itself.")

Name = Annotated[str, typer.Argument(metavar="CHECK", help="Id of a check of the dataset.")]
_COLUMNS: Final = ("STATE", "CHECK", "KIND", "DATASET", "LAST RUN", "NEXT RUN", "REASON")
_FLAGGED_MAX: Final = 50


@server_command(app, "ls")
def ls(
    api: Api,
    urn: Annotated[str | None, typer.Argument(metavar="[URN]", help="Only checks of this dataset.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="OK, WARNING, CRITICAL or UNKNOWN.")
    ] = None,
) -> Answer:
    """List the checks of the server's project with their last results."""
    wanted = None if state is None else state.upper()
    found = api.get(at("checks"), **({} if wanted is None else {"state": wanted}))["checks"]
    if urn is not None:
        found = [each for each in api.get(at("datasets", urn, "checks"))["checks"] if wanted in (None, each["state"])]
    yield found
    rows = [
        (
            each["state"] or "-",
            each["id"],
            each["kind"],
            each["dataset_urn"],
            ago(each["at"]),
            each["next_at"] or ("after runs" if each["after_runs"] else "-"),
            each["reason"] or "it has not run yet",
        )
        for each in found
    ]
    show_table(_COLUMNS, rows, nothing="no checks; define some in the folder 'checks' beside the pipelines", key=1)


@server_command(app, "show")
def show(api: Api, urn: Urn, name: Name) -> Answer:
    """Show a check: its definition, its last result and its history."""
    found = api.get(at("datasets", urn, "checks", name))
    yield found
    when = [
        *([f"every {found['every_seconds']:g} s"] if found["every_seconds"] else []),
        *(["after runs"] if found["after_runs"] else []),
    ]
    typer.echo(
        f"check {found['id']} of {found['dataset_urn']}: {found['kind']}, {' and '.join(when)}, from {found['source']}"
    )
    if found["description"]:
        typer.echo(found["description"])
    typer.echo(f"feeds {found['signal_type']}; a failure is {found['severity']}")
    typer.echo(f"definition: {compact(found['definition'][found['kind']])}")
    typer.echo(f"last: {found['state'] or '-'} {found['at'] or ''}: {found['reason'] or 'it has not run yet'}")
    rows = [(each["at"], each["state"], each.get("message", "")) for each in found["history"]]
    show_table(("AT (UTC)", "STATE", "REASON"), rows, nothing="no results yet")


@server_command(app, "run")
def run(api: Api, urn: Urn, name: Name, reason: Reason = "") -> Answer:
    """Run a check now. The server runs it within a second or two and stores the result."""
    found = api.post(at("datasets", urn, "checks", name, "run"), {"reason": reason})
    yield found
    typer.echo(f"{found['id']} of {found['dataset_urn']} is due; see 'headgate check show {urn} {name}'")


@app.command("try")
def try_check(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="FILE|URN", help="Check file, or dataset of the server's project.")],
    check_id: Annotated[
        str | None, typer.Argument(metavar="[CHECK]", help="Id of one check. [default: all of a file]")
    ] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Run checks once against their real source and store nothing. Exit code 0: OK, 1: failed, 75: UNKNOWN.

    The checks of a file run here, with the settings of this folder and without a server; those of a dataset run on the
    server. Expected bands need stored history, so a file's volume check is judged by its limits only.
    """
    is_file = name.endswith((".yaml", ".yml", ".json")) or Path(name).is_file()
    if is_file:
        session = session_of(context)
        results = _run_here(session.settings(config, home=home), session.environ, Path(name), check_id)
    elif check_id is None:
        raise UserError(f"{name}: name the check as well; 'headgate check ls {name}' lists them")
    else:
        api = api_of(context, server, home, config, api_key_file, ca)
        results = [api.post(at("datasets", name, "checks", check_id, "try"))]
    if as_json:
        echo_json(results)
    else:
        rows = [(each["state"], each["id"], f"{each['duration_ms']} ms", each["reason"]) for each in results]
        show_table(("STATE", "CHECK", "TOOK", "REASON"), rows, nothing="no checks")
    states = {each["state"] for each in results}
    if states & {"CRITICAL", "WARNING"}:
        raise typer.Exit(ExitCode.FAILED)
    if "UNKNOWN" in states:
        raise typer.Exit(ExitCode.TRY_AGAIN)


@server_command(app, "backtest")
def backtest(
    api: Api,
    urn: Urn,
    name: Name,
    days: Annotated[int, typer.Option("--days", min=1, max=56, metavar="N", help="Stored days to judge.")] = 28,
) -> Answer:
    """Judge the stored hours of a dataset by the expected bands of a check, and list those that it would flag."""
    found = api.post(at("datasets", urn, "checks", name, "backtest"), {"days": days})
    yield found
    typer.echo(
        f"{found['days']} days: {found['judged']} hours judged, {found['flagged']} flagged, "
        f"{found['warm_up']} in the warm-up without a band"
    )
    flagged = [each for each in found["hours"] if each["is_flagged"]]
    rows = [(each["hour"], each["reason"]) for each in flagged[-_FLAGGED_MAX:]]
    show_table(("HOUR (UTC)", "REASON"), rows, nothing="no hour is outside of its expected band")


def _run_here(settings: Settings, environ: Mapping[str, str], path: Path, check_id: str | None) -> list[dict[str, Any]]:
    import msgspec

    from headgate.bootstrap.checks import offline_runner
    from headgate.bootstrap.pipelines import probe_runner
    from headgate.checks.catalog import CheckCatalog
    from headgate.checks.definitions import load_check_file
    from headgate.clock import SystemClock
    from headgate.pipelines.definition.problems import InvalidPipelineError
    from headgate.serve.rest.health.checks import outcome_view

    loaded = load_check_file(path, str(path))
    if loaded.problems:
        raise InvalidPipelineError(loaded.problems)
    catalog = CheckCatalog()
    catalog.replace(loaded.files)
    known = [each for each in catalog.all() if check_id in (None, each.check.id)]
    if not known:
        names = ", ".join(each.check.id for each in catalog.all()) or "none"
        raise UserError(f"{path}: it has no check {check_id!r}, but {names}")
    clock = SystemClock()
    runner = offline_runner(clock, probe_runner(settings, clock, environ))
    outcomes = [(each, runner.run(each, each.file.dataset)) for each in known]
    return [msgspec.to_builtins(outcome_view(each.file.dataset, each.check.id, outcome)) for each, outcome in outcomes]
