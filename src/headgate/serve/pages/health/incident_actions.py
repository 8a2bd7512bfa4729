"""Incident actions: the buttons that fit the state of an incident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.auth.roles import Permission
from headgate.health.model.enums import IncidentStatus
from headgate.serve.pages.actions import Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, segment
from headgate.serve.pages.labels import command

_WHY: Final = Field(name="reason", label="Reason", is_required=True)
_ASSIGNEE: Final = Field(name="assignee", label="Assignee", is_required=True, hint="A name or an address.")


def incident_actions(api: ApiCaller, incident: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the actions that fit the state of an incident, the expected one first."""
    if incident["merged_into"]:
        return ()
    if incident["status"] == IncidentStatus.RESOLVED:
        found = [(_reopen(incident), Permission.INCIDENT_WRITE)]
    else:
        is_open = incident["status"] == IncidentStatus.OPEN
        found = [
            *([(acknowledge(incident), Permission.INCIDENT_WRITE)] if is_open else []),
            (_resolve(incident, Tone.PLAIN if is_open else Tone.PRIMARY), Permission.INCIDENT_WRITE),
            (_assign(incident), Permission.INCIDENT_WRITE),
            (_snooze(incident), Permission.INCIDENT_WRITE),
            (_note(incident), Permission.INCIDENT_ANNOTATE),
            (_merge(incident), Permission.INCIDENT_WRITE),
        ]
    urn = incident["primary_dataset_urn"]
    return tuple(allowed(api, permission, action, urn) for action, permission in found)


def acknowledge(incident: Mapping[str, Any]) -> Action:
    """Return the action that takes an incident."""
    name = incident["incident_id"]
    return _change(
        incident,
        label="Acknowledge",
        sentence="You take the incident. It is not escalated any further.",
        body={"status": IncidentStatus.ACKNOWLEDGED.value},
        fields=(Field(name="assignee", label="Assignee", hint="Who works on it. Empty: no assignee."),),
        cli=f"{command('incident', 'ack', name)} --assign {{assignee}}",
        tone=Tone.PRIMARY,
        done="The incident is acknowledged.",
    )


def _resolve(incident: Mapping[str, Any], tone: Tone) -> Action:
    return _change(
        incident,
        label="Resolve",
        sentence="Closes the incident. It reopens if the same failure comes back.",
        body={"status": IncidentStatus.RESOLVED.value},
        fields=(
            Field(name="resolution.root_cause", label="Root cause", kind=FieldKind.LONG_TEXT, is_required=True),
            Field(name="resolution.mitigation", label="Mitigation", hint="What made it good."),
            Field(name="resolution.false_positive", label="It was a false positive", kind=FieldKind.FLAG),
        ),
        cli=f"{command('incident', 'resolve', incident['incident_id'])} --cause {{resolution.root_cause}}",
        tone=tone,
        done="The incident is resolved.",
    )


def _assign(incident: Mapping[str, Any]) -> Action:
    return _change(
        incident,
        label="Assign",
        sentence="Sets who works on the incident.",
        fields=(_ASSIGNEE,),
        cli=f"{command('incident', 'assign', incident['incident_id'])} {{assignee}}",
        done="The incident is assigned.",
    )


def _note(incident: Mapping[str, Any]) -> Action:
    return _change(
        incident,
        label="Note the cause",
        sentence="Sets the root cause summary that everyone sees with the incident.",
        fields=(
            Field(
                name="rca_summary",
                label="Root cause",
                kind=FieldKind.LONG_TEXT,
                value=incident["rca_summary"] or "",
                is_required=True,
            ),
        ),
        cli=f"{command('incident', 'note', incident['incident_id'])} {{rca_summary}}",
        done="The note is stored.",
    )


def _reopen(incident: Mapping[str, Any]) -> Action:
    return _change(
        incident,
        label="Reopen",
        sentence="Opens the incident again, with its escalation from the start.",
        body={"status": IncidentStatus.OPEN.value},
        fields=(_WHY,),
        cli=f"{command('incident', 'reopen', incident['incident_id'])} --reason {{reason}}",
        tone=Tone.PRIMARY,
        done="The incident is open again.",
    )


def _change(incident: Mapping[str, Any], **more: Any) -> Action:  # noqa: ANN401 - the rest of an action
    """Return a change of the version of the incident that the page shows."""
    path = f"/incidents/{segment(incident['incident_id'])}"
    return Action(path=path, method="PATCH", if_match=f'"{incident["version"]}"', **more)


def _snooze(incident: Mapping[str, Any]) -> Action:
    name = incident["incident_id"]
    return Action(
        label="Snooze",
        sentence="Suspends escalation for a while. The incident stays open.",
        path=f"/incidents/{segment(name)}/snooze",
        fields=(
            Field(name="duration", label="For", value="1h", is_required=True, hint="Such as 30m, 2h or 1d."),
            Field(name="reason", label="Reason"),
        ),
        cli=f"{command('incident', 'snooze', name)} {{duration}}",
        done="The incident is snoozed.",
    )


def _merge(incident: Mapping[str, Any]) -> Action:
    name = incident["incident_id"]
    return Action(
        label="Merge",
        sentence="Makes this incident a part of another one, which gets its signals and evidence.",
        path=f"/incidents/{segment(name)}/merge",
        fields=(
            Field(name="into", label="Into", is_required=True, hint="The id of the other incident, such as INC-…"),
            Field(name="reason", label="Reason"),
        ),
        cli=f"{command('incident', 'merge', name)} --into {{into}}",
        tone=Tone.DANGER,
        done="The incidents are merged.",
    )
