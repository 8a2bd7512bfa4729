"""`headgate execution result`, `watch` and `replay`: commands that wait for an execution or run its code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, Server, api_of, at
from headgate.cli.commands import calls_server
from headgate.cli.output import compact, short
from headgate.cli.session import Config, Home, Json, echo_json
from headgate.errors import InvalidPayloadError, StuckExecutionError, TransientError, UnknownWorkflowError, UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.clock import Clock

Id = Annotated[str, typer.Argument(metavar="ID", help="Execution id.")]
_LONG_POLL_SECONDS: Final = 30.0
_RECONNECT_SECONDS: Final = 1.0
_LOG_PAGE: Final = 1_000
_RUNNING: Final = "RUNNING"
_STUCK: Final = "STUCK"


@calls_server
def result(
    api: Api,
    id: Id,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the execution to close.")] = "0s",
    app_reference: Annotated[
        str, typer.Option("--app", metavar="MODULE:APP", help="App whose keys decrypt an encrypted result.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Print the result of an execution as JSON.

    The server does not decrypt: an encrypted result needs --app with the keys here.

    The exit code is 1 if it did not succeed, 5 if it is stuck, 75 if it is still running.
    """
    from headgate.clock import SystemClock
    from headgate.durable.model import duration

    found = _wait_until_closed(api, id, duration.seconds(wait, name="--wait"), SystemClock())
    if app_reference:
        found = _decrypted(app_reference, id, found)
    if as_json:
        echo_json(found)
    elif found["status"] == "SUCCEEDED":
        echo_json(found.get("result"))
    if found["status"] != "SUCCEEDED":
        error = found.get("error") or {"type": found["status"], "message": ""}
        typer.echo(f"error: execution {id} ended {found['status']}: {error['type']}: {error['message']}", err=True)
        raise typer.Exit(ExitCode.FAILED)


def _decrypted(app_reference: str, execution_id: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the server with result and error as the workflow returned them."""
    import msgspec

    from headgate import typed_decode
    from headgate.bootstrap.store import load_app
    from headgate.durable.model.failures import ErrorInfo
    from headgate.durable.model.payload_codec import ERROR, RESULT, open_error, open_sealed

    codec = load_app(app_reference).codec
    if codec is None:
        raise UserError(f"--app {app_reference}: the app has no codec; leave --app out")
    if found.get("result") is not None:
        raw = msgspec.Raw(msgspec.json.encode(found["result"]))
        return {**found, "result": msgspec.json.decode(open_sealed(codec, raw, execution_id, RESULT))}
    if found.get("error") is not None:
        error = typed_decode.from_json(msgspec.json.encode(found["error"]), ErrorInfo)
        opened = msgspec.json.encode(open_error(codec, error, execution_id, ERROR))
        return {**found, "error": msgspec.json.decode(opened)}
    return found


def _wait_until_closed(api: Api, execution_id: str, wait_seconds: float, clock: Clock) -> dict[str, Any]:
    deadline = clock.monotonic() + wait_seconds
    while True:
        left = max(0.0, min(_LONG_POLL_SECONDS, deadline - clock.monotonic()))
        found: dict[str, Any] = api.get(at("executions", execution_id, "result"), wait=f"{left:.3f}s")
        if found["status"] == _STUCK:
            raise StuckExecutionError(_stuck_text(execution_id, _error_text(found.get("failure"))))
        if found["status"] != _RUNNING:
            return found
        if clock.monotonic() >= deadline:
            raise TransientError(f"execution {execution_id}: {found['status']}; wait longer with --wait")


@calls_server
def watch(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Follow an execution until it closes. The exit code is 1 if it does not succeed.

    A stuck execution is followed as well, because a redrive resumes it.
    """
    from headgate.clock import SystemClock

    last_version = -1
    while True:
        for name, _, data in api.follow(at("executions", id, "watch")):
            if name == "end":
                if data["status"] != "SUCCEEDED":
                    raise typer.Exit(ExitCode.FAILED)
                return
            # A reconnected stream starts with the last known state.
            if data["version"] != last_version:
                last_version = data["version"]
                _show_state(data, as_json=as_json)
                if data["status"] == _STUCK:
                    typer.echo(_stuck_text(id, data.get("error", "")), err=True)
        SystemClock().sleep(_RECONNECT_SECONDS)


def _stuck_text(execution_id: str, error: str) -> str:
    """Describe a stuck execution: the error and the remedy."""
    return (
        f"execution {execution_id}: stuck: {error}; fix its code, then run 'headgate execution redrive {execution_id}'"
    )


def _error_text(error: dict[str, Any] | None) -> str:
    return "" if error is None else f"{error['type']}: {error['message']}"


def _show_state(state: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(state)
        return
    moment = short(state.get("ended_at") or state["started_at"])
    typer.echo(f"{moment}  turn {state['turn']}  {state['status']}  {state.get('error', '')}".rstrip())


def replay(
    context: typer.Context,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Execution id; not needed with --history.")] = None,
    app_reference: Annotated[
        str, typer.Option("--app", metavar="MODULE:APP", help="App with the current code of the workflow.")
    ] = "",
    history: Annotated[Path | None, typer.Option(metavar="FILE", help="Output of 'execution history --json'.")] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Replay a recorded history against the current code, locally and without side effects.

    The exit code is 70 if the code deviates from the history; the error names the first difference.
    """
    from headgate.bootstrap.store import load_app

    if not app_reference:
        raise UserError("replay: --app MODULE:APP is required")
    if history is None and id is None:
        raise UserError("replay: give the ID of an execution, or --history FILE")
    loaded = load_app(app_reference)
    recorded = _read(history) if history is not None else download(api_of(context, server, home, config), str(id))
    turns = _replay(loaded, recorded)
    if as_json:
        echo_json({"execution_id": recorded["execution_id"], "workflow": recorded["workflow"], "turns": turns})
    else:
        typer.echo(f"OK: {recorded['execution_id']} ({recorded['workflow']}), {turns} turns")


def download(api: Api, execution_id: str) -> dict[str, Any]:
    """Return the whole history of an execution."""
    whole: dict[str, Any] = {}
    after: int | None = 0
    while after is not None:
        page = api.get(at("executions", execution_id, "history"), after=after)
        after = page.pop("next_after")
        turns = [*whole.get("turns", []), *page["turns"]]
        whole = {**page, "turns": turns}
    return whole


def read_logs(api: Api, execution_id: str) -> list[dict[str, Any]]:
    """Return the log lines of an execution and its activities in order of time."""
    lines: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = api.get(at("executions", execution_id, "logs"), limit=_LOG_PAGE, cursor=cursor)
        lines += page["lines"]
        cursor = page["cursor"]
        if cursor is None:
            return sorted(lines, key=lambda line: str(line["at"]))


def _read(path: Path) -> dict[str, Any]:
    import msgspec

    from headgate import typed_decode

    try:
        found = typed_decode.from_json(path.read_bytes(), dict[str, Any])
        _ = (found["execution_id"], found["workflow"], found["turns"])
    except OSError as exc:
        raise UserError(f"--history {path}: the file cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, KeyError) as exc:
        raise InvalidPayloadError(
            f"--history {path}: not a history; write it with 'headgate execution history ID --json'"
        ) from exc
    return found


def _replay(loaded: Any, recorded: dict[str, Any]) -> int:  # noqa: ANN401 - an App, whose module is not imported here
    """Replay each run of the execution and return the number of turns. Raises `DeterminismError`."""
    import msgspec

    from headgate import testing, typed_decode
    from headgate.durable.model.history import Reset, TerminateRequested, Turn
    from headgate.durable.replay import sandbox
    from headgate.durable.replay.fork_plan import live_turns

    workflow = loaded.workflows.get(recorded["workflow"])
    if workflow is None:
        known = ", ".join(sorted(loaded.workflows)) or "none"
        raise UnknownWorkflowError(f"workflow {recorded['workflow']!r}: the app has {known}")
    try:
        turns = typed_decode.from_json(compact(recorded["turns"]), list[Turn])
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"history of {recorded['execution_id']}: {exc}") from exc
    sandbox.install()
    testing.replay(workflow, recorded["execution_id"], turns)
    # Neither a termination nor a reset runs workflow code, and turns that a reset has dropped are not replayed.
    without_code = (TerminateRequested, Reset)
    return sum(not any(isinstance(each, without_code) for each in turn.events) for turn in live_turns(turns))
