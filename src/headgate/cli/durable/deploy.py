"""`headgate deploy`: lists the builds of apps, and chooses which build takes new executions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.output import show_facts, show_table
from headgate.errors import NotFoundError, UserError

app = command_group("Deploy new code: the builds of apps, what each still holds, and which takes new executions.")

Build = Annotated[str, typer.Argument(metavar="BUILD", help="Build id, as in 'headgate deploy ls'.")]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="App; needed if several have the build.", show_default=False)
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")]


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List the builds of each app: live workers, open executions, and whether a build can be removed."""
    found = api.get("/deployments")["deployments"]
    yield found
    rows = [
        (
            each["app"],
            version["build"],
            _state(version),
            version["live_workers"],
            version["pinned"],
            version["auto"],
            version["fact"],
        )
        for each in found
        for version in each["versions"]
    ]
    titles = ("APP", "BUILD", "STATE", "WORKERS", "PINNED", "AUTO", "")
    show_table(titles, rows, nothing="no builds; start a worker with its app")


def _state(version: dict[str, Any]) -> str:
    percent = version["ramp_percent"]
    return f"{version['state']} {percent} %" if percent else str(version["state"])


@server_command(app, "show")
def show(api: Api, build: Build, app: AppOption = None) -> Answer:
    """Show what a build still holds: open executions by workflow, pinned or not, and its live workers."""
    name = _app_of(api, build, app)
    version = _version(api.get(at("deployments", name)), build)
    yield {"app": name, **version}
    show_facts(
        {
            "app": name,
            "build": build,
            "state": _state(version),
            "live_workers": version["live_workers"],
            "pinned": version["pinned"],
            "auto": version["auto"],
            "verdict": version["fact"],
        }
    )
    rows = [(each["workflow"], each["pinned"], each["auto"], each["oldest"]) for each in version["workflows"]]
    show_table(("WORKFLOW", "PINNED", "AUTO", "OLDEST"), rows, nothing="no open executions")


@server_command(app, "set-current")
def set_current(
    api: Api,
    build: Annotated[
        str | None, typer.Argument(metavar="BUILD", help="Build that takes new executions.", show_default=False)
    ] = None,
    any: Annotated[bool, typer.Option("--any", help="Have every build take new executions.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if no live worker has the build.")] = False,
    app: AppOption = None,
    reason: Reason = "",
) -> Answer:
    """Have a build take new executions, and continue auto-upgraded ones. Pinned executions stay on theirs."""
    if (build is None) != any:
        raise UserError("give a BUILD, or --any")
    if build is None and app is None:
        raise UserError("--any needs --app NAME")
    name = app if app is not None else _app_of(api, str(build), None)
    body = {"build": build, "force": force, "reason": reason}
    answer = api.request("POST", at("deployments", name, "current"), body=body, keeps_null=True)
    yield answer
    if build is None:
        typer.echo(f"app {name}: every build takes new executions")
    else:
        typer.echo(f"app {name}: new executions start on build {build}")


@server_command(app, "ramp")
def ramp(
    api: Api,
    build: Build,
    percent: Annotated[int, typer.Option(min=0, max=100, help="Share of new executions; 0 ends the ramp.")],
    app: AppOption = None,
    reason: Reason = "",
) -> Answer:
    """Give a build a share of new and auto-upgraded executions beside the current build."""
    name = _app_of(api, build, app)
    answer = api.post(at("deployments", name, "ramp"), {"build": build, "percent": percent, "reason": reason})
    yield answer
    typer.echo(f"app {name}: build {build} takes {percent} % of new executions")


@server_command(app, "drain")
def drain(
    api: Api,
    build: Build,
    undo: Annotated[bool, typer.Option("--undo", help="Have it take new executions again.")] = False,
    app: AppOption = None,
    reason: Reason = "",
) -> Answer:
    """Give a build no new executions. It finishes its pinned ones; others continue on other builds."""
    name = _app_of(api, build, app)
    answer = api.post(at("deployments", name, "drain"), {"build": build, "undo": undo, "reason": reason})
    yield answer
    versions = [each for each in answer["versions"] if each["build"] == build]
    typer.echo(f"app {name}: build {build}: {versions[0]['fact'] if versions else 'nothing is left of it'}")


@server_command(app, "move")
def move(
    api: Api,
    build: Build,
    to: Annotated[
        str | None, typer.Option("--to", metavar="BUILD", help="Build to pin them to.", show_default=False)
    ] = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Pin them to none: any build may continue them.")] = False,
    app: AppOption = None,
    reason: Reason = "",
) -> Answer:
    """Move the executions that are pinned to a build. The other code must fit their histories."""
    if (to is None) != unpin:
        raise UserError("give --to BUILD, or --unpin")
    name = _app_of(api, build, app)
    body = {"build": build, "to": to, "reason": reason}
    answer = api.request("POST", at("deployments", name, "move"), body=body, keeps_null=True)
    yield answer
    typer.echo(f"app {name}: {answer['moved']} executions moved from build {build}")


def _app_of(api: Api, build: str, app: str | None) -> str:
    """Return the app that has a build. Raises `NotFoundError` if none has, `UserError` if several have."""
    if app is not None:
        return app
    found = api.get("/deployments")["deployments"]
    apps = [str(each["app"]) for each in found if any(one["build"] == build for one in each["versions"])]
    if not apps:
        known = sorted({one["build"] for each in found for one in each["versions"]})
        raise NotFoundError(f"build {build}: no worker or open execution has it; there is {', '.join(known) or 'none'}")
    if len(apps) > 1:
        raise UserError(f"build {build}: apps {', '.join(sorted(apps))} have it; choose one with --app")
    return apps[0]


def _version(deployment: dict[str, Any], build: str) -> dict[str, Any]:
    found: dict[str, Any] | None = next((each for each in deployment["versions"] if each["build"] == build), None)
    if found is None:
        raise NotFoundError(f"app {deployment['app']}: no worker or open execution has build {build}")
    return found
