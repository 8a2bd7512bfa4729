"""`headgate demo`: a small shop's data platform that lives, breaks and recovers in front of the reader."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from headgate.cli.session import session_of

HOME: Final = Path(".headgate/demo")
ORDERS: Final = 2_000
CHAPTER_SECONDS: Final = 12.0


def demo(
    context: typer.Context,
    home: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the demo. [default: .headgate/demo]")
    ] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="HTTP address.")] = "127.0.0.1:8400",
    once: Annotated[
        bool, typer.Option("--once", help="Run the story without pauses, check every fact of it, and exit.")
    ] = False,
) -> None:
    """Run a demo: a shop whose deployment goes wrong, is noticed, contained and fixed.

    Prints the address of the pages and what is about to happen. An interrupted demo goes on where it was; delete its
    folder to start anew.
    """
    from headgate.clock import SystemClock
    from headgate.demo.server import DemoServer
    from headgate.demo.shop import Shop
    from headgate.demo.story import Story

    clock = SystemClock()
    folder = (home or HOME).absolute()
    state, project = folder / "home", folder / "shop"
    for each in (state, project):
        each.mkdir(parents=True, exist_ok=True)
    server = DemoServer(state, project, clock, http=http, environ=session_of(context).environ)
    Shop.write(project, ORDERS)
    api = server.start()
    shop = Shop(project, api, clock, ORDERS)
    story = Story(
        shop,
        folder,
        say=typer.echo,
        pause=(lambda: None) if once else (lambda: clock.sleep(CHAPTER_SECONDS)),
        approves=once,
    )
    # Stopped like by Ctrl-C, so that the server does not stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not once:
            _welcome(api.url)
        story.tell()
        if once:
            typer.echo("the story is over: every fact of it came true")
            return
        _goodbye(api.url)
        while server.is_running():
            story.traffic()
            clock.sleep(1)
    except KeyboardInterrupt:
        typer.echo("stopping")
    finally:
        with suppress(KeyboardInterrupt):
            server.stop()


def _welcome(url: str) -> None:
    typer.echo(
        f"Headgate is ready: open {url}/ui\n\n"
        "A small shop runs on it, with a period every minute. In the next minutes a deployment drops a\n"
        "field. Watch it being noticed, contained and fixed. Stop with Ctrl-C.\n"
    )


def _goodbye(url: str) -> None:
    typer.echo(
        "\nThe shop goes on, a period a minute. What to try next:\n"
        f"  approve the prices    {url}/ui/executions/publish-prices  ('Send a signal')\n"
        "  ask why it waited     headgate period why revenue-report\n"
        "  hold a pipeline       headgate pipeline pause orders-load --reason 'stock taking'\n"
        "  your own pipeline     headgate init my-project, then docs/tutorial.md\n"
        "Give commands the folder of the demo: --home .headgate/demo/home"
    )
