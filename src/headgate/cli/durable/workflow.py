"""`headgate workflow`: lists workflows and the patches that open executions need."""

from __future__ import annotations

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.output import show_table

app = command_group("List workflows.")


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
    """List the patches of open executions and of the code of live workers, to see which code can be removed.

    Of the code, patches whose name is a literal are found. The old branch of a patch can go when no execution is
    without its mark; the call of hg.deprecate_patch when none is with the mark of hg.patched.
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
    show_table(titles, rows, nothing="no open execution has marked a patch, and no live worker has one")
