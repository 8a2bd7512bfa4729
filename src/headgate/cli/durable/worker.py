"""`headgate worker`: runs a worker, and lists the workers of a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, calls_server, command_group, server_command
from headgate.cli.help import HelpGroup
from headgate.cli.options import Resources
from headgate.cli.output import short, show_facts, show_table
from headgate.cli.session import Build, Config, Home, Store, session_of
from headgate.errors import NotFoundError


class WorkerGroup(HelpGroup):
    """Command group that takes options without a verb as those of `run`, which was the only one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click.Context, which typer does not export
        has_verb = not args or not args[0].startswith("-") or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if has_verb else ["run", *args])


app = command_group("Run the workflows and activities of an app in a process of its own.", cls=WorkerGroup)
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
    """List workers, their queues and whether they are alive."""
    yield from _all(api)


@server_command(app, "show")
def show(api: Api, worker: Annotated[str, typer.Argument(metavar="WORKER", help="Worker id.")]) -> Answer:
    """Show a worker with its limits and what is in use."""
    yield from _one(api, worker)


@calls_server
def workers(
    api: Api, worker: Annotated[str | None, typer.Argument(metavar="[WORKER]", help="Show this worker in full.")] = None
) -> Answer:
    """List workers, or show one: the earlier spelling of `worker ls` and `worker show`."""
    yield from _all(api) if worker is None else _one(api, worker)


def _all(api: Api) -> Answer:
    found = api.get("/workers")["workers"]
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


def _one(api: Api, worker: str) -> Answer:
    one = next((each for each in api.get("/workers")["workers"] if each["id"] == worker), None)
    if one is None:
        raise NotFoundError(f"worker {worker}: there is none of this id; see 'headgate worker ls'")
    yield one
    limits, usage = one.pop("limits", None) or {}, one.pop("usage", None) or {}
    show_facts({**one, **{name: _in_use(name, limit, usage) for name, limit in limits.items()}})


def _in_use(name: str, limit: float, usage: Mapping[str, int]) -> str:
    used = usage.get(_USED.get(name, ""))
    return f"{limit:g}" if used is None else f"{limit:g}, in use {used}"


@app.command("run")
def run_worker(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    apps: Annotated[
        list[str],
        typer.Option("--app", metavar="MODULE:APP", help="App whose workflows and activities to run. Repeatable."),
    ],
    home: Home = None,
    store: Store = None,
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
        "store.backend": None if store is None else store.value,
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
        [load_app(each) for each in apps],
        version=__version__,
        clock=SystemClock(),
        queues=queue or ["default"],
        announce=typer.echo,
        environ=session.environ,
    )
    if exit_code:
        raise typer.Exit(exit_code)
