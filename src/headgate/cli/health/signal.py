"""`headgate signal`: how datasets are: what is wrong anywhere, what is known of one, and setting it by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import typer

from headgate.cli import times as moments
from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.options import IfVersion, Limit, Urn
from headgate.cli.output import compact, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, UntilOption, ago

app = typer.Typer(help="Signals: how datasets are.", no_args_is_help=True, rich_markup_mode=None)

Type = Annotated[str, typer.Argument(metavar="TYPE", help="Such as FRESHNESS, VOLUME or DATA_QUALITY.")]
_WORST_FIRST: Final = ("CRITICAL", "WARNING", "UNKNOWN", "OK")


@app.command("ls")
@asks
def ls(
    api: Api,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="CRITICAL, WARNING or UNKNOWN. [default: the first two]"),
    ] = None,
    tier: Annotated[str | None, typer.Option(metavar="1|2|3", help="Of datasets of this tier alone.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List the signals that are not OK."""
    found = list(api.pages("/signals", limit, state=state or None, tier=tier))
    if as_json:
        echo_json(found)
    else:
        show_signals(found, nothing="nothing is wrong", names_datasets=True)


@app.command("show")
@asks
def show(
    api: Api,
    urn: Urn,
    type: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="One signal. [default: all]")] = None,
    as_json: Json = False,
) -> None:
    """Show the signals of a dataset, or all that is known of one of them."""
    if type is None:
        listed = api.get(at("datasets", urn, "signals"))["signals"]
        if as_json:
            echo_json(listed)
        else:
            show_signals(listed)
        return
    found = api.get(at("datasets", urn, "signals", type), consistent="true")
    if as_json:
        echo_json(found)
        return
    typer.echo(f"{found['state']}  {found['signal_type']}  {found['dataset_urn']}")
    told = {"state", "signal_type", "dataset_urn", "metrics", "top_producer", "stale", "age_seconds"}
    facts = {name: value for name, value in found.items() if name not in told}
    show_facts(
        {
            **facts,
            "metrics": compact(found["metrics"]),
            "top_producer": None if found["top_producer"] is None else compact(found["top_producer"]),
            "changed": ago(found["state_changed_at"]),
            "updated": ago(found["last_updated"]),
            "note": stale_text(found),
        }
    )


@app.command("set")
@asks
def set_signal(  # noqa: PLR0913 - each is an option
    api: Api,
    urn: Urn,
    type: Type,
    state: Annotated[str, typer.Argument(metavar="STATE", help="OK, WARNING, CRITICAL or UNKNOWN.")],
    score: Annotated[float | None, typer.Option(help="What was measured. [default: 1 if it is OK, else 0]")] = None,
    signature: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is wrong, always in the same words: incidents go by it.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="What was promised.")] = None,
    window_end: Annotated[
        str | None, typer.Option(metavar="TIME", help="When the time ended that it is about. [default: now]")
    ] = None,
    window: Annotated[str, typer.Option(metavar="DURATION", help="How long that time was.")] = "5m",
    count: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="How many events there were: of a VOLUME, kept by the hour.")
    ] = None,
    producer: Annotated[str | None, typer.Option(metavar="ID", help="Who is thought to have caused it.")] = None,
    evidence: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Evidence of it; may be given repeatedly.")
    ] = None,
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Say how a signal is. One that becomes CRITICAL opens an incident, unless the server is set otherwise."""
    from headgate.durable.model import duration
    from headgate.health.model.enums import SignalState, signal_state

    meant = signal_state(state)
    ended = moments.asked(window_end, "--window-end") or moments.now().isoformat()
    began = datetime.fromisoformat(ended) - timedelta(seconds=duration.seconds(window, name="--window"))
    body = {
        "state": meant.value,
        "score": score if score is not None else float(meant is SignalState.OK),
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
    if as_json:
        echo_json(answer)
        return
    now = answer["current"]
    before = f", was {now['previous_state']}" if now["previous_state"] else ""
    incident = f"; incident {now['incident_id']}" if now["incident_id"] else ""
    typer.echo(
        f"{now['state']}  {now['signal_type']} of {now['dataset_urn']}{before}, version {now['version']}{incident}"
    )


@app.command("reset")
@asks
def reset(
    api: Api,
    urn: Urn,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why: the audit keeps it.")],
    as_json: Json = False,
) -> None:
    """Forget all signals of a dataset and end its incidents, so that whoever measures it begins anew."""
    found = api.request("POST", at("datasets", urn, "signals", "reset"), body={"reason": reason})
    if as_json:
        echo_json(found)
        return
    types, ended = ", ".join(found["signal_types"]) or "no signals", ", ".join(found["incident_ids"])
    typer.echo(f"{found['dataset_urn']}: {types} forgotten" + (f"; ended {ended}" if ended else ""))


@app.command("history")
@asks
def history(
    api: Api,
    urn: Urn,
    type: Type,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: Json = False,
) -> None:
    """List the transitions of a signal, the latest last. Without --since: of the last 30 days."""
    query = {"from": moments.asked(since, "--since"), "to": moments.asked(until, "--until")}
    found = api.get(at("datasets", urn, "signals", type, "history"), **query)["snapshots"]
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["state"],
            each["previous_state"] or "",
            ago(each["changed_at"]),
            each["window_end"],
            "" if each["score"] is None else f"{each['score']:g}",
            "came late" if each["late"] else each["failure_signature"],
            each["incident_id"],
        )
        for each in found
    ]
    columns = ("STATE", "WAS", "SINCE", "WINDOW END", "SCORE", "SIGNATURE", "INCIDENT")
    show_table(columns, rows, nothing="it has not changed in this time", key=3)


@app.command("volume")
@asks
def volume(
    api: Api,
    urn: Urn,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=14, help="Of how many days.")] = 7,
    as_json: Json = False,
) -> None:
    """Show how many events a dataset had in each hour, the latest last. A gap: nobody has counted."""
    found = api.get(at("datasets", urn, "volume-history"), days=str(days))
    if as_json:
        echo_json(found)
        return
    # Before the first count there is nothing to see, and after it every gap is.
    known = [each["event_count"] is not None for each in found["points"]]
    shown = found["points"][known.index(True) :] if any(known) else []
    rows = [
        (
            each["hour"],
            "gap" if each["event_count"] is None else each["event_count"],
            each["window_count"],
            "" if each["is_over"] else "goes on",
        )
        for each in shown
    ]
    show_table(("HOUR", "EVENTS", "WINDOWS", ""), rows, nothing=f"nothing was counted in {days} days")


def show_signals(
    signals: Iterable[Mapping[str, Any]], *, nothing: str = "no signal was ever reported", names_datasets: bool = False
) -> None:
    """Print signals, one a line, the worst ones first."""
    worst_first = sorted(signals, key=lambda each: _WORST_FIRST.index(each["state"]))
    rows = [
        (
            each["state"],
            each["signal_type"],
            *((each["dataset_urn"], each["owner_team"]) if names_datasets else ()),
            ago(each.get("breach_start") or each["state_changed_at"]),
            ago(each["last_updated"]),
            each.get("failure_signature"),
            each.get("incident_id"),
            stale_text(each),
        )
        for each in worst_first
    ]
    datasets = ("DATASET", "TEAM") if names_datasets else ()
    columns = ("STATE", "SIGNAL", *datasets, "SINCE", "EVALUATED", "SIGNATURE", "INCIDENT", "")
    show_table(columns, rows, nothing=nothing, key=2 if names_datasets else 1)


def stale_text(signal: Mapping[str, Any]) -> str:
    """Return what is to be said of an answer from memory."""
    return f"as it was {signal['age_seconds']:.0f} s ago: the store cannot be asked" if signal.get("stale") else ""
