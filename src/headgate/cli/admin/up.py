"""`headgate up`: the whole of Headgate with one command."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.session import Config, Home, session_of


def up(  # noqa: PLR0913 - each is a thing that users set
    context: typer.Context,
    home: Home = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve HTTP. [default: 127.0.0.1:8400]")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve gRPC. [default: 127.0.0.1:8401]")
    ] = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:APP", help="Serve this app and run its workflows and activities.")
    ] = None,
    pipelines: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Define the pipelines of this folder.", show_default=False)
    ] = None,
    config: Config = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate in PEM, for both ports.", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its private key in PEM.", show_default=False)
    ] = None,
    behind_proxy: Annotated[
        bool | None,
        typer.Option(
            "--behind-proxy", help="A reverse proxy checks callers: other addresses than loopback are allowed."
        ),
    ] = None,
) -> None:
    """Serve HTTP and gRPC, and run an app's workflows, until a signal asks to stop.

    When everything listens, one line on standard output says where. Logs go to standard error. SIGTERM and
    SIGINT finish what is under way first; a second one does not.
    """
    from headgate import __version__
    from headgate.bootstrap.store import load_app
    from headgate.clock import SystemClock
    from headgate.serve import server
    from headgate.telemetry import Tracing, configure_logs

    flags = {"tls.cert": tls_cert, "tls.key": tls_key, "pipelines.folder": pipelines}
    session = session_of(context)
    settings = session.settings(config, home=home, http=http, grpc=grpc, behind_proxy=behind_proxy, **flags)
    configure_logs(style=settings.log.format, level=settings.log.level)
    loaded = None if app is None else load_app(app)
    traces = settings.telemetry
    tracing = (
        Tracing.start(service_name=traces.service_name, otlp_endpoint=traces.otlp_endpoint)
        if traces.tracing
        else Tracing()
    )
    try:
        server.run(
            settings,
            version=__version__,
            clock=SystemClock(),
            tracing=tracing,
            announce=typer.echo,
            app=loaded,
            environ=session.environ,
        )
    finally:
        tracing.close()
