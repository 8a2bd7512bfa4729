"""`headgate region`: shows and controls the failover between two regions, one of which writes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.output import show_facts, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import ago

if TYPE_CHECKING:
    from headgate.health.regions.failover import FailoverDecision
    from headgate.settings import Settings
    from headgate.store.port import Store

app = typer.Typer(
    help="Control failover between two regions, one of which writes at a time.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CHECK_SECONDS: Final = 30.0
_MS: Final = 1000


@app.command("show")
def show(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Show the writer region, its lease and the reports of the observers."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.model.timestamps import instant
    from headgate.health.regions.agent import read_reports
    from headgate.health.regions.failover import FailoverPolicy, verdict
    from headgate.health.regions.regions import WriterLease

    clock = SystemClock()
    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        state = open_failover(settings, authority, clock).state()
        lease, reports = WriterLease(authority, clock).read(), read_reports(authority)
    now_ms = round(_MS * clock.seconds())
    policy = FailoverPolicy()
    verdicts = {name: verdict(each, policy, now_ms).value for name, each in reports.items()}
    if as_json:
        echo_json({"state": state, "lease": lease, "reports": reports, "verdicts": verdicts})
        return
    show_facts(
        {
            "writer": state.active,
            "home": state.home,
            "phase": state.phase.value if state.target is None else f"{state.phase.value} to {state.target}",
            "failover reason": state.latched_for,
            "failovers": state.failovers,
            "lease": None if lease is None else f"{lease.region}, epoch {lease.epoch}, to {instant(lease.expires_ms)}",
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
    """Show what would happen if the writer region were down now, without doing it."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.regions.agent import read_reports

    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        decision = open_failover(settings, authority, SystemClock()).drill(read_reports(authority))
    _show_decision(decision, as_json=as_json)


@app.command("failback")
def failback(
    context: typer.Context,
    lag_seconds: Annotated[float, typer.Option("--lag-seconds", min=0, help="Replication lag of the home region.")],
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
        decision = failover.fail_back(read_reports(authority), lag_seconds)
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


def _show_decision(decision: FailoverDecision, *, as_json: bool) -> None:
    if as_json:
        answer: dict[str, Any] = {
            "writer": decision.state.active,
            "move_to": decision.move_to,
            "reason": decision.reason,
        }
        echo_json(answer)
    else:
        target = "" if decision.move_to is None else f", moving to {decision.move_to}"
        typer.echo(f"{decision.state.phase.value}  writer {decision.state.active}{target}: {decision.reason}")
