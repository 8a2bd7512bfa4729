"""`headgate asl test`: runs one state of a state machine once, and prints its output and next state."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import read_json
from headgate.cli.asl.files import File, Variables, machine_name, read_valid, read_variables
from headgate.cli.options import Input, Resources, TestCase
from headgate.cli.output import compact, show_facts
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import UserError
from headgate.exit_codes import ExitCode


def run_state(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    file: File,
    state: Annotated[str, typer.Option("--state", metavar="NAME", help="State to run, at any depth.")],
    input: Input = None,
    variables: Annotated[
        str | None, typer.Option("--variables", metavar="JSON", help="Variables that earlier states assigned.")
    ] = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:APP", help="App whose activities the state may call.")
    ] = None,
    var: Variables = None,
    resources: Resources = None,
    test_case: TestCase = "",
    inspect: Annotated[
        bool, typer.Option("--inspect", help="Print the data after each field of the state as well.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run one state once, and print its output and the next state, or its error.

    As TestState of Step Functions: what the state calls is really called, nothing is retried, and a Wait does not wait.
    The status is SUCCEEDED, RETRIABLE if a Retry matches the error, CAUGHT_ERROR if a Catch does, or FAILED. The exit
    code is 1 unless the state succeeds or its error is caught.
    """
    import msgspec

    from headgate.bootstrap.store import connect, load_app
    from headgate.durable.sdk.app import App
    from headgate.telemetry import configure_logs

    session = session_of(context)
    settings = session.settings(config, home=home, **{"tasks.resources": resources})
    configure_logs(style=settings.log.format, level="warning")
    _, definition = read_valid(file, read_variables(var))
    assigned = _document(variables, "--variables")
    if not isinstance(assigned, dict):
        raise UserError("--variables: write an object of values by name")
    loaded = App("headgate") if app is None else load_app(app)
    with connect(loaded, settings=settings, environ=session.environ, work=False) as service:
        result = service.asl.test_state(
            machine_name(file),
            msgspec.json.encode(definition).decode(),
            state,
            _document(input, "--input"),
            variables=assigned,
            test_case=test_case,
        )
    found: dict[str, Any] = msgspec.to_builtins(result)
    inspected = found.pop("inspectionData", {}) if not inspect else found.get("inspectionData", {})
    if as_json:
        echo_json(found)
    else:
        found.pop("inspectionData", None)
        show_facts(_shown(found | (inspected if inspect else {})))
    if result.status not in ("SUCCEEDED", "CAUGHT_ERROR"):
        raise typer.Exit(ExitCode.FAILED)


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    texts = ("status", "nextState", "error", "cause")
    return {name: value if name in texts else compact(value) for name, value in facts.items()}


def _document(text: str | None, option: str) -> Any:  # noqa: ANN401 - JSON
    import msgspec

    decoded = read_json(text, option)
    return {} if decoded is None else msgspec.json.decode(decoded)
