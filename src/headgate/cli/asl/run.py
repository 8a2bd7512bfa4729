"""`headgate asl run`: runs a state machine and prints its progress and output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.api_client import Api, CaFile, KeyFile, Server, api_of, at, read_json
from headgate.cli.asl.files import FileOrName, Variables, is_file, machine_name, read_valid, read_variables
from headgate.cli.asl.follow import (
    FollowedExecution,
    LocalExecution,
    RemoteExecution,
    follow,
)
from headgate.cli.options import Input, Resources, TestCase
from headgate.cli.session import SERVER_VARIABLE, Config, Home, Json, echo_json, session_of
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.clock import Clock
    from headgate.settings import Settings


def run(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    machine: FileOrName,
    input: Input = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:APP", help="Run in this process, with the activities of this app.")
    ] = None,
    var: Variables = None,
    resources: Resources = None,
    test_case: TestCase = "",
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Execution name; an existing execution is followed instead of started."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it on the server and print its id.")] = False,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Run a state machine, print each state as it is entered, exited or fails, and print the output as JSON.

    A file runs in this process on the store of the home; with --server it is stored under the name of the file and
    runs on the server. A name selects a machine of the server, or with --app one of the home. Ctrl-C stops the
    execution. The exit code is 1 if it does not succeed, and 130 if it was stopped by Ctrl-C.
    """
    session = session_of(context)
    request = _RunRequest(machine, _json(input), read_variables(var), name, test_case)
    is_remote = bool(server or session.environ.get(SERVER_VARIABLE)) or not (is_file(machine) or app)
    if is_remote and app:
        raise UserError("--app: not allowed with --server, which runs the server's own app")
    if is_remote and (resources or test_case):
        raise UserError("--resources, --test-case: not allowed with a server, which has a resource map of its own")
    if test_case and not is_file(machine):
        raise UserError("--test-case: needs a FILE; the answers of a test case are for the machine of its name")
    if detach and not is_remote:
        raise UserError("--detach: needs a server; select one with --server")
    if is_remote:
        api = api_of(context, server, home, config, api_key_file, ca)
        raise typer.Exit(_run_on_server(api, request, detach=detach, as_json=as_json))
    settings = session.settings(config, home=home, **{"tasks.resources": resources})
    raise typer.Exit(_run_locally(settings, app, request, session.environ, as_json=as_json))


class _RunRequest:
    """Machine to run and its input."""

    def __init__(
        self,
        machine: str,
        input: Any,  # noqa: ANN401 - JSON
        variables: dict[str, str],
        name: str | None,
        test_case: str = "",
    ) -> None:
        self.machine = machine
        self.input = input
        self.variables = variables
        self.name = name
        self.test_case = test_case


def _run_locally(
    settings: Settings, app: str | None, request: _RunRequest, environ: Mapping[str, str], *, as_json: bool
) -> int:
    import msgspec

    from headgate.bootstrap.store import connect, load_app
    from headgate.clock import SystemClock
    from headgate.durable.sdk.app import App
    from headgate.telemetry import configure_logs

    clock = SystemClock()
    # Progress lines are the main output, so only warnings are logged.
    configure_logs(style=settings.log.format, level="warning")
    definition = read_valid(request.machine, request.variables)[1] if is_file(request.machine) else None
    with connect(load_app(app) if app else App("headgate"), settings=settings, environ=environ) as service:
        executions = service.asl.executions
        if definition is None:
            execution_id, created = executions.start(request.machine, request.input, name=request.name)
        else:
            text = msgspec.json.encode(definition).decode()
            execution_id, created = executions.start_definition(
                machine_name(request.machine), text, request.input, name=request.name, test_case=request.test_case
            )
        execution = LocalExecution(service, execution_id, clock)
        return _follow_to_end(execution, clock, created=created, as_json=as_json)


def _run_on_server(api: Api, request: _RunRequest, *, detach: bool, as_json: bool) -> int:
    from headgate.clock import SystemClock

    machine, version = request.machine, None
    if is_file(machine):
        text, _ = read_valid(machine, request.variables)
        machine = machine_name(machine)
        definition = {"definition": text, "variables": request.variables}
        version = api.request("PUT", at("machines", machine), body=definition)["version"]
    body = {"input": request.input, "name": request.name, "version": version}
    started = api.post(at("machines", machine, "executions"), body)
    if detach:
        echo_json(started) if as_json else typer.echo(started["id"])
        return ExitCode.OK
    clock = SystemClock()
    return _follow_to_end(
        RemoteExecution(api, started["id"], clock), clock, created=started["created"], as_json=as_json
    )


def _follow_to_end(execution: FollowedExecution, clock: Clock, *, created: bool, as_json: bool) -> int:
    """Follow an execution, print its outcome and return the exit code."""
    from headgate.serve.rest.asl.events import error_text

    if not as_json:
        typer.echo(execution.id if created else f"{execution.id} already exists", err=True)
    was_interrupted = follow(execution, clock, quiet=as_json)
    found = execution.describe()
    if as_json:
        echo_json(found)
    elif found["status"] == "SUCCEEDED":
        echo_json(found.get("output"))
    if found["status"] == "SUCCEEDED":
        return ExitCode.OK
    reason = error_text(found.get("error", ""), found.get("cause", ""))
    typer.echo(f"error: execution {execution.id} ended {found['status']}: {reason}".rstrip(": "), err=True)
    return ExitCode.INTERRUPTED if was_interrupted else ExitCode.FAILED


def _json(input: str | None) -> Any:  # noqa: ANN401 - JSON
    import msgspec

    decoded = read_json(input, "--input")
    return {} if decoded is None else msgspec.json.decode(decoded)
