"""`headgate fanout doctor` and `drain`: diagnoses fan-outs and their SQS queue, and drains its dead-letter queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, CaFile, KeyFile, Server, api_of, at
from headgate.cli.fanout.views import start_remedy
from headgate.cli.output import counted
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import duration_text
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.settings import Settings


_STUCK_MAX: Final = 1000
Faults = list[dict[str, str]]


def doctor(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Fan-out ids. [default: all unfinished ones]")
    ] = None,
    queue_url: Annotated[str | None, typer.Option(metavar="URL", help="Also check this SQS queue.")] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment name that resource names contain, such as prod.")
    ] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Diagnose fan-outs. The exit code is 5 if one stalled, 1 for other faults."""
    api = api_of(context, server, home, config, api_key_file, ca)
    run_ids = ids or [each["run_id"] for each in _open(api)]
    found = {run_id: _faults(api, run_id) for run_id in run_ids}
    if queue_url is not None:
        if environment is None:
            raise UserError("--queue-url: --environment is required")
        settings = session_of(context).settings(config, home=home)
        found[queue_url] = _queue_faults(settings, queue_url, environment)
    if as_json:
        echo_json(found)
    else:
        _show(found)
    checks = {fault["check"] for faults in found.values() for fault in faults}
    if checks:
        raise typer.Exit(ExitCode.STALLED if "stall" in checks else ExitCode.FAILED)


def _show(found: dict[str, Faults]) -> None:
    if not found:
        typer.echo("no unfinished fan-outs; give the ids of finished ones to check them")
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
        # Finished fan-outs come last.
        if cursor is None or any(each["is_finished"] for each in page["fanouts"]):
            return found


def _faults(api: Api, run_id: str) -> Faults:
    """Return the faults of a fan-out. A pause is not a fault."""
    found = api.get(at("fanouts", run_id))
    faults: Faults = []
    if found["stall"] is not None:
        stall = found["stall"]
        faults.append(_fault("stall", f"no progress for {duration_text(stall['silent_seconds'])}: {stall['reason']}"))
    if found["split_error"] and not found["is_finished"]:
        faults.append(_fault("split", f"stopped: {found['split_error']}; submit it again with the same id"))
    faults += [_fault("handler", note) for note in found["notes"] if note.startswith("this server cannot run it")]
    faults += _stuck(api, found)
    compared = api.post(at("fanouts", run_id, "reconcile"))
    remedy = f"repair with 'headgate fanout reconcile {run_id} --repair'"
    faults += [_fault("counts", f"{each['said']}; {remedy}") for each in compared["findings"]]
    failed = found["chunks"]["failed"]
    if failed:
        fact = f"{counted(failed, 'chunk')} failed; see 'headgate fanout errors {run_id}'"
        faults.append(_fault("failures", fact))
    return faults


def _stuck(api: Api, found: dict[str, Any]) -> Faults:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in api.get(at("fanouts", found["run_id"], "stuck"), limit=_STUCK_MAX)["stuck"]:
        kinds.setdefault(each["kind"], []).append(each)
    # Chunks with a pending retry are not stuck.
    kinds.pop("RETRY_PENDING", None)
    faults = []
    for kind, chunks in kinds.items():
        fact = f"{len(chunks)} chunks are {kind}, such as {chunks[0]['chunk_id']}: {chunks[0]['reason']}"
        if kind == "NEVER_STARTED":
            fact += f"; {start_remedy(found)}"
        faults.append(_fault("stuck", fact))
    return faults


def _fault(check: str, fact: str) -> dict[str, str]:
    return {"check": check, "said": fact}


def _queue_faults(settings: Settings, queue_url: str, environment: str) -> Faults:
    from headgate.bootstrap.store import examine_queue
    from headgate.clock import SystemClock

    findings = examine_queue(settings, SystemClock(), queue_url=queue_url, environment=environment)
    return [_fault(each.check, str(each)) for each in findings]


def drain(
    context: typer.Context,
    queue_url: Annotated[str, typer.Argument(metavar="URL", help="URL of the dead-letter queue.")],
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 10_000,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Record the messages of an SQS dead-letter queue with their chunks, and delete them from the queue.

    Messages of running or unknown chunks stay in the queue; the exit code is then 1.
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
        typer.echo(f"{found.recorded} messages recorded, {len(found.left)} left")
        for message_id, why in found.left.items():
            typer.echo(f"  {message_id}: {why}")
    if found.left:
        raise typer.Exit(ExitCode.FAILED)
