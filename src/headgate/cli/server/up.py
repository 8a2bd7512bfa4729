"""`headgate up`: runs the server with its workers and the watchdog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.options import Resources
from headgate.cli.session import Build, Config, Home, Session, Store, session_of
from headgate.errors import SettingsError

if TYPE_CHECKING:
    from headgate.cli.server.app_reload import AppReload
    from headgate.settings import Settings


def up(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    home: Home = None,
    store: Store = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="HTTP address. [default: 127.0.0.1:8400]")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="gRPC address. [default: 127.0.0.1:8401]")
    ] = None,
    app: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:APP", help="App to serve, with its workflows and activities. Repeatable."),
    ] = None,
    build: Build = None,
    pipelines: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder with pipeline definitions to load.", show_default=False)
    ] = None,
    watch: Annotated[
        bool | None,
        typer.Option("--watch", help="Reload the folder with pipeline definitions when a file changes."),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: load changed code of the apps and changed definitions. Running activities finish.",
        ),
    ] = False,
    resources: Resources = None,
    processes: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Processes that serve the ports. [default: 1]", show_default=False),
    ] = None,
    config: Config = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="TLS certificate (PEM) for both ports.", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Private key (PEM) of the certificate.", show_default=False)
    ] = None,
    behind_proxy: Annotated[
        bool | None,
        typer.Option("--behind-proxy", help="Allow non-loopback addresses: a reverse proxy authenticates callers."),
    ] = None,
) -> None:
    """Run the server: HTTP, gRPC, pipelines and the workflows of an app.

    Prints one line with its addresses when it is ready. Logs go to standard error. SIGTERM or SIGINT finishes
    requests in progress; a second signal stops at once. SIGHUP reloads the folder with pipeline definitions.
    """
    from msgspec.structs import replace

    from headgate import __version__
    from headgate.bootstrap.store import load_app, with_app_folder
    from headgate.bootstrap.tracing import open_tracing
    from headgate.clock import SystemClock
    from headgate.serve import server
    from headgate.telemetry import configure_logs

    flags = {
        "build": build,
        "store.backend": None if store is None else store.value,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "pipelines.folder": pipelines,
        "pipelines.watch": watch or reload or None,
        "tasks.resources": resources,
        "serve.processes": processes,
    }
    session = session_of(context)
    settings = session.settings(config, home=home, http=http, grpc=grpc, behind_proxy=behind_proxy, **flags)
    configure_logs(style=settings.log.format, level=settings.log.level)
    loaded, reloading = [], None
    if reload:
        reloading = _open_reload(settings, app or [], config, resources, build, session)
        folders = (*settings.fanout.folders, str(Path.cwd()))
        settings = replace(settings, fanout=replace(settings.fanout, folders=folders))
    else:
        loaded = [load_app(each) for each in app or ()]
        for each in app or ():
            settings = with_app_folder(settings, each)

    def announce(line: str) -> None:
        if reloading is None:
            typer.echo(line)
        else:
            # Ready is what can run the app.
            reloading.start(lambda: typer.echo(line))

    tracing = open_tracing(settings.telemetry)
    try:
        exit_code = server.run(
            settings,
            version=__version__,
            clock=SystemClock(),
            tracing=tracing,
            announce=announce,
            apps=loaded,
            environ=session.environ,
        )
    finally:
        if reloading is not None:
            reloading.stop(settings.drain_seconds / 2)
        tracing.close()
    if exit_code:
        raise typer.Exit(exit_code)


def _open_reload(
    settings: Settings, apps: list[str], config: Path | None, resources: str | None, build: str | None, session: Session
) -> AppReload | None:
    """Return the worker of apps whose code is reloaded, or None without apps."""
    from headgate.cli.server.app_reload import AppReload, check_reload

    check_reload(settings)
    if build is not None:
        raise SettingsError("--build with --reload: each change is a build of its own; leave one of them out")
    given = {"--home": settings.home, "--store": settings.store.backend, "--config": config, "--resources": resources}
    options = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    return AppReload(apps, options, Path.cwd(), session.environ) if apps else None
