"""`headgate incident`: what broke: listed, explained, taken on, closed, followed."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli import times as moments
from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.incident_views import (
    show_context,
    show_escalations,
    show_incident,
    show_incidents,
    show_news,
    show_quota,
    show_recovery,
    standing,
)
from headgate.cli.health.options import IfVersion, Limit, Reason, Urn
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, UntilOption

app = typer.Typer(help="Incidents: what broke, and who is at it.", no_args_is_help=True, rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The incident.")]
Status = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="STATUS", help="OPEN, ACKNOWLEDGED or RESOLVED; may be given repeatedly."),
]
SeverityList = Annotated[
    list[str] | None, typer.Option("--severity", metavar="SEV", help="SEV_1, SEV_2, SEV_3; may be given repeatedly.")
]
Dataset = Annotated[str | None, typer.Option("--dataset", metavar="URN", help="Those of a dataset.")]
Team = Annotated[str | None, typer.Option("--team", metavar="NAME", help="Those of a team.")]
_UNRESOLVED: Final = ("OPEN", "ACKNOWLEDGED")
_COME_BACK_SECONDS: Final = 1.0
REFUSED_EXIT_CODE: Final = 3


@app.command("ls")
@asks
def ls(  # noqa: PLR0913 - each is an option
    api: Api,
    status: Status = None,
    severity: SeverityList = None,
    dataset: Dataset = None,
    team: Team = None,
    signature: Annotated[str | None, typer.Option(metavar="TEXT", help="Those with this failure.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    all: Annotated[bool, typer.Option("--all", help="Those that are resolved, too.")] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List incidents, newest first: those that are not resolved, or those that match."""
    wanted = status or (None if all else list(_UNRESOLVED))
    query = _query(wanted, severity, dataset, team, since, until)
    found = list(api.pages("/incidents", limit, **query, failure_signature=signature))
    if as_json:
        echo_json(found)
    else:
        show_incidents(found)


def _query(
    status: list[str] | None,
    severity: list[str] | None,
    dataset: str | None,
    team: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    return {
        "status": status or None,
        "severity": severity or None,
        "dataset_urn": dataset,
        "owner_team": team,
        "from": moments.asked(since, "--since"),
        "to": moments.asked(until, "--until"),
    }


@app.command("show")
@asks
def show(api: Api, id: Id, as_json: Json = False) -> None:
    """Show an incident: how it stands, and what was done so far."""
    found = api.get(at("incidents", id))
    if as_json:
        echo_json(found)
    else:
        show_incident(found)


@app.command("why")
@asks
def why(api: Api, id: Id, as_json: Json = False) -> None:
    """Tell all that is known around an incident: what is wrong, since when, who did it, whom it hits."""
    found = api.get(at("incidents", id, "context"))
    if as_json:
        echo_json(found)
    else:
        show_context(found)


@app.command("open")
@asks
def open_incident(
    api: Api,
    urn: Urn,
    type: Annotated[
        list[str], typer.Option(metavar="TYPE", help="The signal that broke, such as FRESHNESS; may be repeated.")
    ],
    signature: Annotated[
        list[str], typer.Option(metavar="TEXT", help="What is wrong, always in the same words; may be repeated.")
    ],
    title: Annotated[str, typer.Option(metavar="TEXT", help="[default: made of the others]")] = "",
    severity: Annotated[
        str | None, typer.Option(metavar="SEV", help="SEV_1, SEV_2 or SEV_3. [default: by the tier of the dataset]")
    ] = None,
    evidence: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Evidence of it; may be given repeatedly.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Open an incident. One that is open for the same failure of the dataset is joined instead."""
    body = {
        "dataset_urn": urn,
        "signal_types": type,
        "failure_signatures": signature,
        "title": title,
        "severity": severity,
        "evidence_sample": evidence or [],
    }
    _say(api.post("/incidents", body), as_json=as_json)


@app.command("ack")
@asks
def ack(
    api: Api,
    id: Id,
    assign: Annotated[str | None, typer.Option(metavar="WHO", help="Who looks after it from now on.")] = None,
    reason: Reason = "",
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Say that someone is at it: nobody else is called for it."""
    body = {"status": "ACKNOWLEDGED", "assignee": assign, "reason": reason}
    _change(api, id, body, if_version, as_json=as_json)


@app.command("resolve")
@asks
def resolve(
    api: Api,
    id: Id,
    cause: Annotated[str, typer.Option(metavar="TEXT", help="What the cause was.")],
    mitigation: Annotated[str, typer.Option(metavar="TEXT", help="What was done about it.")] = "",
    false_positive: Annotated[bool, typer.Option("--false-positive", help="Nothing was wrong after all.")] = False,
    reason: Reason = "",
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Say that an incident is over, and why."""
    resolution = {"root_cause": cause, "mitigation": mitigation, "false_positive": false_positive}
    body = {"status": "RESOLVED", "resolution": resolution, "reason": reason}
    _change(api, id, body, if_version, as_json=as_json)


@app.command("assign")
@asks
def assign(
    api: Api,
    id: Id,
    who: Annotated[str, typer.Argument(metavar="WHO", help="Who looks after it from now on.")],
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Give an incident to someone."""
    _change(api, id, {"assignee": who}, if_version, as_json=as_json)


@app.command("note")
@asks
def note(
    api: Api,
    id: Id,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is known of the cause.")],
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Write down what is known of the cause, in place of what was written before."""
    _change(api, id, {"rca_summary": text}, if_version, as_json=as_json)


@app.command("snooze")
@asks
def snooze(
    api: Api,
    id: Id,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="For how long, such as 1h.")],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Remind nobody of an incident for a while."""
    _say(api.post(at("incidents", id, "snooze"), {"duration": duration, "reason": reason}), as_json=as_json)


@app.command("merge")
@asks
def merge(
    api: Api,
    id: Id,
    into: Annotated[str, typer.Option(metavar="ID", help="The incident that takes it over.")],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Close an incident into another one, which is shown."""
    _say(api.post(at("incidents", id, "merge"), {"into": into, "reason": reason}), as_json=as_json)


@app.command("reopen")
@asks
def reopen(
    api: Api,
    id: Id,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it is not over.")],
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Say that an incident is not over after all."""
    _change(api, id, {"status": "OPEN", "reason": reason}, if_version, as_json=as_json)


@app.command("stats")
@asks
def stats(
    api: Api,
    severity: SeverityList = None,
    dataset: Dataset = None,
    team: Team = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: Json = False,
) -> None:
    """Show how long incidents took until they were over."""
    found = api.get("/incidents/stats", **_query(None, severity, dataset, team, since, until))
    if as_json:
        echo_json(found)
    else:
        show_recovery(found)


@app.command("escalations")
@asks
def escalations(api: Api, as_json: Json = False) -> None:
    """List incidents of which more people are to be told now."""
    found = api.get("/incidents/escalations")["escalations"]
    if as_json:
        echo_json(found)
    else:
        show_escalations(found)


@app.command("quota")
@asks
def quota(
    api: Api,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="Who is alerted.")],
    take: Annotated[int | None, typer.Option(metavar="N", min=1, help="Take so many alerts, all or none.")] = None,
    per_hour: Annotated[int, typer.Option(min=1, help="How many a team may be sent in an hour.")] = 10,
    as_json: Json = False,
) -> None:
    """Show how many alerts a team was sent in this hour, or ask to send some. The exit code is 3 if they may not be."""
    path = at("alert-quotas", team)
    if take is None:
        found = api.get(path, per_hour=per_hour)
    else:
        found = api.post(f"{path}/acquire", {"alerts": take, "per_hour": per_hour})
    if as_json:
        echo_json(found)
    else:
        show_quota(found)
    if take is not None and not found["is_granted"]:
        raise typer.Exit(REFUSED_EXIT_CODE)


@app.command("watch")
@asks
def watch(
    api: Api,
    severity: SeverityList = None,
    dataset: Dataset = None,
    team: Team = None,
    after: Annotated[str | None, typer.Option(metavar="EVENT", help="Begin after this event, and not now.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    as_json: Json = False,
) -> None:
    """Follow what happens to incidents as it happens, until it is interrupted."""
    from headgate.clock import SystemClock
    from headgate.health.model.enums import severity as meant

    severities = {meant(each).value for each in severity or []}
    count = 0
    while True:
        for _, event_id, each in api.follow("/events/tail", after=after, type="headgate.incident.*"):
            after = event_id
            news = each["event"]["data"]
            if not _is_wanted(news, severities, dataset, team):
                continue
            count += 1
            if as_json:
                echo_json(each)
            else:
                show_news(news)
            if count == limit:
                return
        SystemClock().sleep(_COME_BACK_SECONDS)


def _is_wanted(news: dict[str, Any], severities: set[str], dataset: str | None, team: str | None) -> bool:
    if severities and news["severity"] not in severities:
        return False
    return dataset in (None, news["dataset_urn"]) and team in (None, news["owner_team"])


def _change(api: Api, id: str, body: dict[str, Any], if_version: int | None, *, as_json: bool) -> None:
    answer = api.request("PATCH", at("incidents", id), body={**body, "expected_version": if_version})
    _say(answer, as_json=as_json)


def _say(incident: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(incident)
    else:
        typer.echo(standing(incident))
