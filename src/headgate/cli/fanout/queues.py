"""`headgate fanout doctor`: whether fan-outs go on as they should, and whether their queue loses none.

`headgate fanout drain`: make dead chunks of what lies in a dead-letter queue, to be seen and redriven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, CaFile, KeyFile, Server, api_of, at
from headgate.cli.fanout.exit_codes import FAILED, STALLED
from headgate.cli.fanout.views import about, work_command
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.settings import Settings


_STUCK_MAX: Final = 1000
Faults = list[dict[str, str]]


def doctor(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="These fan-outs. [default: all that have not ended]")
    ] = None,
    queue_url: Annotated[str | None, typer.Option(metavar="URL", help="Look at this SQS queue, too.")] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="What names of this environment have in them, such as prod.")
    ] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with fan-outs, and what to do. The exit code is 3 if one has stalled, 2 for other faults."""
    api = api_of(context, server, home, config, api_key_file, ca)
    run_ids = ids or [each["run_id"] for each in _open(api)]
    found = {run_id: _faults(api, run_id) for run_id in run_ids}
    if queue_url is not None:
        if environment is None:
            raise UserError("--queue-url: name the environment it belongs to with --environment")
        settings = session_of(context).settings(config, home=home)
        found[queue_url] = _queue_faults(settings, queue_url, environment)
    if as_json:
        echo_json(found)
    else:
        _show(found)
    checks = {fault["check"] for faults in found.values() for fault in faults}
    if checks:
        raise typer.Exit(STALLED if "stall" in checks else FAILED)


def _show(found: dict[str, Faults]) -> None:
    if not found:
        typer.echo("no fan-out is open; name those that have ended to have them looked at")
    for name, faults in found.items():
        if not faults:
            typer.echo(f"OK     {name}")
        for fault in faults:
            typer.echo(f"FAULT  {name}: {fault['check']}: {fault['said']}")


def _open(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = api.get("/fanouts", limit=1000, cursor=cursor)
        found += [each for each in page["fanouts"] if not each["is_finished"]]
        cursor = page["cursor"]
        # Those that have ended come last.
        if cursor is None or any(each["is_finished"] for each in page["fanouts"]):
            return found


def _faults(api: Api, run_id: str) -> Faults:
    """Return what is wrong with a fan-out; one that is paused is as someone wants it."""
    found = api.get(at("fanouts", run_id))
    faults: Faults = []
    if found["stall"] is not None:
        stall = found["stall"]
        faults.append(_fault("stall", f"nothing has ended for {about(stall['silent_seconds'])}: {stall['reason']}"))
    if found["split_error"] and not found["is_finished"]:
        faults.append(_fault("split", f"it has stopped: {found['split_error']}; ask for it again under the same id"))
    faults += [_fault("handler", note) for note in found["notes"] if note.startswith("this server cannot run it")]
    faults += _stuck(api, found)
    counted = api.post(at("fanouts", run_id, "reconcile"))
    remedy = f"'headgate fanout reconcile {run_id} --repair' sets right what can be"
    faults += [_fault("counts", f"{each['said']}; {remedy}") for each in counted["findings"]]
    failed = found["chunks"]["failed"]
    if failed:
        said = f"{failed} chunks were given up; 'headgate fanout errors {run_id}' says why"
        faults.append(_fault("failures", said))
    return faults


def _stuck(api: Api, found: dict[str, Any]) -> Faults:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in api.get(at("fanouts", found["run_id"], "stuck"), limit=_STUCK_MAX)["stuck"]:
        kinds.setdefault(each["kind"], []).append(each)
    # What will be tried again by itself is no fault.
    kinds.pop("RETRY_PENDING", None)
    faults = []
    for kind, chunks in kinds.items():
        said = f"{len(chunks)} chunks are {kind}, such as {chunks[0]['chunk_id']}: {chunks[0]['reason']}"
        if kind == "NEVER_STARTED":
            said += f"; start a worker with {work_command(found)}"
        faults.append(_fault("stuck", said))
    return faults


def _fault(check: str, said: str) -> dict[str, str]:
    return {"check": check, "said": said}


def _queue_faults(settings: Settings, queue_url: str, environment: str) -> Faults:
    from headgate.bootstrap.store import examine_queue
    from headgate.clock import SystemClock

    findings = examine_queue(settings, SystemClock(), queue_url=queue_url, environment=environment)
    return [_fault(each.check, str(each)) for each in findings]


def drain(
    context: typer.Context,
    queue_url: Annotated[str, typer.Argument(metavar="URL", help="The dead-letter queue.")],
    limit: Annotated[int, typer.Option(min=1, help="At most so many letters.")] = 10_000,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Record the letters of an SQS dead-letter queue with their chunks, and delete them from the queue.

    A letter whose chunk runs, or that belongs to none, stays where it is; the exit code is then 2.
    """
    from headgate.bootstrap.store import drain_queue
    from headgate.clock import SystemClock
    from headgate.telemetry import configure_logs

    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    found = drain_queue(settings, SystemClock(), queue_url, letters_max=limit)
    if as_json:
        echo_json({"recorded": found.recorded, "left": found.left})
    else:
        typer.echo(f"{found.recorded} letters recorded, {len(found.left)} left")
        for message_id, why in found.left.items():
            typer.echo(f"  {message_id}: {why}")
    if found.left:
        raise typer.Exit(FAILED)
