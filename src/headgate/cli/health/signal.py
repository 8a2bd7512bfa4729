"""`headgate signal`: lists, shows, sets and resets health signals of datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import IfVersion, Limit, SinceOption, UntilOption, Urn
from headgate.cli.output import compact, show_facts, show_table
from headgate.cli.times import ago, now, past_time
from headgate.errors import UserError

app = command_group("Manage health signals of datasets.")

Type = Annotated[str, typer.Argument(metavar="TYPE", help="Signal type, such as FRESHNESS, VOLUME or DATA_QUALITY.")]
_WORST_FIRST: Final = ("CRITICAL", "WARNING", "UNKNOWN", "OK")


@server_command(app, "ls")
def ls(
    api: Api,
    urn: Annotated[
        str | None, typer.Argument(metavar="[URN]", help="Dataset: list its signals, OK ones included. [default: all]")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Filter by state. Repeatable. [default: CRITICAL and WARNING]"),
    ] = None,
    tier: Annotated[str | None, typer.Option(metavar="1|2|3", help="Filter by tier of the dataset.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List the signals that are not OK, or all signals of a dataset."""
    if urn is not None:
        from headgate.health.model.enums import signal_state

        if tier is not None:
            raise UserError(f"signal ls {urn}: --tier filters datasets; leave it out")
        wanted = {signal_state(each).value for each in state or ()}
        listed = api.get(at("datasets", urn, "signals"))["signals"]
        its = [each for each in listed if not wanted or each["state"] in wanted][:limit]
        yield its
        show_signals(its)
        return
    found = list(api.items("/signals", limit, state=state or None, tier=tier))
    yield found
    show_signals(found, nothing="all signals are OK", names_datasets=True)


@server_command(app, "show")
def show(
    api: Api,
    urn: Urn,
    type: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Signal type. [default: all]")] = None,
) -> Answer:
    """Show the signals of a dataset, or the details of one."""
    if type is None:
        listed = api.get(at("datasets", urn, "signals"))["signals"]
        yield listed
        show_signals(listed)
        return
    found = api.get(at("datasets", urn, "signals", type), consistent="true")
    yield found
    typer.echo(f"{found['state']}  {found['signal_type']}  {found['dataset_urn']}")
    shown = {"state", "signal_type", "dataset_urn", "metrics", "top_producer", "stale", "age_seconds"}
    facts = {name: value for name, value in found.items() if name not in shown}
    show_facts(
        {
            **facts,
            "metrics": compact(found["metrics"]),
            "top_producer": None if found["top_producer"] is None else compact(found["top_producer"]),
            "since": ago(found["detected_at"] or found["state_changed_at"]),
            "updated": ago(found["last_updated"]),
            "note": stale_text(found),
        }
    )


@server_command(app, "set")
def set_signal(  # noqa: PLR0913 - each is an option
    api: Api,
    urn: Urn,
    type: Type,
    state: Annotated[str, typer.Argument(metavar="STATE", help="OK, WARNING, CRITICAL or UNKNOWN.")],
    score: Annotated[float | None, typer.Option(help="Measured value. [default: 1 for OK, else 0]")] = None,
    signature: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Stable failure signature, which identifies the incident.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="SLO threshold.")] = None,
    window_end: Annotated[
        str | None, typer.Option(metavar="TIME", help="End of the measured window. [default: now]")
    ] = None,
    window: Annotated[str, typer.Option(metavar="DURATION", help="Length of the measured window.")] = "5m",
    count: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Number of events; VOLUME keeps it by the hour.")
    ] = None,
    producer: Annotated[str | None, typer.Option(metavar="ID", help="Suspected producer.")] = None,
    evidence: Annotated[list[str] | None, typer.Option(metavar="ID", help="Evidence id. Repeatable.")] = None,
    if_version: IfVersion = None,
) -> Answer:
    """Set the state of a signal. A signal that becomes CRITICAL opens an incident, unless disabled by the settings."""
    from headgate.durable.model import duration
    from headgate.health.model.enums import SignalState, signal_state

    new_state = signal_state(state)
    ended = past_time(window_end, "--window-end") or now().isoformat()
    began = datetime.fromisoformat(ended) - timedelta(seconds=duration.seconds(window, name="--window"))
    body = {
        "state": new_state.value,
        "score": score if score is not None else float(new_state is SignalState.OK),
        "slo_threshold": threshold,
        "failure_signature": signature,
        "window_start": began.isoformat(),
        "window_end": ended,
        "metrics": None if count is None else {"evidence_count": count},
        "top_producer": None if producer is None else {"producer_id": producer},
        "evidence_sample": evidence or [],
        "expected_version": if_version,
    }
    answer = api.request("PUT", at("datasets", urn, "signals", type), body=body)
    yield answer
    current = answer["current"]
    before = f", was {current['previous_state']}" if current["previous_state"] else ""
    incident = f"; incident {current['incident_id']}" if current["incident_id"] else ""
    signal = f"{current['signal_type']} of {current['dataset_urn']}"
    typer.echo(f"{current['state']}  {signal}{before}, version {current['version']}{incident}")


@server_command(app, "reset")
def reset(
    api: Api,
    urn: Urn,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Recorded in the audit log.")],
) -> Answer:
    """Delete all signals of a dataset and resolve its incidents."""
    found = api.request("POST", at("datasets", urn, "signals", "reset"), body={"reason": reason})
    yield found
    types, ended = ", ".join(found["signal_types"]) or "no signals", ", ".join(found["incident_ids"])
    typer.echo(f"{found['dataset_urn']}: {types} deleted" + (f"; resolved {ended}" if ended else ""))


@server_command(app, "history")
def history(
    api: Api,
    urn: Urn,
    type: Type,
    since: SinceOption = None,
    until: UntilOption = None,
) -> Answer:
    """List the state transitions of a signal, newest last. The default range is 30 days."""
    query = {"from": past_time(since, "--since"), "to": past_time(until, "--until")}
    found = api.get(at("datasets", urn, "signals", type, "history"), **query)["snapshots"]
    yield found
    rows = [
        (
            each["state"],
            each["previous_state"] or "",
            ago(each["changed_at"]),
            each["window_end"],
            "" if each["score"] is None else f"{each['score']:g}",
            "late update" if each["late"] else each["failure_signature"],
            each["incident_id"],
        )
        for each in found
    ]
    columns = ("STATE", "PREVIOUS", "SINCE", "WINDOW END", "SCORE", "SIGNATURE", "INCIDENT")
    show_table(columns, rows, nothing="no transitions in this range", key=3)


@server_command(app, "volume")
def volume(
    api: Api,
    urn: Urn,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=14, help="Number of days.")] = 7,
) -> Answer:
    """Show the hourly event counts of a dataset, newest last. Hours without a count are gaps."""
    found = api.get(at("datasets", urn, "volume-history"), days=str(days))
    yield found
    # Gaps before the first count are not shown.
    known = [each["event_count"] is not None for each in found["points"]]
    shown = found["points"][known.index(True) :] if any(known) else []
    rows = [
        (
            each["hour"],
            "gap" if each["event_count"] is None else each["event_count"],
            each["window_count"],
            "" if each["is_over"] else "in progress",
        )
        for each in shown
    ]
    show_table(("HOUR", "EVENTS", "WINDOWS", ""), rows, nothing=f"no counts in {days} days")


def window_text(signal: Mapping[str, Any]) -> str:
    """Return the window that a signal describes, in UTC."""
    start, end = signal["window_start"], signal["window_end"]
    until = end[11:16] if start[:10] == end[:10] else f"{end[:10]} {end[11:16]}"
    return f"{start[:10]} {start[11:16]} to {until}Z"


def show_signals(
    signals: Iterable[Mapping[str, Any]], *, nothing: str = "no signals", names_datasets: bool = False
) -> None:
    """Print a table of signals, worst first."""
    worst_first = sorted(signals, key=lambda each: _WORST_FIRST.index(each["state"]))
    rows = [
        (
            each["state"],
            each["signal_type"],
            *((each["dataset_urn"], each["owner_team"]) if names_datasets else ()),
            ago(each.get("detected_at") or each["state_changed_at"]),
            window_text(each),
            ago(each["last_updated"]),
            each.get("failure_signature"),
            each.get("incident_id"),
            stale_text(each),
        )
        for each in worst_first
    ]
    datasets = ("DATASET", "TEAM") if names_datasets else ()
    columns = ("STATE", "SIGNAL", *datasets, "SINCE", "WINDOW", "EVALUATED", "SIGNATURE", "INCIDENT", "")
    show_table(columns, rows, nothing=nothing, key=2 if names_datasets else 1)


def stale_text(signal: Mapping[str, Any]) -> str:
    """Return a note on a stale answer from the cache."""
    return f"{signal['age_seconds']:.0f} s old: the store is unavailable" if signal.get("stale") else ""
