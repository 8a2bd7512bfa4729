"""`headgate fanout` commands that inspect and repair: stuck, failures, errors, redrive, heal, skip, tune, …"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_action, calls_server
from headgate.cli.fanout.submit import tolerated, user_name
from headgate.cli.fanout.views import FanoutId, error_line, error_text, show_more
from headgate.cli.options import DryRun, Limit
from headgate.cli.output import counted, short, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import duration_text
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

Chunks = Annotated[list[str] | None, typer.Argument(metavar="[CHUNK]...", help="Chunk ids.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Recorded in the events of the fan-out.")]
_NAMED_MAX: Final = 20


@calls_server
def stuck(
    api: Api,
    id: FanoutId,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Minimum running time, or time without a worker. [default: its timeout or 10 times p99; 1m]",
            show_default=False,
        ),
    ] = None,
    limit: Limit = 100,
) -> Answer:
    """List stuck chunks and why they are stuck."""
    found = api.get(at("fanouts", id, "stuck"), older_than=older_than, limit=min(limit, 1000))["stuck"]
    yield found
    rows = [(each["chunk_id"], each["kind"], duration_text(each["seconds"]), each["reason"]) for each in found]
    show_table(("CHUNK", "KIND", "FOR", "REASON"), rows, nothing="no stuck chunks")


@calls_server
def failures(api: Api, id: FanoutId, limit: Limit = 100) -> Answer:
    """List failed chunks, and failed items of completed chunks, with their errors."""
    path = at("fanouts", id, "failures")
    found, total = api.listed(path, "chunks", limit)
    counts = api.get(at("fanouts", id))["counts"]
    failed_items = counts["items_failed"] - counts["items_dead"]
    done = list(api.entries(path, "chunks", limit, items="true")) if failed_items else []
    yield {"chunks": found, "total": total, "chunks_with_failed_items": done}
    if not found and not done:
        typer.echo("no failures")
    if found:
        rows = [
            (
                each["chunk_id"],
                each["disposition"],
                each["items"],
                each["attempt"],
                "" if each.get("duration_ms") is None else duration_text(each["duration_ms"] / 1000),
                short(each.get("completed_at")),
                error_text(each),
            )
            for each in found
        ]
        show_table(("CHUNK", "", "ITEMS", "ATTEMPTS", "RAN", "FAILED", "ERROR"), rows, nothing="")
        show_more(len(found), total, "failed chunks")
    items = [
        (each["chunk_id"], index, error_line(error))
        for each in done
        for index, error in each.get("item_errors", {}).items()
    ]
    if items:
        show_table(("CHUNK", "ITEM", "ERROR"), items[:limit], nothing="")
        show_more(min(limit, len(items)), failed_items, "failed items of completed chunks")
        typer.echo(
            f"list all failed items with 'headgate fanout items {id}', "
            f"run them again with 'headgate fanout redrive {id} --failed'"
        )


@calls_server
def items(
    api: Api,
    id: FanoutId,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Items with this error fingerprint; see 'fanout errors'.")
    ] = None,
    error_class: Annotated[str | None, typer.Option(metavar="CLASS", help="Items with this error class.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List failed items with their errors. All items of a failed chunk are one line."""
    query = {"fingerprint": fingerprint, "error_class": error_class}
    found, total = api.listed(at("fanouts", id, "items"), "items", limit, **query)
    yield {"items": found, "total": total}
    rows = [
        (_indexes(each), each["chunk_id"], each["fingerprint"], error_text({**each, "error": each["message"]}))
        for each in found
    ]
    show_table(("ITEM", "CHUNK", "FINGERPRINT", "ERROR"), rows, nothing="no failed items")
    show_more(sum(each["count"] for each in found), total, "failed items")


def _indexes(each: dict[str, Any]) -> str:
    first, count = each["index"], each["count"]
    return str(first) if count == 1 else f"{first} to {first + count - 1}"


@calls_server
def errors(api: Api, id: FanoutId, limit: Limit = 20) -> Answer:
    """Group the errors of chunks and items by fingerprint, most frequent first."""
    found = api.get(at("fanouts", id, "errors"), limit=min(limit, 1000))
    yield found
    rows = [
        (
            each["fingerprint"],
            each["count"],
            each["items"],
            error_line(f"{each['error_class']}: {each['message']}"),
            short(each["last_seen"]),
            each["chunk_ids"],
        )
        for each in found["groups"]
    ]
    show_table(("FINGERPRINT", "COUNT", "ITEMS", "ERROR", "LAST", "CHUNKS"), rows, nothing="no errors")
    if found["others"]:
        typer.echo(f"and {found['others']} others")
    if rows:
        typer.echo(f"redrive one group with 'headgate fanout redrive {id} --fingerprint FINGERPRINT'")


@calls_server
def redrive(  # noqa: PLR0913 - each is an option
    api: Api,
    id: FanoutId,
    chunks: Chunks = None,
    item: Annotated[
        list[int] | None,
        typer.Option("--item", metavar="N", min=0, help="Failed item; see 'fanout items'. Repeatable."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed chunks and items.")] = False,
    all: Annotated[bool, typer.Option("--all", help="All failed chunks and items, and cancelled chunks.")] = False,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Those with this error fingerprint; see 'fanout errors'.")
    ] = None,
    error_class: Annotated[str | None, typer.Option(metavar="CLASS", help="Those with this error class.")] = None,
    older_than: Annotated[str | None, typer.Option(metavar="DURATION", help="Chunks that failed longer ago.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Chunks to start per second.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of chunks.")] = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run failed chunks again with all attempts, or only the failed items of completed ones.

    A finished fan-out is reopened.
    """
    if not any((chunks, item, failed, all, fingerprint, error_class, older_than)):
        raise UserError(
            "redrive: select chunks by id, --item, --failed, --all, --fingerprint, --error-class or --older-than"
        )
    body = {
        "chunk_ids": chunks or [],
        "items": item or [],
        "failed": failed,
        "all": all,
        "fingerprint": fingerprint,
        "error_class": error_class,
        "older_than": older_than,
        "rate_per_second": rate,
        "limit": limit,
        "reason": reason,
        "by": user_name(),
        "dry_run": dry_run,
    }
    found = api.post(at("fanouts", id, "redrive"), body)
    if as_json:
        echo_json(found)
    else:
        _show_redriven(id, found, dry_run=dry_run)
    if found["refused"]:
        raise typer.Exit(ExitCode.FAILED)


def _show_redriven(id: str, found: dict[str, Any], *, dry_run: bool) -> None:
    verb = "would be redriven" if dry_run else "redriven"
    typer.echo(f"{id}: {counted(found['redriven'], 'chunk')} {verb}")
    if found["rerun_chunks"]:
        typer.echo(f"{found['rerun_chunks']} of them only with their failed items, {found['rerun_items']} in all")
    _show_chunk_ids(found["ids"])
    notes = {"already": "already pending or running", "overtaken": "changed concurrently"}
    for name, note in notes.items():
        if found[name]:
            typer.echo(f"{found[name]} {note}")
    for chunk_id, why in list(found["refused"].items())[:_NAMED_MAX]:
        typer.echo(f"refused: {chunk_id}: {why}")
    if found["is_cut_off"]:
        typer.echo("more chunks match; raise --limit")


@calls_server
def heal(api: Api, id: FanoutId, dry_run: DryRun = False) -> Answer:
    """Apply the healing policy to dead chunks now."""
    found = api.post(at("fanouts", id, "heal"), {"dry_run": dry_run})
    yield found
    verb = "would be healed" if dry_run else "healed"
    typer.echo(f"{id}: {counted(found['healed'], 'dead chunk')} {verb}, {found['left']} unchanged")
    for each in found["treated"][:_NAMED_MAX]:
        typer.echo(f"{each['chunk_id']}: {each['said']}")
    for each in found["refused"][:_NAMED_MAX]:
        typer.echo(f"refused: {each['chunk_id']}: {each['said']}")
    if found["left"] and not found["healed"]:
        typer.echo(
            f"the policy does not heal them; redrive them with 'headgate fanout redrive {id} --failed', "
            f"or enable healing with 'headgate fanout tune {id} --heal-max 1'"
        )


@calls_server
def skip(
    api: Api,
    id: FanoutId,
    chunks: Chunks = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed chunks.")] = False,
    reason: Reason = None,
) -> Answer:
    """Skip pending or failed chunks."""
    body = {"chunk_ids": chunks or [], "failed": failed, "reason": reason, "by": user_name()}
    found = api.post(at("fanouts", id, "skip"), body)
    yield found
    typer.echo(f"{id}: {counted(len(found['skipped']), 'chunk')} skipped")
    if found["left"]:
        typer.echo("not skipped, because they are running or completed:")
        _show_chunk_ids(found["left"])


@calls_server
def tune(  # noqa: PLR0913 - each is an option
    api: Api,
    id: FanoutId,
    priority: Annotated[int | None, typer.Option(metavar="1-9", help="Share of the workers.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of running chunks; 0: no limit.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="Attempts per chunk.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Timeout of an attempt.")] = None,
    item_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Timeout of an item, with --each.")
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", help="Memory limit of a process; 0: no limit.")] = None,
    heal_max: Annotated[int | None, typer.Option(metavar="N", help="Treatments per dead chunk.")] = None,
    tolerated_failures: Annotated[
        str | None, typer.Option(metavar="N|P%", help="Failed chunks (items, with --each) that are tolerated.")
    ] = None,
    budget: Annotated[float | None, typer.Option(metavar="COST", help="Warn when the cost exceeds this.")] = None,
) -> Answer:
    """Change the policy of a running fan-out."""
    import msgspec

    from headgate.durable.model.duration import optional_seconds

    options: dict[str, Any] = {
        "priority": priority,
        "concurrency": concurrency,
        "max_attempts": max_attempts,
        "timeout_seconds": optional_seconds(timeout, name="--timeout"),
        "item_timeout_seconds": optional_seconds(item_timeout, name="--item-timeout"),
        "memory_mb": memory_mb,
        "heal_redrives_max": heal_max,
        **tolerated(tolerated_failures),
        "budget": budget,
    }
    changes = {name: value for name, value in options.items() if value is not None}
    if not changes:
        raise UserError("tune: no changes; give --priority, --concurrency or another option")
    # Explicit null, because members that are None are left out.
    unlimited = {name: msgspec.Raw(b"null") for name in ("concurrency", "memory_mb") if changes.get(name) == 0}
    found = api.post(at("fanouts", id, "tune"), {**changes, **unlimited, "by": user_name()})
    yield found
    text = ", ".join(f"{name} {'no limit' if name in unlimited else value}" for name, value in changes.items())
    typer.echo(f"{id}: {text}")


@calls_server
def reconcile(
    api: Api,
    id: FanoutId,
    repair: Annotated[bool, typer.Option("--repair", help="Repair the differences.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the counters of a fan-out with its rows. The exit code is 1 if differences remain."""
    found = api.post(at("fanouts", id, "reconcile"), {"repair": repair})
    if as_json:
        echo_json(found)
    else:
        typer.echo(
            f"{id}: {counted(found['chunks'], 'chunk')} counted" + (", no differences" if found["is_clean"] else "")
        )
        for each in found["findings"]:
            typer.echo(f"{'repaired' if each['is_repaired'] else 'wrong'}: {each['said']}")
        if found["unsettled"]:
            typer.echo(f"not verified, because chunks changed concurrently: {', '.join(found['unsettled'])}")
        if found["findings"] and not repair:
            typer.echo("repair them with --repair")
    if any(not each["is_repaired"] for each in found["findings"]) or found["unsettled"]:
        raise typer.Exit(ExitCode.FAILED)


@calls_server
def dlq(api: Api, id: FanoutId, limit: Limit = 100) -> Answer:
    """List the dead letters of a fan-out's queue."""
    found = list(api.entries(at("fanouts", id, "dead-letters"), "dead_letters", limit))
    yield found
    rows = [
        (each["chunk_id"], each["receive_count"], short(each["dead_at"]), error_text(each), each["message"])
        for each in found
    ]
    show_table(("CHUNK", "RECEIVED", "DEAD", "ERROR", "MESSAGE"), rows, nothing="no dead letters")


def _show_chunk_ids(chunk_ids: list[str]) -> None:
    if chunk_ids:
        more = f" and {len(chunk_ids) - _NAMED_MAX} more" if len(chunk_ids) > _NAMED_MAX else ""
        typer.echo(" ".join(chunk_ids[:_NAMED_MAX]) + more)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to the group of fan-outs."""
    for command in (stuck, failures, items, errors, redrive, heal, skip, tune, reconcile, dlq):
        app.command(command.__name__)(command)
    add_action(
        app,
        "bisect",
        "/fanouts/{id}/bisect",
        "Split a failed chunk in two and run both halves. A single failing item is quarantined.",
        "{chunk}: {answer[said]}",
        id=FanoutId,
        chunk=Option(Annotated[str, typer.Argument(metavar="CHUNK", help="Failed chunk.")], field="chunk_id"),
        until_alone=Option(
            Annotated[bool, typer.Option("--until-alone", help="Split failing halves again until the item is alone.")],
            default=False,
        ),
    )
    for name, help, text in (
        ("cancel", "Cancel a fan-out: pending chunks are cancelled, running ones are stopped.", "cancelling"),
        ("pause", "Pause a fan-out: no further chunk starts, running ones continue.", "paused"),
        ("resume", "Resume a paused fan-out.", "resumed"),
    ):
        add_action(
            app,
            name,
            f"/fanouts/{{id}}/{name}",
            help,
            f"{{id}}: {text}",
            body=lambda: {"by": user_name()},
            id=FanoutId,
            reason=Option(Reason, None),
        )
