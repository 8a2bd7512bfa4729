"""`headgate asl run`: a machine from its start to its end, before one's eyes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.api_client import Api, CaFile, Input, KeyFile, Server, api_of, at, read_json
from headgate.cli.asl.files import FileOrName, Variables, is_file, machine_name, read_checked, read_variables
from headgate.cli.asl.follow import (
    FAILED_EXIT_CODE,
    INTERRUPTED_EXIT_CODE,
    Followed,
    LocalExecution,
    RemoteExecution,
    follow,
)
from headgate.cli.session import SERVER_VARIABLE, Config, Home, Json, echo_json, session_of
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.clock import Clock
    from headgate.settings import Settings


def run(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    machine: FileOrName,
    input: Input = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:APP", help="Run it here, with the functions of this app.")
    ] = None,
    var: Variables = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name. The same again goes on, or shows how it ended.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Only start it on the server, and print its id.")] = False,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Run a machine, show each state as it is entered, left or fails, and print its output as JSON.

    A file runs in this process, on the store in the home; with --server it is kept there under the name of the file,
    and runs there. A name is one of a machine on the server, or with --app one in the home. Ctrl-C stops the
    execution. The exit code is 1 if it ends otherwise than well, and 130 if it was stopped by Ctrl-C.
    """
    session = session_of(context)
    given = _Given(machine, _json(input), read_variables(var), name)
    is_remote = bool(server or session.environ.get(SERVER_VARIABLE)) or not (is_file(machine) or app)
    if is_remote and app:
        raise UserError("--app: the server has an app of its own; give --app to run here, or --server to run there")
    if detach and not is_remote:
        raise UserError("--detach: nobody would run it once this process has ended; name a server with --server")
    if is_remote:
        api = api_of(context, server, home, config, api_key_file, ca)
        raise typer.Exit(_run_there(api, given, detach=detach, as_json=as_json))
    raise typer.Exit(_run_here(session.settings(config, home=home), app, given, as_json=as_json))


class _Given:
    """What is to be run."""

    def __init__(self, machine: str, input: Any, variables: dict[str, str], name: str | None) -> None:  # noqa: ANN401
        self.machine = machine
        self.input = input
        self.variables = variables
        self.name = name


def _run_here(settings: Settings, app: str | None, given: _Given, *, as_json: bool) -> int:
    import msgspec

    from headgate.bootstrap.store import connect, load_app
    from headgate.clock import SystemClock
    from headgate.durable.sdk.app import App
    from headgate.telemetry import configure_logs

    clock = SystemClock()
    # The lines of the execution are what one looks at; of the rest only what is amiss.
    configure_logs(style=settings.log.format, level="warning")
    definition = read_checked(given.machine, given.variables)[1] if is_file(given.machine) else None
    with connect(load_app(app) if app else App("headgate"), home=Path(settings.home)) as service:
        executions = service.asl.executions
        if definition is None:
            execution_id, created = executions.start(given.machine, given.input, name=given.name)
        else:
            text = msgspec.json.encode(definition).decode()
            execution_id, created = executions.start_definition(
                machine_name(given.machine), text, given.input, name=given.name
            )
        execution = LocalExecution(service, execution_id, clock)
        return _shown(execution, clock, created=created, as_json=as_json)


def _run_there(api: Api, given: _Given, *, detach: bool, as_json: bool) -> int:
    from headgate.clock import SystemClock

    machine, version = given.machine, None
    if is_file(machine):
        text, _ = read_checked(machine, given.variables)
        machine = machine_name(machine)
        body = {"definition": text, "variables": given.variables}
        version = api.request("PUT", at("machines", machine), body=body)["version"]
    order = {"input": given.input, "name": given.name, "version": version}
    started = api.post(at("machines", machine, "executions"), order)
    if detach:
        echo_json(started) if as_json else typer.echo(started["id"])
        return 0
    clock = SystemClock()
    return _shown(RemoteExecution(api, started["id"], clock), clock, created=started["created"], as_json=as_json)


def _shown(execution: Followed, clock: Clock, *, created: bool, as_json: bool) -> int:
    """Follow an execution, print what it ends with, and return the exit code."""
    from headgate.serve.rest.asl.events import error_text

    if not as_json:
        typer.echo(execution.id if created else f"{execution.id} is there already", err=True)
    was_interrupted = follow(execution, clock, quiet=as_json)
    found = execution.describe()
    if as_json:
        echo_json(found)
    elif found["status"] == "SUCCEEDED":
        echo_json(found.get("output"))
    if found["status"] == "SUCCEEDED":
        return 0
    told = error_text(found.get("error", ""), found.get("cause", ""))
    typer.echo(f"error: execution {execution.id} ended {found['status']}: {told}".rstrip(": "), err=True)
    return INTERRUPTED_EXIT_CODE if was_interrupted else FAILED_EXIT_CODE


def _json(input: str | None) -> Any:  # noqa: ANN401 - JSON
    import msgspec

    given = read_json(input, "--input")
    return {} if given is None else msgspec.json.decode(given)
