"""`headgate execution reset`, `retry` and `bulk`: repair one execution, or all that match a filter."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at, read_payload, read_tags
from headgate.cli.commands import OptionGroup
from headgate.cli.options import DryRun, Reason, SinceOption, Tags, UntilOption
from headgate.cli.session import Json, echo_json
from headgate.cli.times import past_time
from headgate.errors import InvalidPayloadError, UserError
from headgate.exit_codes import ExitCode

# Executions in one request: each is bounded in time, and an interrupted command loses little.
_BATCH = 100
_REFUSED_SHOWN = 20
_SAMPLE = 5

OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="Execution id; or give filters.")]
StatusOption = Annotated[
    str | None, typer.Option("--status", metavar="STATUS", help="Filter by status: RUNNING, STUCK, FAILED, …")
]
WorkflowOption = Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Filter by workflow.")]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TURN|ACTIVITY|STATE",
        help="Turn to compute again, activity to repeat (NAME, NAME#2), or state of a machine.",
    ),
]


class SignalChoice(StrEnum):
    """What happens to signals and updates after the point of a reset."""

    KEEP = "keep"
    DROP = "drop"


class BulkAction(StrEnum):
    """Action on all matching executions."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    SIGNAL = "signal"
    REDRIVE = "redrive"
    RETRY = "retry"
    RETRY_FROM_FAILURE = "retry-from-failure"
    RESET = "reset"


SignalsOption = Annotated[
    SignalChoice | None, typer.Option("--signals", help="Signals and updates after that point. [default: keep]")
]


@dataclass
class Filters(OptionGroup):
    """Which executions an action is for."""

    status: StatusOption = None
    workflow: WorkflowOption = None
    tag: Tags = None
    build: Annotated[
        str | None, typer.Option("--build", metavar="BUILD", help="Filter by the build that took the last turn.")
    ] = None
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Filter by text in the error, in any case.")
    ] = None
    since: SinceOption = None
    until: UntilOption = None
    ended_since: Annotated[str | None, typer.Option("--ended-since", metavar="TIME", help="Ended at or after.")] = None
    ended_until: Annotated[str | None, typer.Option("--ended-until", metavar="TIME", help="Ended before.")] = None
    dry_run: DryRun = False
    request_id: Annotated[
        str | None,
        typer.Option("--request-id", metavar="ID", help="Continue an interrupted command: none is done twice."),
    ] = None

    def where(self) -> dict[str, Any]:
        """Return the filters as the API takes them."""
        found = {
            "status": read_status(self.status),
            "workflow": self.workflow,
            "tag": read_tags(self.tag),
            "build": self.build,
            "error": self.error,
            "started_since": past_time(self.since, "--since"),
            "started_until": past_time(self.until, "--until"),
            "ended_since": past_time(self.ended_since, "--ended-since"),
            "ended_until": past_time(self.ended_until, "--ended-until"),
        }
        return {name: each for name, each in found.items() if each}


def read_status(name: str | None) -> str | None:
    """Return a status by its name in any case. Raises `InvalidPayloadError` for an unknown one."""
    from headgate.durable.model.history import Status

    if name is None:
        return None
    if name.upper() not in Status.__members__:
        raise InvalidPayloadError(f"--status {name!r}: unknown; use {', '.join(Status)}")
    return Status[name.upper()].value


def reset(
    api: Api,
    filters: Filters,
    to: To,
    id: OptionalId = None,
    signals: SignalsOption = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Reset an execution, or all that match, to a turn, an activity or a state, with the history so far.

    The execution keeps its id. The turn is computed again with today's code; completed activities that earlier turns
    had started are not repeated. An execution of a state machine begins again with a state that it has entered, with
    the input of that entry.
    """
    body = {"to": int(to) if to.isdigit() else to, "signals": signals, "reason": reason}
    if id is None:
        _bulk(api, BulkAction.RESET, filters, body, as_json=as_json)
        return
    _refuse_filters(id, filters)
    _show_reset(api.post(at("executions", id, "reset"), body), as_json=as_json)


def retry(
    api: Api,
    filters: Filters,
    id: OptionalId = None,
    from_failure: Annotated[
        bool, typer.Option("--from-failure", help="Continue where it failed; completed activities are not repeated.")
    ] = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Run a closed execution, or all that match, again: from the start with the same input, or from the failure."""
    if id is None:
        action = BulkAction.RETRY_FROM_FAILURE if from_failure else BulkAction.RETRY
        _bulk(api, action, filters, {"reason": reason}, as_json=as_json)
        return
    _refuse_filters(id, filters)
    if from_failure:
        _show_reset(api.post(at("executions", id, "retry-from-failure"), {"reason": reason}), as_json=as_json)
        return
    answer = api.post(at("executions", id, "retry"), {"reason": reason})
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{id}: restarted")


def bulk(
    api: Api,
    filters: Filters,
    action: Annotated[BulkAction, typer.Argument(help="What to do with each match.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="TURN|ACTIVITY", help="With reset: turn or activity.")
    ] = None,
    signals: SignalsOption = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="With signal: its name.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="With signal: JSON, @file, or -.")
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Apply an action to all matching executions. At least one filter is required.

    The exit code is 1 if some were refused; they are listed on standard error.
    """
    point = int(to) if to is not None and to.isdigit() else to
    body = {"to": point, "signals": signals, "name": name, "payload": read_payload(payload, "--payload")}
    _bulk(api, action, filters, {**body, "reason": reason}, as_json=as_json)


def _refuse_filters(id: str, filters: Filters) -> None:
    if filters.where() or filters.dry_run or filters.request_id is not None:
        raise UserError(
            f"execution {id}: filters, --dry-run and --request-id are for many executions; leave out the id or them"
        )


def _show_reset(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(answer)
    else:
        done = "continues" if answer["created"] else "was reset before and continues"
        typer.echo(f"{answer['id']}: {done} with turn {answer['to']}, as run {answer['run']}")


def _bulk(api: Api, action: BulkAction, filters: Filters, options: dict[str, Any], *, as_json: bool) -> None:
    where = filters.where()
    if not where:
        raise UserError(
            f"{action.value}: give an execution id or a filter: --status, --workflow, --tag, --build, --error, "
            "--since, --until, --ended-since, --ended-until"
        )
    request_id = filters.request_id or f"bulk-{secrets.token_hex(8)}"
    body = {"action": action.value, "where": where, "dry_run": filters.dry_run, "request_id": request_id, **options}
    total: dict[str, Any] = {
        "action": action.value,
        "dry_run": filters.dry_run,
        "request_id": request_id,
        "matched": 0,
        "done": 0,
        "refused": [],
        "sample": [],
    }
    for page in _pages(api, body, total):
        total["matched"] += page["matched"]
        total["done"] += page["done"]
        total["refused"] += page["refused"]
        total["sample"] = (total["sample"] + page.get("sample", []))[:_SAMPLE]
        if page["cursor"] is not None:
            typer.echo(f"{action.value}: {total['done']} of {total['matched']} so far", err=True)
    if as_json:
        echo_json(total)
    elif filters.dry_run:
        typer.echo(f"{total['matched']} match")
        for each in total["sample"]:
            typer.echo(f"  {each['id']}  {each['workflow']}  {each['status']}  {each.get('error', '')}".rstrip())
    else:
        typer.echo(f"{action.value}: {total['done']} of {total['matched']}")
    if total["refused"]:
        _show_refused(total["refused"])
        raise typer.Exit(ExitCode.FAILED)


def _show_refused(refused: list[dict[str, Any]]) -> None:
    for each in refused[:_REFUSED_SHOWN]:
        typer.echo(f"refused: {each['id']}: {each['detail']} ({each['code']})", err=True)
    if len(refused) > _REFUSED_SHOWN:
        typer.echo(f"refused: {len(refused) - _REFUSED_SHOWN} more; --json lists them all", err=True)


def _pages(api: Api, body: dict[str, Any], total: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor = None
    try:
        while True:
            page = api.post("/executions/bulk", {**body, "limit": _BATCH, "cursor": cursor})
            yield page
            cursor = page["cursor"]
            if cursor is None:
                return
    except BaseException as exc:
        # A refused request has changed nothing, and the same one is refused again.
        if not body["dry_run"] and not (isinstance(exc, UserError) and cursor is None):
            typer.echo(
                f"stopped after {total['done']}; the same command with --request-id {body['request_id']} continues",
                err=True,
            )
        raise
