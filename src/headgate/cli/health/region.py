"""`headgate region`: which of two regions writes the health of datasets, who says it is well, and moving the writer."""

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

app = typer.Typer(help="Regions: one of two writes at a time.", no_args_is_help=True, rich_markup_mode=None)

_WATCH_SECONDS: Final = 30.0
_MS: Final = 1000


@app.command("show")
def show(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Show which region writes, until when, and what each observer says of both."""
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
    verdicts = {name: verdict(said, policy, now_ms).value for name, said in reports.items()}
    if as_json:
        echo_json({"state": state, "lease": lease, "reports": reports, "verdicts": verdicts})
        return
    show_facts(
        {
            "writer": state.active,
            "home": state.home,
            "phase": state.phase.value if state.target is None else f"{state.phase.value} to {state.target}",
            "failed over for": state.latched_for,
            "failovers": state.failovers,
            "lease": None if lease is None else f"{lease.region}, epoch {lease.epoch}, to {instant(lease.expires_ms)}",
        }
    )
    rows = [
        (region, verdicts[region], observer, each.failures, ago(instant(each.at_ms)))
        for region, said in sorted(reports.items())
        for observer, each in sorted(said.items())
    ]
    typer.echo()
    show_table(("REGION", "TOGETHER", "OBSERVER", "FAILURES", "LOOKED"), rows, nothing="no observer has reported yet")


@app.command("watch")
def watch(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Look at both regions every half minute, and fail over once enough observers agree that the writer is down.

    Servers of the regions do so by themselves; this is for a third place, so that there is a quorum without one region.
    """
    from headgate.bootstrap.health import open_agent
    from headgate.clock import SystemClock
    from headgate.telemetry import configure_logs

    clock = SystemClock()
    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    with _authority(settings) as authority:
        duty = open_agent(settings, authority, clock)
        while True:
            _say(duty.look(), as_json=as_json)
            if once:
                return
            clock.sleep(_WATCH_SECONDS)


@app.command("drill")
def drill(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Say what would be done if the writer's region were down now. Nothing is."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.regions.agent import read_reports

    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        decision = open_failover(settings, authority, SystemClock()).drill(read_reports(authority))
    _say(decision, as_json=as_json)


@app.command("failback")
def failback(
    context: typer.Context,
    lag_seconds: Annotated[
        float, typer.Option("--lag-seconds", min=0, help="How far the home region is behind, as replication says.")
    ],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Let the home region write again, if it is well and has caught up. The exit code is 3 if it may not yet."""
    from headgate.bootstrap.health import open_failover
    from headgate.clock import SystemClock
    from headgate.health.regions.agent import read_reports

    settings = session_of(context).settings(config, home=home)
    with _authority(settings) as authority:
        failover = open_failover(settings, authority, SystemClock())
        decision = failover.fail_back(read_reports(authority), lag_seconds)
    _say(decision, as_json=as_json)


@app.command("merge")
def merge(
    context: typer.Context,
    other: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file of the other region.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take rows of another region that are newer into this one's store: by epoch, window, version and region.

    May be run in both regions, in any order and any number of times: both end with the same rows.
    """
    from headgate.bootstrap.health import merge_region
    from headgate.clock import SystemClock

    session = session_of(context)
    taken = merge_region(session.settings(config, home=home), session.settings(other), SystemClock())
    if as_json:
        echo_json({"taken": taken})
    else:
        rows = [(name, count) for name, count in sorted(taken.items())]
        show_table(("TABLE", "TAKEN OVER"), rows, nothing="nothing there is newer")


@contextmanager
def _authority(settings: Settings) -> Iterator[Store]:
    from headgate.bootstrap.store import open_authority
    from headgate.clock import SystemClock

    with closing(open_authority(settings, SystemClock())) as authority:
        yield authority


def _say(decision: FailoverDecision, *, as_json: bool) -> None:
    if as_json:
        said: dict[str, Any] = {"writer": decision.state.active, "move_to": decision.move_to, "reason": decision.reason}
        echo_json(said)
    else:
        moved = "" if decision.move_to is None else f", to {decision.move_to}"
        typer.echo(f"{decision.state.phase.value}  {decision.state.active} writes{moved}: {decision.reason}")
