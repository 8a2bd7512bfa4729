"""`headgate alert`: lists and acknowledges alerts, mutes them, and tests the channels that deliver them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_action, add_deletion, command_group, server_command
from headgate.cli.options import Limit, Reason, SinceOption
from headgate.cli.output import short, show_facts, show_table
from headgate.cli.pipelines.views import LocalTimes, Row
from headgate.cli.times import ago, future_time, past_time
from headgate.errors import HeadgateError
from headgate.exit_codes import ExitCode

app = command_group("Manage alerts, mutes and notification channels.")
AlertId = Annotated[str, typer.Argument(metavar="ALERT", help="Alert id, alert_…")]


class Status(StrEnum):
    """Status of an alert."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"
    MUTED = "MUTED"


class Severity(StrEnum):
    """Severity of an alert."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@server_command(app, "ls")
def ls(
    api: Api,
    pipeline: Annotated[str | None, typer.Option("--pipeline", metavar="ID", help="Filter by pipeline.")] = None,
    status: Annotated[Status | None, typer.Option("--status", case_sensitive=False, help="Filter by status.")] = None,
    since: SinceOption = None,
    limit: Limit = 50,
) -> Answer:
    """List alerts, newest first."""
    query = {"pipeline": pipeline, "status": status and status.value, "since": past_time(since, "--since")}
    alerts = list(api.entries("/alerts", "alerts", limit, **query))
    yield alerts
    rows = [
        (
            each["status"],
            each["severity"],
            each["alert_id"],
            ago(each["last_at"]),
            each["count"],
            each["text"],
            _remark(each),
        )
        for each in alerts
    ]
    columns = ("STATUS", "SEVERITY", "ALERT", "LAST", "COUNT", "TEXT", "")
    show_table(columns, rows, nothing="no alerts", key=2)


@server_command(app, "show")
def show(api: Api, alert: AlertId) -> Answer:
    """Show an alert and its deliveries."""
    found = api.get(at("alerts", alert))
    yield found
    times, pipeline = LocalTimes(api), found["pipeline_id"]
    typer.echo(_alert_text(found))
    show_facts(
        {
            "event": found["event"],
            "pipeline": pipeline,
            "period": " ".join(part for part in (found["date"], found["schedule_id"]) if part),
            "run": found["run_id"],
            "first": times.text(pipeline, found["at"]),
            "last": times.text(pipeline, found["last_at"]),
            "count": str(found["count"]),
            "owner": found["owner"],
            "message": found["message"],
            "note": found["note"],
            "hint": found["hint"],
            "detail": found["detail"],
        }
    )
    rows = [
        (
            each["channel"],
            each["action"],
            each["state"],
            each["attempts"],
            times.text(pipeline, each["at"]),
            each["error"] or each["reference"],
        )
        for each in found["deliveries"]
    ]
    show_table(("CHANNEL", "ACTION", "STATE", "ATTEMPTS", "AT", ""), rows, nothing="no deliveries")


def _alert_text(alert: Row) -> str:
    remark = _remark(alert)
    line = f"{alert['status']}  {alert['severity']}  {alert['alert_id']}  {alert['text']}"
    return f"{line} ({remark})" if remark else line


def _remark(alert: Row) -> str:
    if alert["resolved_by"]:
        return f"resolved by {alert['resolved_by']}"
    if alert["acknowledged_by"]:
        return f"acknowledged by {alert['acknowledged_by']}"
    if alert["muted_by"]:
        return f"muted by {alert['muted_by']}"
    failed = sorted({each["channel"] for each in alert["deliveries"] if each["state"] == "FAILED"})
    return f"delivery failed: {' '.join(failed)}" if failed else ""


add_action(
    app,
    "ack",
    "/alerts/{alert}/ack",
    "Acknowledge an alert and stop its escalation.",
    _alert_text,
    alert=AlertId,
    note=Option(Annotated[str, typer.Option("--note", metavar="TEXT", help="Note for other responders.")], ""),
)


@server_command(app, "mute")
def mute(
    api: Api,
    reason: Reason,
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="End of the mute: a time, or 2h from now.")],
    pipeline: Annotated[str, typer.Option("--pipeline", metavar="PATTERN", help="Such as 'silver-*'.")] = "*",
    event: Annotated[str, typer.Option("--event", metavar="PATTERN", help="Such as SLA_WARNING or 'SLA_*'.")] = "*",
    owner: Annotated[str, typer.Option("--owner", metavar="PATTERN", help="Owner of the pipeline.")] = "*",
    severity_max: Annotated[
        Severity, typer.Option("--severity-max", case_sensitive=False, help="Mute alerts up to this severity.")
    ] = Severity.CRITICAL,
) -> Answer:
    """Mute matching alerts until a time, and print the id of the mute. Muted alerts are still recorded."""
    body = {
        "reason": reason,
        "until": future_time(until, "--until"),
        "pipeline": pipeline,
        "event": event,
        "owner": owner,
        "severity_max": severity_max.value,
    }
    answer = api.post("/alert-mutes", body)
    yield answer
    typer.echo(f"{answer['mute_id']}: {_scope(answer)}, until {short(answer['until'])}")


add_deletion(
    app,
    "unmute",
    "/alert-mutes/{mute}",
    "End a mute before its time.",
    "ended",
    mute=Annotated[str, typer.Argument(metavar="MUTE", help="Mute id, mute_…")],
    reason=Option(Reason, ""),
)


@server_command(app, "mutes")
def mutes(api: Api) -> Answer:
    """List active mutes."""
    found = api.get("/alert-mutes")["mutes"]
    yield found
    rows = [(each["mute_id"], _scope(each), short(each["until"]), each["by"], each["reason"]) for each in found]
    show_table(("MUTE", "MATCHES", "UNTIL", "BY", "REASON"), rows, nothing="no active mutes")


@server_command(app, "channels")
def channels(api: Api) -> Answer:
    """List notification channels."""
    found = api.get("/alert-channels")["channels"]
    yield found
    rows = [(each["name"], "failing, suspended" if each["failing"] else "") for each in found]
    show_table(("CHANNEL", ""), rows, nothing="no channels")


@server_command(app, "test")
def send_test(
    api: Api,
    channel: Annotated[
        str | None, typer.Argument(metavar="[CHANNEL]", help="Name of the channel; without one, every channel.")
    ] = None,
) -> Answer:
    """Send a test message over a channel, or over each, and print the results. The exit code is 1 if one fails."""
    known = [each["name"] for each in api.get("/alert-channels")["channels"]] if channel is None else [channel]
    results = [_tested(api, name, is_alone=channel is not None) for name in known]
    yield results
    for each in results:
        reference = f", reference {each['reference']}" if each["reference"] else ""
        text = f"test message delivered{reference}" if each["delivered"] else f"FAILED: {each['error']}"
        typer.echo(f"{each['channel']}: {text}")
    if not all(each["delivered"] for each in results):
        raise typer.Exit(ExitCode.FAILED)


def _tested(api: Api, name: str, *, is_alone: bool) -> Row:
    try:
        answer = api.post(at("alert-channels", name, "test"))
    except HeadgateError as exc:
        if is_alone:
            raise
        return {"channel": name, "delivered": False, "reference": "", "error": exc.message}
    return {"channel": name, "delivered": True, "reference": answer["reference"], "error": ""}


def _scope(mute: Row) -> str:
    patterns = [f"{name} {mute[name]}" for name in ("event", "pipeline", "owner") if mute[name] != "*"]
    limit = "" if mute["severity_max"] == Severity.CRITICAL else f" up to {mute['severity_max']}"
    return (", ".join(patterns) or "everything") + limit
