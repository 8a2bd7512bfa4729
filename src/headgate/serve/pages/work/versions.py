"""Versions on the worker page: the builds of each app, what each still holds, and which takes new executions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.serve.pages.actions import Action, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment
from headgate.serve.pages.labels import command


class VersionRow(Struct, frozen=True):
    """One build, and what can be done with it."""

    app: str
    version: Mapping[str, Any]
    actions: tuple[Action, ...]


class VersionTable(Struct, frozen=True):
    """The builds of all apps; `missing` is why the caller does not see them."""

    rows: list[VersionRow]
    # Apps with a current build, each with the action that lets any build take new executions.
    apps: list[tuple[str, str, Action]]
    missing: str


def version_table(api: ApiCaller) -> VersionTable:
    """Return the builds of all apps, with their actions."""
    found: Section = api.section("GET /deployments")
    deployments = found.items("deployments")
    rows = [
        VersionRow(each["app"], version, tuple(_actions(api, each, version)))
        for each in deployments
        for version in each["versions"]
    ]
    apps = [(each["app"], each["current"], _any_build(api, each["app"])) for each in deployments if each["current"]]
    return VersionTable(rows, apps, found.missing)


def _actions(api: ApiCaller, deployment: Mapping[str, Any], version: Mapping[str, Any]) -> list[Action]:
    app, build = deployment["app"], version["build"]
    found = []
    if version["live_workers"] and version["state"] != "CURRENT":
        found.append(
            _action(
                api,
                app,
                "current",
                {"build": build},
                label="Set current",
                sentence="New executions start on this build, and auto-upgraded ones continue on it. Pinned ones stay.",
                cli=command("deploy", "set-current", build, "--app", app),
                done=f"New executions start on build {build}.",
            )
        )
    if version["state"] in ("ACTIVE", "RAMPING"):
        found.append(
            _action(
                api,
                app,
                "drain",
                {"build": build},
                label="Drain",
                sentence="The build takes no new executions. It finishes its pinned ones; others continue elsewhere.",
                cli=command("deploy", "drain", build, "--app", app),
                done=f"Build {build} takes no new executions.",
            )
        )
    if not deployment["current"] and version["live_workers"] and version["state"] in ("DRAINING", "DRAINED"):
        found.append(
            _action(
                api,
                app,
                "drain",
                {"build": build, "undo": True},
                label="Undo drain",
                sentence="The build takes new executions again.",
                cli=command("deploy", "drain", build, "--undo", "--app", app),
                done=f"Build {build} takes new executions.",
            )
        )
    return found


def _any_build(api: ApiCaller, app: str) -> Action:
    return _action(
        api,
        app,
        "current",
        {"build": None},
        label="Any build",
        sentence="No build is the current one: new executions start on any build with a live worker.",
        cli=command("deploy", "set-current", "--any", "--app", app),
        done="New executions start on any build.",
    )


def _action(
    api: ApiCaller,
    app: str,
    verb: str,
    body: Mapping[str, Any],
    *,
    label: str,
    sentence: str,
    cli: str,
    done: str,
) -> Action:
    action = Action(
        label=label,
        sentence=sentence,
        path=f"/deployments/{segment(app)}/{verb}",
        body=body,
        cli=f"{cli} --reason {{reason}}",
        tone=Tone.PLAIN,
        done=done,
    )
    return allowed(api, Permission.EXECUTION_WRITE, action)
