"""`headgate alert`: what people were told of, by whom it was taken on, what is silenced; and channels, tried out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.output import short, show_facts, show_table
from headgate.cli.pipelines.views import Limit, Row, Walls, later, pages
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, ago, asked

app = typer.Typer(help="Alerts, and the channels they go to.", no_args_is_help=True, rich_markup_mode=None)
Id = Annotated[str, typer.Argument(metavar="ALERT", help="Its id, alert_…")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For whoever asks why nobody was told.")]


class Status(StrEnum):
    """Where an alert stands."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"
    MUTED = "MUTED"


class Severity(StrEnum):
    """How bad it is."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@app.command("ls")
@asks
def ls(
    api: Api,
    pipeline: Annotated[str | None, typer.Option("--pipeline", metavar="ID", help="Of this one.")] = None,
    status: Annotated[Status | None, typer.Option("--status", case_sensitive=False)] = None,
    since: SinceOption = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List alerts, the latest first."""
    wanted = None if status is None else status.value
    query = {"pipeline": pipeline, "status": wanted, "since": asked(since, "--since")}
    found = list(pages(api, "/alerts", "alerts", limit, **query))
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["status"],
            each["severity"],
            each["alert_id"],
            ago(each["last_at"]),
            f"{each['count']} times" if each["count"] > 1 else "",
            each["text"],
            _remark(each),
        )
        for each in found
    ]
    columns = ("STATUS", "SEVERITY", "ALERT", "LAST", "", "TEXT", "")
    show_table(columns, rows, nothing="no alerts", key=2)


@app.command("show")
@asks
def show(api: Api, alert: Id, as_json: Json = False) -> None:
    """Show an alert, and what became of telling people."""
    found = api.get(at("alerts", alert))
    if as_json:
        echo_json(found)
        return
    walls, pipeline = Walls(api), found["pipeline_id"]
    typer.echo(_standing(found))
    show_facts(
        {
            "event": found["event"],
            "pipeline": pipeline,
            "period": " ".join(part for part in (found["date"], found["schedule_id"]) if part),
            "run": found["run_id"],
            "first": walls.text(pipeline, found["at"]),
            "last": walls.text(pipeline, found["last_at"]),
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
            walls.text(pipeline, each["at"]),
            each["error"] or each["reference"],
        )
        for each in found["deliveries"]
    ]
    show_table(("CHANNEL", "WHAT", "STATE", "ATTEMPTS", "AT", ""), rows, nothing="no channel was told")


@app.command("ack")
@asks
def ack(
    api: Api,
    alert: Id,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="For the others.")] = "",
    as_json: Json = False,
) -> None:
    """Say that you are at it: nobody else is told, and the channels hear of it."""
    answer = api.post(at("alerts", alert, "ack"), {"note": note})
    if as_json:
        echo_json(answer)
    else:
        typer.echo(_standing(answer))


@app.command("mute")
@asks
def mute(
    api: Api,
    reason: Reason,
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="A time, or for how long: 2h.")],
    pipeline: Annotated[str, typer.Option("--pipeline", metavar="PATTERN", help="Such as 'silver-*'.")] = "*",
    event: Annotated[str, typer.Option("--event", metavar="PATTERN", help="Such as SLA_WARNING or 'SLA_*'.")] = "*",
    owner: Annotated[str, typer.Option("--owner", metavar="PATTERN", help="Those of this one.")] = "*",
    severity_max: Annotated[
        Severity, typer.Option("--severity-max", case_sensitive=False, help="What is worse is told all the same.")
    ] = Severity.CRITICAL,
    as_json: Json = False,
) -> None:
    """Have nobody told of what fits, for a while, and print the id of the mute. Alerts are kept all the same."""
    body = {
        "reason": reason,
        "until": later(until, "--until"),
        "pipeline": pipeline,
        "event": event,
        "owner": owner,
        "severity_max": severity_max.value,
    }
    answer = api.post("/alert-mutes", body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{answer['mute_id']}: {_silences(answer)}, until {short(answer['until'])}")


@app.command("unmute")
@asks
def unmute(
    api: Api,
    mute: Annotated[str, typer.Argument(metavar="MUTE", help="Its id, mute_…")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="For whoever asks later.")] = "",
    as_json: Json = False,
) -> None:
    """End a mute before its time."""
    api.request("DELETE", at("alert-mutes", mute), query={"reason": reason or None})
    if as_json:
        echo_json({"deleted": mute})
    else:
        typer.echo(f"{mute}: it is over")


@app.command("mutes")
@asks
def mutes(api: Api, as_json: Json = False) -> None:
    """List what is silenced now, until when, by whose wish and why."""
    found = api.get("/alert-mutes")["mutes"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["mute_id"], _silences(each), short(each["until"]), each["by"], each["reason"]) for each in found]
    show_table(("MUTE", "WHAT", "UNTIL", "BY", "WHY"), rows, nothing="nothing is muted")


@app.command("channels")
@asks
def channels(api: Api, as_json: Json = False) -> None:
    """List the channels that people are told over."""
    found = api.get("/alert-channels")["channels"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["name"], "keeps failing, left alone for now" if each["failing"] else "") for each in found]
    show_table(("CHANNEL", ""), rows, nothing="no channels")


@app.command("test")
@asks
def send_test(
    api: Api,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Its name in the settings.")],
    as_json: Json = False,
) -> None:
    """Send a message that says it is a test over a channel, now."""
    answer = api.post(at("alert-channels", channel, "test"))
    if as_json:
        echo_json(answer)
    else:
        name = f", which calls it {answer['reference']}" if answer["reference"] else ""
        typer.echo(f"{channel}: it took the message{name}")


def _standing(alert: Row) -> str:
    remark = _remark(alert)
    said = f"{alert['status']}  {alert['severity']}  {alert['alert_id']}  {alert['text']}"
    return f"{said} ({remark})" if remark else said


def _remark(alert: Row) -> str:
    if alert["resolved_by"]:
        return f"over by {alert['resolved_by']}"
    if alert["acknowledged_by"]:
        return f"{alert['acknowledged_by']} is at it"
    if alert["muted_by"]:
        return f"muted by {alert['muted_by']}"
    failed = sorted({each["channel"] for each in alert["deliveries"] if each["state"] == "FAILED"})
    return f"not told: {' '.join(failed)}" if failed else ""


def _silences(mute: Row) -> str:
    patterns = [f"{name} {mute[name]}" for name in ("event", "pipeline", "owner") if mute[name] != "*"]
    most = "" if mute["severity_max"] == Severity.CRITICAL else f" up to {mute['severity_max']}"
    return (", ".join(patterns) or "everything") + most
