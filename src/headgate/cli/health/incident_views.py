"""Text output of the incident and lineage commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import typer

from headgate.cli.health.signal import show_signals
from headgate.cli.output import short, show_facts, show_table
from headgate.cli.times import ago, duration_text, now

# Rows of a long list in a larger view.
_SHOWN: Final = 10
_STEPS_SHOWN: Final = 20


def show_incidents(found: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of incidents."""
    rows = [
        (
            each["status"],
            each["severity"],
            each["incident_id"],
            ago(each["episode_started_at"] or each["created_at"]),
            each["owner_team"],
            each["assignee"],
            each["title"],
            _remark(each),
        )
        for each in found
    ]
    columns = ("STATUS", "SEVERITY", "INCIDENT", "SINCE", "TEAM", "ASSIGNEE", "TITLE", "")
    show_table(columns, rows, nothing="no incidents", key=2)


def incident_text(incident: Mapping[str, Any]) -> str:
    """Return the status of an incident on one line."""
    remark = _remark(incident)
    is_resolved = incident["status"] == "RESOLVED"
    assignee = f", assigned to {incident['assignee']}" if incident["assignee"] and not is_resolved else ""
    text = f"{incident['status']}  {incident['severity']}  {incident['incident_id']}  {incident['title']}{assignee}"
    return f"{text} ({remark})" if remark else text


def _remark(incident: Mapping[str, Any]) -> str:
    if incident["merged_into"]:
        return f"merged into {incident['merged_into']}"
    if incident["status"] == "RESOLVED":
        is_false = (incident["resolution"] or {}).get("false_positive")
        text = "false positive" if is_false else f"resolved {ago(incident['resolved_at'])}"
        until = incident["silenced_until"]
        is_silent = until is not None and datetime.fromisoformat(until) > now()
        return f"{text}; still CRITICAL, silent until {short(until)}" if is_silent else text
    if incident["snoozed_until"]:
        return f"snoozed until {short(incident['snoozed_until'])}"
    return f"{incident['episode']} episodes" if incident["episode"] > 1 else ""


def show_incident(found: Mapping[str, Any]) -> None:
    """Print the record of an incident."""
    typer.echo(incident_text(found))
    resolution, blast_radius = found["resolution"] or {}, found["blast_radius"] or {}
    since = found["episode_started_at"] or found["created_at"]
    show_facts(
        {
            "dataset": found["primary_dataset_urn"],
            "tier": found["tier"],
            "team": found["owner_team"],
            "on call": found["oncall_user"],
            "since": f"{short(since)} ({ago(since)})",
            "signals": list(found["signal_types"]),
            "failures": list(found["failure_signatures"]),
            "producer": producer_text(found["implicated_producer"]),
            "downstream": _downstream_text(blast_radius),
            "evidence": list(found["evidence_sample"]),
            "summary": found["rca_summary"],
            "cause": resolution.get("root_cause"),
            "mitigation": resolution.get("mitigation"),
            "escalated": found["escalation_level"] or None,
            "recurrences": found["recurrences"] or None,
            "silent until": found["silenced_until"] and short(found["silenced_until"]),
            "version": found["version"],
        }
    )
    typer.echo()
    rows = [
        (short(each["at"]), each["status"], each["phase"], each["actor"], each.get("reason", ""))
        for each in found["steps"][-_STEPS_SHOWN:]
    ]
    show_table(("AT", "STATUS", "PHASE", "BY", "REASON"), rows, nothing="no changes yet")


def producer_text(producer: Mapping[str, Any] | None) -> str | None:
    """Return the suspected producer with its version, deployment and confidence."""
    if producer is None:
        return None
    parts = [producer["producer_id"], producer.get("version", "")]
    parts += [f"deployed {ago(producer['deployed_at'])}"] if producer.get("deployed_at") else []
    parts += [f"({producer['confidence']} confidence)"] if producer.get("confidence") else []
    return " ".join(part for part in parts if part)


def _downstream_text(blast_radius: Mapping[str, Any]) -> str | None:
    if not blast_radius.get("downstream_count"):
        return None
    at_least = "" if blast_radius.get("complete", True) else "at least "
    impact = blast_radius.get("estimated_impact", "UNKNOWN")
    return f"{at_least}{blast_radius['downstream_count']} readers, impact {impact}"


def show_context(found: Mapping[str, Any]) -> None:
    """Print an incident with its context: signals, lineage, blast radius and timeline."""
    incident = found["incident"]
    typer.echo(incident_text(incident))
    dataset = found["dataset"] or {}
    since = incident["episode_started_at"] or incident["created_at"]
    show_facts(
        {
            "dataset": incident["primary_dataset_urn"],
            "owner": _owner_text(incident, dataset),
            "since": f"{short(since)} ({ago(since)})",
            "failures": list(incident["failure_signatures"]),
            "producer": producer_text(incident["implicated_producer"]),
            "summary": incident["rca_summary"],
            "first bad": evidence_text(found["first_bad"]),
            "last good": evidence_text(found["last_good"]),
        }
    )
    typer.echo("\nSIGNALS")
    show_signals(found["signals"])
    for each in found["signals"]:
        if each.get("message"):
            typer.echo(f"\n{each['signal_type']}: {each['message']}")
    _show_entities("WRITERS", found["writers"])
    _show_entities("READERS", found["readers"])
    typer.echo("\nBLAST RADIUS")
    show_reach(found["blast_radius"], nothing="no downstream datasets known")
    typer.echo("\nTIMELINE")
    rows = [(short(each["at"]), each["kind"], each["what"]) for each in found["timeline"]]
    show_table(("AT", "EVENT", "DETAILS"), rows, nothing="no events")
    for each in found["missing"]:
        typer.echo(f"missing: {each['part']}: {each['why']}")


def _owner_text(incident: Mapping[str, Any], dataset: Mapping[str, Any]) -> str:
    contacts = [dataset.get("owner_email"), dataset.get("oncall_rotation"), incident["oncall_user"]]
    parts = [incident["owner_team"], incident["tier"], *(each for each in contacts if each)]
    return ", ".join(parts)


def evidence_text(evidence: Mapping[str, Any] | None) -> str | None:
    """Return a piece of evidence on one line."""
    if evidence is None:
        return None
    validation = evidence["validation"]
    reasons = [*validation.get("reason_codes", ()), *validation.get("failed_gates", ())]
    producer = (evidence.get("producer") or {}).get("producer_id")
    parts = [validation["result"], evidence["evidence_id"], ago(evidence["created_at"]), *reasons[:2]]
    return " ".join([*parts, *([f"by {producer}"] if producer else [])])


def _show_entities(heading: str, entries: list[Mapping[str, Any]]) -> None:
    typer.echo(f"\n{heading}")
    show_entries(entries[:_SHOWN], nothing="none known")
    if len(entries) > _SHOWN:
        typer.echo(f"and {len(entries) - _SHOWN} more")


def show_entries(entries: Iterable[Mapping[str, Any]], *, nothing: str) -> None:
    """Print writers or readers of a dataset."""
    rows = [
        (each["entity_id"], each["entity_name"], each["entity_type"], each["confidence"], ago(each["updated_at"]))
        for each in entries
    ]
    show_table(("ID", "NAME", "TYPE", "CONFIDENCE", "CONFIRMED"), rows, nothing=nothing)


def show_reach(reach: Mapping[str, Any] | None, *, nothing: str) -> None:
    """Print the datasets and entities reachable from a dataset, nearest first."""
    if reach is None or not (reach["datasets"] or reach["entities"]):
        typer.echo(nothing)
        return
    at_least = "" if reach["complete"] else "at least "
    tiers = ", ".join(f"{count} of {tier}" for tier, count in reach["tier_counts"].items() if count)
    counted = f"{reach['dataset_count']} datasets" + (f" ({tiers})" if tiers else "")
    typer.echo(f"{reach['estimated_impact']}: {at_least}{counted}, {reach['downstream_count']} users")
    rows = [
        (each["dataset_urn"], each.get("tier") or "", each["distance"], each["confidence"])
        for each in reach["datasets"][:_SHOWN]
    ]
    rows += [
        (each["entity_id"], each["entity_type"], each["distance"], each["confidence"])
        for each in reach["entities"][:_SHOWN]
    ]
    show_table(("REACHED", "", "STEPS", "CONFIDENCE"), rows, nothing="")


def show_recovery(found: Mapping[str, Any]) -> None:
    """Print the recovery times of incidents."""
    if not found["resolved"]:
        typer.echo("no resolved incidents in this range")
        return
    show_facts(
        {
            "resolved": f"{'' if found['complete'] else 'at least '}{found['resolved']}",
            "MTTR": duration_text(found["mttr_seconds"]),
            **{severity: duration_text(seconds) for severity, seconds in sorted(found["by_severity"].items())},
            "false positives": str(found["false_positives"]),
        }
    )


def show_event(event: Mapping[str, Any]) -> None:
    """Print an incident event on one line."""
    name = event["event_type"].removeprefix("INCIDENT_")
    reason = f" ({event['reason']})" if event.get("reason") else ""
    line = (short(event["timestamp"]), name, event["status"], event["severity"], event["incident_id"], event["title"])
    typer.echo("  ".join(line) + reason)


def show_escalations(found: Iterable[Mapping[str, Any]]) -> None:
    """Print due escalations."""
    from headgate.health.model.timestamps import instant

    rows = [(each["level"], each["incident_id"], ago(instant(each["due_at_ms"]))) for each in found]
    show_table(("LEVEL", "INCIDENT", "DUE"), rows, nothing="no escalations due", key=1)


def show_quota(found: Mapping[str, Any]) -> None:
    """Print the used part of a team's hourly alert quota."""
    status = "within the quota" if found["is_granted"] else "EXHAUSTED until " + short(found["resets_at"])
    typer.echo(f"{found['team']}: {found['alert_count']} of {found['per_hour']} alerts this hour; {status}")
