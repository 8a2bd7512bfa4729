"""`headgate execution result`, `watch` and `replay`: what takes as long as it takes, or runs code here."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, Server, api_of, asks, at
from headgate.cli.output import compact, short
from headgate.cli.session import Config, Home, Json, echo_json
from headgate.errors import ConflictError, InvalidPayloadError, TransientError, UnknownWorkflowError, UserError

if TYPE_CHECKING:
    from headgate.clock import Clock

Id = Annotated[str, typer.Argument(metavar="ID", help="The execution.")]
FAILED_EXIT_CODE: Final = 1
_ASK_SECONDS: Final = 30.0
_COME_BACK_SECONDS: Final = 1.0
_LINES_MAX: Final = 1_000
_RUNNING: Final = "RUNNING"
_STUCK: Final = "STUCK"


@asks
def result(
    api: Api,
    id: Id,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the end.")] = "0s",
    as_json: Json = False,
) -> None:
    """Print the result as JSON.

    The exit code is 1 if it ended otherwise than well, 3 if it is stuck, and 75 if it has not ended.
    """
    from headgate.clock import SystemClock
    from headgate.durable.model import duration

    found = _ended(api, id, duration.seconds(wait, name="--wait"), SystemClock())
    if as_json:
        echo_json(found)
    elif found["status"] == "SUCCEEDED":
        echo_json(found.get("result"))
    if found["status"] != "SUCCEEDED":
        error = found.get("error") or {"type": found["status"], "message": ""}
        typer.echo(f"error: execution {id} ended {found['status']}: {error['type']}: {error['message']}", err=True)
        raise typer.Exit(FAILED_EXIT_CODE)


def _ended(api: Api, execution_id: str, wait_seconds: float, clock: Clock) -> dict[str, Any]:
    give_up_at = clock.monotonic() + wait_seconds
    while True:
        left = max(0.0, min(_ASK_SECONDS, give_up_at - clock.monotonic()))
        found: dict[str, Any] = api.get(at("executions", execution_id, "result"), wait=f"{left:.3f}s")
        if found["status"] == _STUCK:
            raise ConflictError(_stuck(execution_id, _told(found.get("failure"))))
        if found["status"] != _RUNNING:
            return found
        if clock.monotonic() >= give_up_at:
            raise TransientError(f"execution {execution_id}: it is {found['status']}; wait longer with --wait")


@asks
def watch(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Follow an execution until it ends. The exit code is 1 if it ends otherwise than well.

    One that is stuck is followed, too: it goes on after a redrive.
    """
    from headgate.clock import SystemClock

    seen = -1
    while True:
        for name, _, data in api.follow(at("executions", id, "watch")):
            if name == "end":
                if data["status"] != "SUCCEEDED":
                    raise typer.Exit(FAILED_EXIT_CODE)
                return
            # A stream that was begun again tells first what is known already.
            if data["version"] != seen:
                seen = data["version"]
                _show_state(data, as_json=as_json)
                if data["status"] == _STUCK:
                    typer.echo(_stuck(id, data.get("error", "")), err=True)
        SystemClock().sleep(_COME_BACK_SECONDS)


def _stuck(execution_id: str, error: str) -> str:
    """Return what there is to say of an execution that is stuck: the fact, the error and the remedy."""
    return (
        f"execution {execution_id}: it is stuck and does not go on by itself: {error}; mend its code, then run "
        f"'headgate execution redrive {execution_id}'"
    )


def _told(error: dict[str, Any] | None) -> str:
    return "" if error is None else f"{error['type']}: {error['message']}"


def _show_state(state: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(state)
        return
    moment = short(state.get("ended_at") or state["started_at"])
    typer.echo(f"{moment}  turn {state['turn']}  {state['status']}  {state.get('error', '')}".rstrip())


def replay(
    context: typer.Context,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The execution; not needed with --history.")] = None,
    app_reference: Annotated[
        str, typer.Option("--app", metavar="MODULE:APP", help="The app with today's code of the workflow.")
    ] = "",
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that 'execution history --json' wrote.")
    ] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run a recorded history against today's code, here, and change nothing.

    The exit code is 70 if the code does not do what the history says; the error names the first difference.
    """
    from headgate.bootstrap.store import load_app

    if not app_reference:
        raise UserError("replay: name the code with --app MODULE:APP")
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


def logged(api: Api, execution_id: str) -> list[dict[str, Any]]:
    """Return everything that an execution and its activities logged, in order of time."""
    lines: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = api.get(at("executions", execution_id, "logs"), limit=_LINES_MAX, cursor=cursor)
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


def _replay(loaded: Any, recorded: dict[str, Any]) -> int:  # noqa: ANN401 - an app, which is imported only here
    """Return how many turns were replayed, each run of the execution by itself. Raises `DeterminismError`."""
    import msgspec

    from headgate import testing, typed_decode
    from headgate.durable.model.history import TerminateRequested, Turn
    from headgate.durable.replay import sandbox as guard

    workflow = loaded.workflows.get(recorded["workflow"])
    if workflow is None:
        known = ", ".join(sorted(loaded.workflows)) or "none"
        raise UnknownWorkflowError(f"workflow {recorded['workflow']!r}: the app has {known}")
    try:
        turns = typed_decode.from_json(compact(recorded["turns"]), list[Turn])
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"history of {recorded['execution_id']}: {exc}") from exc
    guard.install()
    # What ended without being asked has nothing to say to it.
    asked = [turn for turn in turns if not any(isinstance(each, TerminateRequested) for each in turn.events)]
    for _, run in groupby(asked, key=lambda turn: turn.run):
        testing.replay(workflow, recorded["execution_id"], run)
    return len(asked)
