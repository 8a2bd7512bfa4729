"""`headgate probe`: lists and shows probes, and runs one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.api_client import Api, CaFile, KeyFile, Server, api_of, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.output import compact, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import NotFoundError, UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.settings import Settings

app = command_group("List and run probes, which look at data for pipelines.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Id of a probe of the server's project.")]


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List the probes of the server's project with their last results."""
    found = api.get(at("probes"))["probes"]
    yield found
    rows = [
        (
            each["id"],
            each["kind"],
            f"{each['every_seconds']:g}s",
            last.get("verdict", "-"),
            last.get("period") or "",
            last.get("at", ""),
            last.get("reason", "it has not run yet"),
        )
        for each in found
        for last in [each["results"][0] if each["results"] else {}]
    ]
    nothing = "no probes; define one in the folder 'probes' beside the pipelines"
    show_table(("PROBE", "KIND", "EVERY", "VERDICT", "PERIOD", "AT (UTC)", "REASON"), rows, nothing=nothing)


@server_command(app, "show")
def show(api: Api, name: Name) -> Answer:
    """Show a probe: its definition, its last results, and the pipelines that read it."""
    found = api.get(at("probes", name))
    yield found
    typer.echo(f"probe {found['id']}: {found['kind']}, every {found['every_seconds']:g} s, from {found['source']}")
    if found["description"]:
        typer.echo(found["description"])
    typer.echo(f"definition: {compact(found['definition'][found['kind']])}")
    typer.echo(f"expects: {compact(found['expect'])}")
    typer.echo(f"read by: {', '.join(found['readers']) or 'no pipeline'}")
    typer.echo(f"looks: {compact(found['looks'])}; last seen at {found['last_seen_at'] or '-'}")
    rows = [
        (each["period"] or "", each["verdict"], each["at"], f"{each['duration_ms']} ms", each["reason"])
        for each in found["results"]
    ]
    show_table(("PERIOD", "VERDICT", "AT (UTC)", "TOOK", "REASON"), rows, nothing="it has not run yet")


@app.command("try")
def try_probe(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="File with one probe, or id of a probe of the server's project.")
    ],
    probe_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Which probe of a file that has several.")
    ] = None,
    period: Annotated[
        str | None, typer.Option("--period", metavar="DATE", help="Period to look at. [default: the current one]")
    ] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Run a probe once and show what it saw. The exit code is 0 for PASS, 1 for FAIL and 75 for UNKNOWN.

    The probe of a file runs here, with the settings of this folder and without a server; that of a name runs on the
    server. Nothing is stored.
    """
    is_file = name.endswith((".yaml", ".yml", ".json")) or Path(name).is_file()
    if is_file:
        session = session_of(context)
        result = _run_here(session.settings(config, home=home), session.environ, Path(name), probe_id, period)
    else:
        api = api_of(context, server, home, config, api_key_file, ca)
        result = api.post(at("probes", name, "try"), {"period": period})
    if as_json:
        echo_json(result)
    else:
        of = f" for {result['period']}" if result["period"] else ""
        typer.echo(f"{result['verdict']}{of} in {result['duration_ms']} ms: {result['reason']}")
        if result["seen"]:
            rows = [(field, compact(value)) for field, value in result["seen"].items()]
            show_table(("FIELD", "SEEN"), rows, nothing="nothing was seen")
    if result["verdict"] != "PASS":
        raise typer.Exit(ExitCode.FAILED if result["verdict"] == "FAIL" else ExitCode.TRY_AGAIN)


def _run_here(
    settings: Settings, environ: Mapping[str, str], path: Path, probe_id: str | None, period: str | None
) -> dict[str, Any]:
    import msgspec

    from headgate.bootstrap.pipelines import probe_runner
    from headgate.clock import SystemClock
    from headgate.pipelines.definition.problems import InvalidPipelineError
    from headgate.pipelines.probes.definitions import load_probe_file
    from headgate.serve.rest.pipelines.probes import result_view, tried_period

    loaded = load_probe_file(path, str(path))
    if loaded.problems:
        raise InvalidPipelineError(loaded.problems)
    found = [each.probe for each in loaded.probes if probe_id in (None, each.probe.id)]
    if len(found) != 1:
        names = ", ".join(each.probe.id for each in loaded.probes) or "none"
        if probe_id is None:
            raise UserError(f"{path}: it has {len(found)} probes ({names}); name one with --id")
        raise NotFoundError(f"{path}: it has no probe {probe_id!r}, but {names}")
    clock = SystemClock()
    runner = probe_runner(settings, clock, environ)
    result = result_view(runner.run(found[0], tried_period(found[0], period, clock)))
    view: dict[str, Any] = msgspec.to_builtins(result)
    return view
