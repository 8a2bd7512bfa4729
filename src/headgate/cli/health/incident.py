"""`headgate incident`: lists, explains, opens, acknowledges, resolves and follows incidents."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_action, command_group, server_command
from headgate.cli.health.incident_views import (
    incident_text,
    show_context,
    show_escalations,
    show_event,
    show_incident,
    show_incidents,
    show_quota,
    show_recovery,
)
from headgate.cli.options import IfVersion, Limit, Reason, SinceOption, UntilOption, Urn
from headgate.cli.session import Json, echo_json
from headgate.cli.times import past_time
from headgate.exit_codes import ExitCode

app = command_group("Manage incidents.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Incident id.")]
Status = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="STATUS", help="Filter by status: OPEN, ACKNOWLEDGED or RESOLVED. Repeatable."),
]
SeverityList = Annotated[
    list[str] | None,
    typer.Option("--severity", metavar="SEV", help="Filter by severity: SEV_1, SEV_2 or SEV_3. Repeatable."),
]
Dataset = Annotated[str | None, typer.Option("--dataset", metavar="URN", help="Filter by dataset.")]
Team = Annotated[str | None, typer.Option("--team", metavar="NAME", help="Filter by team.")]
_UNRESOLVED: Final = ("OPEN", "ACKNOWLEDGED")
_RECONNECT_SECONDS: Final = 1.0


@server_command(app, "ls")
def ls(  # noqa: PLR0913 - each is an option
    api: Api,
    status: Status = None,
    severity: SeverityList = None,
    dataset: Dataset = None,
    team: Team = None,
    signature: Annotated[str | None, typer.Option(metavar="TEXT", help="Filter by failure signature.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    all: Annotated[bool, typer.Option("--all", help="Include resolved incidents.")] = False,
    limit: Limit = 50,
) -> Answer:
    """List incidents, newest first. Resolved ones need --all or --status."""
    selected = status or (None if all else list(_UNRESOLVED))
    query = _query(selected, severity, dataset, team, since, until)
    found = list(api.items("/incidents", limit, **query, failure_signature=signature))
    yield found
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
        "from": past_time(since, "--since"),
        "to": past_time(until, "--until"),
    }


@server_command(app, "show")
def show(api: Api, id: Id) -> Answer:
    """Show an incident and its changes."""
    found = api.get(at("incidents", id))
    yield found
    show_incident(found)


@server_command(app, "why")
def why(api: Api, id: Id) -> Answer:
    """Explain an incident: signals, suspected producer, blast radius and timeline."""
    found = api.get(at("incidents", id, "context"))
    yield found
    show_context(found)


@server_command(app, "open")
def open_incident(
    api: Api,
    urn: Urn,
    type: Annotated[list[str], typer.Option(metavar="TYPE", help="Failed signal, such as FRESHNESS. Repeatable.")],
    signature: Annotated[list[str], typer.Option(metavar="TEXT", help="Stable failure signature. Repeatable.")],
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title. [default: from dataset and signature]")] = "",
    severity: Annotated[
        str | None, typer.Option(metavar="SEV", help="SEV_1, SEV_2 or SEV_3. [default: by the tier of the dataset]")
    ] = None,
    evidence: Annotated[list[str] | None, typer.Option(metavar="ID", help="Evidence id. Repeatable.")] = None,
) -> Answer:
    """Open an incident, or join the open incident of the same dataset and signature."""
    body = {
        "dataset_urn": urn,
        "signal_types": type,
        "failure_signatures": signature,
        "title": title,
        "severity": severity,
        "evidence_sample": evidence or [],
    }
    incident = api.post("/incidents", body)
    yield incident
    typer.echo(incident_text(incident))


_PATH: Final = "/incidents/{id}"
_IF_VERSION: Final = Option(IfVersion, None, field="expected_version")
add_action(
    app,
    "ack",
    _PATH,
    "Acknowledge an incident and stop its escalation.",
    incident_text,
    method="PATCH",
    body=lambda: {"status": "ACKNOWLEDGED"},
    id=Id,
    assign=Option(Annotated[str | None, typer.Option(metavar="WHO", help="New assignee.")], None, field="assignee"),
    reason=Option(Reason, ""),
    if_version=_IF_VERSION,
)
add_action(
    app,
    "assign",
    _PATH,
    "Assign an incident.",
    incident_text,
    method="PATCH",
    id=Id,
    who=Option(Annotated[str, typer.Argument(metavar="WHO", help="New assignee.")], field="assignee"),
    if_version=_IF_VERSION,
)
add_action(
    app,
    "note",
    _PATH,
    "Set the root cause summary of an incident, replacing the previous one.",
    incident_text,
    method="PATCH",
    id=Id,
    text=Option(Annotated[str, typer.Argument(metavar="TEXT", help="Root cause summary.")], field="rca_summary"),
    if_version=_IF_VERSION,
)
add_action(
    app,
    "reopen",
    _PATH,
    "Reopen a resolved incident.",
    incident_text,
    method="PATCH",
    body=lambda: {"status": "OPEN"},
    id=Id,
    reason=Reason,
    if_version=_IF_VERSION,
)
add_action(
    app,
    "snooze",
    _PATH + "/snooze",
    "Snooze the reminders of an incident.",
    incident_text,
    id=Id,
    duration=Annotated[str, typer.Argument(metavar="DURATION", help="Duration, such as 1h.")],
    reason=Option(Reason, ""),
)
add_action(
    app,
    "merge",
    _PATH + "/merge",
    "Merge an incident into another one and close it.",
    incident_text,
    id=Id,
    into=Annotated[str, typer.Option(metavar="ID", help="Incident to merge it into.")],
    reason=Option(Reason, ""),
)


@server_command(app, "resolve")
def resolve(
    api: Api,
    id: Id,
    cause: Annotated[str, typer.Option(metavar="TEXT", help="Root cause.")],
    mitigation: Annotated[str, typer.Option(metavar="TEXT", help="Mitigation.")] = "",
    false_positive: Annotated[bool, typer.Option("--false-positive", help="Mark it as a false positive.")] = False,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> Answer:
    """Resolve an incident."""
    resolution = {"root_cause": cause, "mitigation": mitigation, "false_positive": false_positive}
    body = {"status": "RESOLVED", "resolution": resolution, "reason": reason, "expected_version": if_version}
    incident = api.request("PATCH", at("incidents", id), body=body)
    yield incident
    typer.echo(incident_text(incident))


@server_command(app, "stats")
def stats(
    api: Api,
    severity: SeverityList = None,
    dataset: Dataset = None,
    team: Team = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> Answer:
    """Show the recovery times of resolved incidents."""
    found = api.get("/incidents/stats", **_query(None, severity, dataset, team, since, until))
    yield found
    show_recovery(found)


@server_command(app, "escalations")
def escalations(api: Api) -> Answer:
    """List incidents that are due for escalation."""
    found = api.get("/incidents/escalations")["escalations"]
    yield found
    show_escalations(found)


@server_command(app, "quota")
def quota(
    api: Api,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="Team.")],
    take: Annotated[int | None, typer.Option(metavar="N", min=1, help="Acquire this many alerts, all or none.")] = None,
    per_hour: Annotated[int, typer.Option(min=1, help="Alerts per hour and team.")] = 10,
    as_json: Json = False,
) -> None:
    """Show the hourly alert quota of a team, or acquire from it. The exit code is 3 if it is exhausted."""
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
        raise typer.Exit(ExitCode.CONFLICT)


@server_command(app, "watch")
def watch(
    api: Api,
    severity: SeverityList = None,
    dataset: Dataset = None,
    team: Team = None,
    after: Annotated[str | None, typer.Option(metavar="EVENT", help="Start after this event instead of now.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many events.")] = None,
    as_json: Json = False,
) -> None:
    """Follow incident events until interrupted."""
    from headgate.clock import SystemClock
    from headgate.health.model.enums import severity as parse_severity

    severities = {parse_severity(each).value for each in severity or []}
    count = 0
    while True:
        for _, event_id, each in api.follow("/events/tail", after=after, type="headgate.incident.*"):
            after = event_id
            event = each["event"]["data"]
            if not _matches(event, severities, dataset, team):
                continue
            count += 1
            if as_json:
                echo_json(each)
            else:
                show_event(event)
            if count == limit:
                return
        SystemClock().sleep(_RECONNECT_SECONDS)


def _matches(event: dict[str, Any], severities: set[str], dataset: str | None, team: str | None) -> bool:
    if severities and event["severity"] not in severities:
        return False
    return dataset in (None, event["dataset_urn"]) and team in (None, event["owner_team"])
