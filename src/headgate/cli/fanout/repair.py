"""`headgate fanout stuck`, `failures`, `redrive` and the like: what is wrong with a fan-out, and its remedies."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.fanout.exit_codes import FAILED
from headgate.cli.fanout.submit import user_name
from headgate.cli.fanout.views import about, error_text
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError

Id = Annotated[str, typer.Argument(metavar="ID", help="The fan-out.")]
Chunks = Annotated[list[str] | None, typer.Argument(metavar="[CHUNK]...", help="These chunks alone.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="For whoever reads the events.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many at most.")]
_NAMED_MAX: Final = 20


@asks
def stuck(
    api: Api,
    id: Id,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Not moved for so long. [default: its time-out]", show_default=False),
    ] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List chunks that do not move, and whether they will by themselves."""
    found = api.get(at("fanouts", id, "stuck"), older_than=older_than, limit=min(limit, 1000))["stuck"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["chunk_id"], each["kind"], about(each["seconds"]), each["reason"]) for each in found]
    show_table(("CHUNK", "KIND", "FOR", "WHY"), rows, nothing="no chunk is stuck")


@asks
def failures(api: Api, id: Id, limit: Limit = 100, as_json: Json = False) -> None:
    """List chunks that were given up, and items that failed in chunks that are done, with their errors."""
    path = at("fanouts", id, "failures")
    found = _listed(api, path, "chunks", limit)
    has_bad_items = api.get(at("fanouts", id))["counts"]["items_failed"] > 0
    done = _listed(api, path, "chunks", limit, items="true") if has_bad_items else []
    if as_json:
        echo_json({"chunks": found, "chunks_with_failed_items": done})
        return
    if not found and not done:
        typer.echo("nothing has failed")
    if found:
        rows = [
            (each["chunk_id"], each["disposition"], each["items"], each["attempt"], _when(each), error_text(each))
            for each in found
        ]
        show_table(("CHUNK", "", "ITEMS", "ATTEMPTS", "GIVEN UP", "ERROR"), rows, nothing="")
    items = [
        (each["chunk_id"], index, _line(error)) for each in done for index, error in each.get("item_errors", {}).items()
    ]
    if items:
        show_table(("CHUNK", "ITEM", "ERROR"), items[:limit], nothing="")
        if len(items) > limit:
            typer.echo(f"and {len(items) - limit} more; --limit shows more")


def _when(each: dict[str, Any]) -> str:
    return short(each.get("completed_at"))


def _line(text: str) -> str:
    return " ".join(text.split())


@asks
def errors(api: Api, id: Id, limit: Limit = 20, as_json: Json = False) -> None:
    """Group the errors of its chunks by what they have in common, the most frequent first."""
    found = api.get(at("fanouts", id, "errors"), limit=min(limit, 1000))
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["fingerprint"],
            each["count"],
            f"{each['error_class']}: {_line(each['message'])}",
            short(each["last_seen"]),
            each["chunk_ids"],
        )
        for each in found["groups"]
    ]
    show_table(("FINGERPRINT", "COUNT", "ERROR", "LAST", "SUCH AS"), rows, nothing="no errors")
    if found["others"]:
        typer.echo(f"and {found['others']} others")
    if rows:
        typer.echo(f"'headgate fanout redrive {id} --fingerprint FINGERPRINT' runs those of one kind again")


@asks
def redrive(  # noqa: PLR0913 - each is an option
    api: Api,
    id: Id,
    chunks: Chunks = None,
    failed: Annotated[bool, typer.Option("--failed", help="All that were given up.")] = False,
    all: Annotated[bool, typer.Option("--all", help="All that were given up or cancelled.")] = False,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Those with this error, as 'errors' lists it.")
    ] = None,
    error_class: Annotated[str | None, typer.Option(metavar="CLASS", help="Those with this class of error.")] = None,
    older_than: Annotated[str | None, typer.Option(metavar="DURATION", help="Those given up longer ago.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Start so many in a second.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="So many at most.")] = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run chunks that were given up again, with all their tries, and the fan-out with them if it had ended."""
    if not any((chunks, failed, all, fingerprint, error_class, older_than)):
        raise UserError(
            "redrive: which chunks? name them, or give --failed, --all, --fingerprint, --error-class or --older-than"
        )
    body = {
        "chunk_ids": chunks or [],
        "dispositions": ["DEAD", "QUARANTINED"] if failed else [],
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
        _end_refused(found)
        return
    verb = "would be run again" if dry_run else "are run again"
    typer.echo(f"{id}: {found['redriven']} chunks {verb}")
    _name_some(found["ids"])
    notes = {"already": "are on their way already", "overtaken": "were moved by someone else just then"}
    for name, said in notes.items():
        if found[name]:
            typer.echo(f"{found[name]} {said}")
    for chunk_id, why in list(found["refused"].items())[:_NAMED_MAX]:
        typer.echo(f"refused: {chunk_id}: {why}")
    if found["is_cut_off"]:
        typer.echo("the limit has left some out")
    _end_refused(found)


def _end_refused(found: Any) -> None:  # noqa: ANN401
    """Tell a program that not all that it asked for is run again."""
    if found["refused"]:
        raise typer.Exit(FAILED)


@asks
def heal(api: Api, id: Id, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Do now what its policy says about chunks that died."""
    found = api.post(at("fanouts", id, "heal"), {"dry_run": dry_run})
    if as_json:
        echo_json(found)
        return
    verb = "would be treated" if dry_run else "are treated"
    typer.echo(f"{id}: {found['healed']} dead chunks {verb}, {found['left']} are left as they are")
    for each in found["treated"][:_NAMED_MAX]:
        typer.echo(f"{each['chunk_id']}: {each['said']}")
    for each in found["refused"][:_NAMED_MAX]:
        typer.echo(f"refused: {each['chunk_id']}: {each['said']}")
    if found["left"] and not found["healed"]:
        typer.echo(
            f"its policy does not say to heal them; 'headgate fanout redrive {id} --failed' runs them again, "
            f"'headgate fanout tune {id} --heal-max 1' has them healed"
        )


@asks
def bisect(
    api: Api,
    id: Id,
    chunk: Annotated[str, typer.Argument(metavar="CHUNK", help="One that was given up.")],
    as_json: Json = False,
) -> None:
    """Cut a chunk that fails in two and run both; a single item is put aside as the one to blame."""
    found = api.post(at("fanouts", id, "bisect"), {"chunk_id": chunk})
    if as_json:
        echo_json(found)
    else:
        typer.echo(f"{chunk}: {found['said']}")


@asks
def skip(
    api: Api,
    id: Id,
    chunks: Chunks = None,
    failed: Annotated[bool, typer.Option("--failed", help="All that were given up.")] = False,
    reason: Reason = None,
    as_json: Json = False,
) -> None:
    """Do without chunks that wait or were given up."""
    body = {"chunk_ids": chunks or [], "failed": failed, "reason": reason, "by": user_name()}
    found = api.post(at("fanouts", id, "skip"), body)
    if as_json:
        echo_json(found)
        return
    typer.echo(f"{id}: {len(found['skipped'])} chunks are skipped")
    if found["left"]:
        typer.echo("left, because they run or are done:")
        _name_some(found["left"])


@asks
def cancel(api: Api, id: Id, reason: Reason = None, as_json: Json = False) -> None:
    """End a fan-out early: chunks that wait are cancelled, those that run are asked to stop."""
    _steer(api, id, "cancel", "it is being cancelled", reason, as_json=as_json)


@asks
def pause(api: Api, id: Id, reason: Reason = None, as_json: Json = False) -> None:
    """Start no further chunk for now; those that run may end."""
    _steer(api, id, "pause", "it is paused", reason, as_json=as_json)


@asks
def resume(api: Api, id: Id, reason: Reason = None, as_json: Json = False) -> None:
    """Let a paused fan-out go on."""
    _steer(api, id, "resume", "it goes on", reason, as_json=as_json)


def _steer(api: Api, run_id: str, verb: str, said: str, reason: str | None, *, as_json: bool) -> None:
    found = api.post(at("fanouts", run_id, verb), {"reason": reason, "by": user_name()})
    if as_json:
        echo_json(found)
    else:
        typer.echo(f"{run_id}: {said}")


@asks
def tune(  # noqa: PLR0913 - each is an option
    api: Api,
    id: Id,
    priority: Annotated[int | None, typer.Option(metavar="1-9", help="Its share of the workers.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Chunks that run at a time; 0: no limit.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="Tries for a chunk.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="For one try at a chunk.")] = None,
    item_timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="For one item, with --each.")] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", help="Most memory of a process; 0: no limit.")] = None,
    heal_max: Annotated[int | None, typer.Option(metavar="N", help="How often a dead chunk is healed.")] = None,
    budget: Annotated[float | None, typer.Option(metavar="COST", help="Say when it costs more.")] = None,
    as_json: Json = False,
) -> None:
    """Change numbers of its policy while it runs."""
    import msgspec

    from headgate.durable.model.duration import optional_seconds

    given: dict[str, Any] = {
        "priority": priority,
        "concurrency": concurrency,
        "max_attempts": max_attempts,
        "timeout_seconds": optional_seconds(timeout, name="--timeout"),
        "item_timeout_seconds": optional_seconds(item_timeout, name="--item-timeout"),
        "memory_mb": memory_mb,
        "heal_redrives_max": heal_max,
        "budget": budget,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise UserError("tune: nothing to change; give --priority, --concurrency or another option")
    # As JSON, because members that are None are left out.
    unlimited = {name: msgspec.Raw(b"null") for name in ("concurrency", "memory_mb") if changes.get(name) == 0}
    found = api.post(at("fanouts", id, "tune"), {**changes, **unlimited, "by": user_name()})
    if as_json:
        echo_json(found)
    else:
        said = ", ".join(f"{name} {'no limit' if name in unlimited else value}" for name, value in changes.items())
        typer.echo(f"{id}: {said}")


@asks
def reconcile(
    api: Api,
    id: Id,
    repair: Annotated[bool, typer.Option("--repair", help="Set right what can be.")] = False,
    as_json: Json = False,
) -> None:
    """Compare its counts with its rows. The exit code is 2 if something is not as it should be, and stays so."""
    found = api.post(at("fanouts", id, "reconcile"), {"repair": repair})
    if as_json:
        echo_json(found)
    else:
        typer.echo(
            f"{id}: {found['chunks']} chunks counted" + (", all is as it should be" if found["is_clean"] else "")
        )
        for each in found["findings"]:
            typer.echo(f"{'repaired' if each['is_repaired'] else 'wrong'}: {each['said']}")
        if found["unsettled"]:
            typer.echo(f"not settled, because chunks moved meanwhile: {', '.join(found['unsettled'])}")
        if found["findings"] and not repair:
            typer.echo("--repair sets right what can be")
    if any(not each["is_repaired"] for each in found["findings"]) or found["unsettled"]:
        raise typer.Exit(FAILED)


@asks
def dlq(api: Api, id: Id, limit: Limit = 100, as_json: Json = False) -> None:
    """List messages that its queue has given up, as they were taken in."""
    found = _listed(api, at("fanouts", id, "dead-letters"), "dead_letters", limit)
    if as_json:
        echo_json(found)
        return
    rows = [
        (each["chunk_id"], each["receive_count"], short(each["dead_at"]), error_text(each), each["message"])
        for each in found
    ]
    show_table(("CHUNK", "RECEIVED", "DEAD", "ERROR", "MESSAGE"), rows, nothing="no dead letters")


def _listed(api: Api, path: str, name: str, limit: int, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < limit:
        page = api.get(path, **query, limit=min(1000, limit - len(found)), cursor=cursor)
        found += page[name]
        cursor = page["cursor"]
        if cursor is None:
            break
    return found


def _name_some(chunk_ids: list[str]) -> None:
    if chunk_ids:
        more = f" and {len(chunk_ids) - _NAMED_MAX} more" if len(chunk_ids) > _NAMED_MAX else ""
        typer.echo(" ".join(chunk_ids[:_NAMED_MAX]) + more)


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module to those about fan-outs."""
    for command in (stuck, failures, errors, redrive, heal, bisect, skip, cancel, pause, resume, tune, reconcile, dlq):
        app.command(command.__name__)(command)
