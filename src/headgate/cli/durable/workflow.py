"""`headgate workflow`, `headgate workers` and `headgate worker`: lists workflows and workers, and runs a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, calls_server, command_group, server_command
from headgate.cli.options import Resources
from headgate.cli.output import short, show_facts, show_table
from headgate.cli.session import Build, Config, Home, session_of
from headgate.errors import NotFoundError

app = command_group("List workflows.")
# The part of a worker's usage that each of its limits bounds.
_USED: Final = {
    "threads_max": "in_threads",
    "async_max": "in_async",
    "isolated_max": "in_isolated",
    "cached_max": "cached",
    "prefetch_max": "queued",
}


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List the workflows of the server's app and of other workers."""
    found = api.get("/workflows")["workflows"]
    yield found
    rows = [
        (
            each["name"],
            each["live_workers"],
            "" if each["loaded"] else "not loaded by the server",
            each.get("description"),
        )
        for each in found
    ]
    show_table(
        ("WORKFLOW", "LIVE WORKERS", "", "DESCRIPTION"), rows, nothing="no workflows; start the server with --app"
    )


@server_command(app, "patches")
def patches(api: Api) -> Answer:
    """List the patches of open executions, to see which code can be removed.

    The old branch of a patch can go when no execution is without its mark; the call of hg.deprecate_patch when none is
    with the mark of hg.patched.
    """
    found = api.get("/workflows/patches")["patches"]
    yield found
    rows = [
        (
            each["workflow"],
            each["patch"],
            each["without_mark"],
            each["with_mark"],
            each["with_deprecated_mark"],
            each.get("oldest_without_mark") or each.get("oldest_with_mark"),
        )
        for each in found
    ]
    titles = ("WORKFLOW", "PATCH", "WITHOUT", "PATCHED", "DEPRECATED", "WAIT FOR")
    show_table(titles, rows, nothing="no open execution has marked a patch")


@calls_server
def workers_ls(
    api: Api, worker: Annotated[str | None, typer.Argument(metavar="[WORKER]", help="Show this worker in full.")] = None
) -> Answer:
    """List workers, their queues and whether they are alive; or show one with its limits and what is in use."""
    found = api.get("/workers")["workers"]
    if worker is not None:
        one = next((each for each in found if each["id"] == worker), None)
        if one is None:
            raise NotFoundError(f"worker {worker}: there is none of this id; see 'headgate workers'")
        yield one
        limits, usage = one.pop("limits", None) or {}, one.pop("usage", None) or {}
        show_facts({**one, **{name: _in_use(name, limit, usage) for name, limit in limits.items()}})
        return
    yield found
    rows = [
        (
            each["id"],
            "alive" if each["alive"] else "dead",
            each["app"],
            each["build"],
            f"{each['host']} {each['pid']}",
            each["queues"],
            short(each["started_at"]),
        )
        for each in found
    ]
    show_table(("WORKER", "STATUS", "APP", "BUILD", "HOST PID", "QUEUES", "STARTED"), rows, nothing="no workers")


def _in_use(name: str, limit: float, usage: Mapping[str, int]) -> str:
    used = usage.get(_USED.get(name, ""))
    return f"{limit:g}" if used is None else f"{limit:g}, in use {used}"


def worker(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    app: Annotated[
        list[str], typer.Option(metavar="MODULE:APP", help="App whose workflows and activities to run. Repeatable.")
    ],
    home: Home = None,
    config: Config = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Activity queue to serve. Repeatable. [default: default]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Activities in threads at once. [worker.threads_max]")] = None,
    async_slots: Annotated[
        int | None, typer.Option("--async", help="Async activities at once. [worker.async_max]")
    ] = None,
    isolated: Annotated[int | None, typer.Option(help="Isolated activities at once. [worker.isolated_max]")] = None,
    cached: Annotated[int | None, typer.Option(help="Executions kept in memory. [worker.cached_max]")] = None,
    prefetch: Annotated[int | None, typer.Option(help="Activities claimed ahead. [worker.prefetch_max]")] = None,
    poll_seconds: Annotated[
        float | None, typer.Option(help="Longest time between two polls. [worker.poll_seconds]")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics on this address. [worker.metrics]"),
    ] = None,
    build: Build = None,
    resources: Resources = None,
) -> None:
    """Run the workflows and activities of an app in a process of its own, on the same store as the server.

    Prints one line when it is ready. SIGTERM finishes running activities and releases the rest. Options without a value
    here are the settings in brackets.
    """
    from headgate import __version__
    from headgate.bootstrap.store import load_app
    from headgate.clock import SystemClock
    from headgate.serve.worker_process import run
    from headgate.telemetry import configure_logs

    flags = {
        "build": build,
        "worker.threads_max": threads,
        "worker.async_max": async_slots,
        "worker.isolated_max": isolated,
        "worker.cached_max": cached,
        "worker.prefetch_max": prefetch,
        "worker.poll_seconds": poll_seconds,
        "worker.metrics": metrics,
        "tasks.resources": resources,
    }
    session = session_of(context)
    settings = session.settings(config, home=home, **flags)
    configure_logs(style=settings.log.format, level=settings.log.level)
    exit_code = run(
        settings,
        [load_app(each) for each in app],
        version=__version__,
        clock=SystemClock(),
        queues=queue or ["default"],
        announce=typer.echo,
        environ=session.environ,
    )
    if exit_code:
        raise typer.Exit(exit_code)
