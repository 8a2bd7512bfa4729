"""`headgate region`: shows and controls the failover between two regions, one of which writes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.commands import command_group
from headgate.cli.output import show_facts, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import ago
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.health.regions.failover import FailoverDecision, FailoverState
    from headgate.settings import Settings
    from headgate.store.port import Store

app = command_group("Control failover between two regions, one of which writes at a time.")

_CHECK_SECONDS: Final = 30.0
_MS: Final = 1000


@app.command("show")
def show(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Show the writer region, its lease, the replication lag, the last failover and the reports of the observers."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.model.timestamps import instant
    from headgate.health.regions.agent import lag_seconds, read_replication, read_reports
    from headgate.health.regions.failover import FailoverPolicy, verdict
    from headgate.health.regions.regions import WriterLease

    clock = SystemClock()
    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        state = open_failover(settings, authority, clock).state()
        lease, reports = WriterLease(authority, clock).read(), read_reports(authority)
        replication = read_replication(authority)
    now_ms = round(_MS * clock.seconds())
    policy = FailoverPolicy()
    verdicts = {name: verdict(each, policy, now_ms).value for name, each in reports.items()}
    if as_json:
        echo_json(
            {
                "state": state,
                "lease": lease,
                "reports": reports,
                "verdicts": verdicts,
                "replication": replication,
                "rpo_ms": state.lost_ms,
                "rto_ms": state.recovery_ms,
            }
        )
        return
    show_facts(
        {
            "writer": state.active,
            "home": state.home,
            "phase": state.phase.value if state.target is None else f"{state.phase.value} to {state.target}",
            "failover reason": state.latched_for,
            "failovers": state.failovers,
            "lease": None if lease is None else f"{lease.region}, epoch {lease.epoch}, to {instant(lease.expires_ms)}",
            **{
                f"lag of {region}": f"{lag_seconds(each):.1f} s behind {each.writer}, read {ago(instant(each.at_ms))}"
                for region, each in sorted(replication.items())
                if each.writer == state.active
            },
            "RPO of the last failover": _seconds(state.lost_ms),
            "RTO of the last failover": _seconds(state.recovery_ms),
        }
    )
    rows = [
        (region, verdicts[region], observer, each.failures, ago(instant(each.at_ms)))
        for region, observers in sorted(reports.items())
        for observer, each in sorted(observers.items())
    ]
    typer.echo()
    show_table(("REGION", "VERDICT", "OBSERVER", "FAILURES", "CHECKED"), rows, nothing="no reports yet")


@app.command("watch")
def watch(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Check once and exit.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Check both regions every 30 seconds, and fail over when a quorum of observers finds the writer down.

    The servers of both regions do this themselves; run it in a third location to keep a quorum without one region.
    """
    from headgate.bootstrap.health import open_agent
    from headgate.clock import SystemClock
    from headgate.telemetry import configure_logs

    clock = SystemClock()
    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    with _authority(settings) as authority:
        agent = open_agent(settings, authority, clock)
        while True:
            _show_decision(agent.evaluate(), as_json=as_json)
            if once:
                return
            clock.sleep(_CHECK_SECONDS)


@app.command("drill")
def drill(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Show what would happen if the writer region were down now, with its RPO and RTO, without doing it."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.regions.agent import PROBE_SECONDS, read_replication, read_reports

    clock = SystemClock()
    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        failover = open_failover(settings, authority, clock)
        decision = failover.drill(read_reports(authority))
        received = None if decision.move_to is None else read_replication(authority).get(decision.move_to)
    rto_ms = None if decision.move_to is None else round(_MS * failover.recovery_seconds_max(PROBE_SECONDS))
    rpo_ms = None if received is None else max(0, round(_MS * clock.seconds()) - received.pulse_at_ms)
    _show_decision(decision, as_json=as_json, rpo_ms=rpo_ms, rto_ms=rto_ms)


@app.command("failback")
def failback(
    context: typer.Context,
    lag_seconds: Annotated[
        float | None,
        typer.Option(
            "--lag-seconds", min=0, help="Replication lag of the home region. [default: measured]", show_default=False
        ),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Fail back to the home region if it is healthy and has caught up. The exit code is 3 if it is not."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.regions.agent import read_reports

    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        failover = open_failover(settings, authority, SystemClock())
        lag = _measured_lag(authority, failover.state()) if lag_seconds is None else lag_seconds
        decision = failover.fail_back(read_reports(authority), lag)
    _show_decision(decision, as_json=as_json)


@app.command("merge")
def merge(
    context: typer.Context,
    other: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file of the other region.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Copy newer rows of another region into this store, by epoch, window, version and region.

    The merge is idempotent and commutative: run in both regions, both end with the same rows.
    """
    from headgate.bootstrap.health import merge_region
    from headgate.clock import SystemClock

    session = session_of(context)
    merged = merge_region(session.settings(config, home=home), session.settings(other), SystemClock())
    if as_json:
        echo_json({"taken": merged})
    else:
        rows = [(name, count) for name, count in sorted(merged.items())]
        show_table(("TABLE", "ROWS COPIED"), rows, nothing="no newer rows")


@contextmanager
def _authority(settings: Settings) -> Iterator[Store]:
    from headgate.bootstrap.store import open_authority
    from headgate.clock import SystemClock

    with closing(open_authority(settings, SystemClock())) as authority:
        yield authority


def _measured_lag(authority: Store, state: FailoverState) -> float:
    """Return how far the home region is behind the writer. Raises `UserError` if it has not reported that."""
    from headgate.health.regions.agent import lag_seconds, read_replication

    report = read_replication(authority).get(state.home)
    if state.active == state.home:
        return 0.0
    if report is None or report.writer != state.active:
        raise UserError(
            f"region {state.home}: no pulse of {state.active} has arrived there; "
            "start its server, or give --lag-seconds"
        )
    return lag_seconds(report)


def _seconds(value_ms: int | None) -> str:
    return "" if value_ms is None else f"{value_ms / _MS:.1f} s"


def _show_decision(
    decision: FailoverDecision, *, as_json: bool, rpo_ms: int | None = None, rto_ms: int | None = None
) -> None:
    if as_json:
        answer: dict[str, Any] = {
            "writer": decision.state.active,
            "move_to": decision.move_to,
            "reason": decision.reason,
        }
        measured = {"rpo_ms": rpo_ms, "rto_ms": rto_ms}
        echo_json({**answer, **{name: value for name, value in measured.items() if value is not None}})
    else:
        target = "" if decision.move_to is None else f", moving to {decision.move_to}"
        typer.echo(f"{decision.state.phase.value}  writer {decision.state.active}{target}: {decision.reason}")
        if rto_ms is not None:
            lost = "unknown, as no pulse has been replicated yet" if rpo_ms is None else f"at most {_seconds(rpo_ms)}"
            typer.echo(f"RPO {lost}; RTO at most {_seconds(rto_ms)} after the outage began, and the move command")
