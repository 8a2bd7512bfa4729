"""Text output of the fan-out commands: status, progress, chunks and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.times import duration_text

FanoutId = Annotated[str, typer.Argument(metavar="ID", help="Fan-out id.")]
_ERROR_CHARS: Final = 200
_COLUMNS: Final = ("RUN", "STATUS", "DONE", "FAILED", "CREATED", "GROUP", "")


class Lane(StrEnum):
    """Lane of a chunk: main, or slow for deferred items."""

    MAIN = "main"
    SLOW = "slow"


def show_fanouts(found: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of fan-outs."""
    rows = [
        (
            each["run_id"],
            each["status"],
            f"{each['chunks_completed']}/{each['chunks_total']}",
            each["chunks_failed"] or "",
            # To the minute and without the year, to fit a terminal beside a long id.
            each["created_at"][5:16].replace("T", " "),
            each["group"],
            _remark(each),
        )
        for each in found
    ]
    show_table(_COLUMNS, rows, nothing="no fan-outs; create one with 'headgate fanout submit'")


def _remark(each: Mapping[str, Any]) -> str:
    if each["is_finished"]:
        return str(each.get("reason") or "")
    if each.get("split_error"):
        return f"split stopped: {each['split_error']}"
    return "cancelling" if each.get("cancelled_at") else "paused" if each.get("paused_at") else ""


def show_fanout(found: Mapping[str, Any]) -> None:
    """Print a fan-out: its progress, durations, cost and notes."""
    durations = found["durations"]
    facts: dict[str, Any] = {
        "run": found["run_id"],
        "group": found["group"],
        "campaign": found["campaign"],
        "status": found["status"],
        "chunks": chunks_text(found),
        "slow lane": _slow_text(found["counts"]),
        "items": items_text(found["items"], is_finished=found["is_finished"]),
        "attempts": _attempts_text(found["counts"]),
        "rate": _rate_text(found),
        "remaining": eta_text(found),
        "durations": None if durations is None else _durations_text(durations),
        "cost": None if found["cost"] is None else _cost_text(found["cost"]),
        "tolerated": tolerance_text(found["policy"]),
        "handler": found["handler"] or ("" if found["queue_url"] else f"none; run it with {work_command(found)}"),
        "params": compact(found["params"]) if found["params"] else None,
        "source": _source_text(found),
        "queue": found["queue_url"],
        "submitted by": found["submitted_by"],
        "created": short(found["created_at"]),
        "started": short(found["started_at"]),
        "finished": short(found["finished_at"]),
        "duration": _total_text(found),
        "reason": found["reason"],
    }
    show_facts(facts)
    for each in found["stragglers"]:
        typer.echo(f"straggler: {each['chunk_id']} running for {duration_text(each['seconds'])} on {each['worker']}")
    show_notes(found)


def show_notes(found: Mapping[str, Any]) -> None:
    """Print the notes of a fan-out."""
    for note in found["notes"]:
        typer.echo(f"note: {note}")


def chunks_text(found: Mapping[str, Any]) -> str:
    """Return the number of chunks in each status."""
    chunks = found["chunks"]
    parts = [f"{chunks['completed']} of {chunks['total']} completed"]
    names = {"failed": "failed", "in_progress": "running", "pending": "pending"}
    names |= {"cancelled": "cancelled", "skipped": "skipped"}
    parts += [f"{chunks[name]} {label}" for name, label in names.items() if chunks[name]]
    if found["counts"]["retrying"]:
        parts.append(f"{found['counts']['retrying']} of the pending are retries")
    return ", ".join(parts)


def _slow_text(counts: Mapping[str, int]) -> str | None:
    if not counts["slow_total"]:
        return None
    still = counts["slow_queued"] + counts["slow_waiting"] + counts["slow_retrying"] + counts["slow_running"]
    failed = counts["slow_dead"] + counts["slow_quarantined"]
    parts = [f"{counts['slow_done']} of {counts['slow_total']} completed"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{still} open"] if still else []
    return ", ".join(parts)


def items_text(items: Mapping[str, int], *, is_finished: bool) -> str:
    """Return the number of items by outcome; the numbers add up to the total."""
    names = {"failed": "failed", "deferred": "deferred", "open": "not run" if is_finished else "open"}
    parts = [f"{items[name]} {label}" for name, label in names.items() if items[name]]
    return ", ".join([f"{items['ok']} of {items['total']} ok", *parts])


def show_more(shown: int, total: int | None, what: str) -> None:
    """Print how many entries a list has beyond those shown."""
    if total is not None and total > shown:
        typer.echo(f"{shown} of {total} {what}; raise --limit to list more")


def _attempts_text(counts: Mapping[str, int]) -> str:
    names = {"retries": "retries", "lost": "lost", "redriven": "redriven", "duplicates": "duplicates dropped"}
    return ", ".join(
        [str(counts["attempts"]), *(f"{counts[each]} {label}" for each, label in names.items() if counts[each])]
    )


def _rate_text(found: Mapping[str, Any]) -> str | None:
    chunks, items = found["completed_per_second"], found["items_per_second"]
    if chunks is None:
        return None
    return f"{_number(chunks)} chunks/s" + (f", {_number(items)} items/s" if items is not None else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def eta_text(found: Mapping[str, Any]) -> str | None:
    """Return the estimated remaining time, or why it is unknown."""
    estimate = found["estimate"]
    if found["is_finished"]:
        return None
    text = str(estimate["text"])
    if len(estimate["lanes"]) > 1 and estimate["unknown"] is None:
        lanes = ", ".join(f"{lane['lane']} lane {lane['text']}" for lane in estimate["lanes"])
        text += f" ({lanes})"
    return text


def share_text(found: Mapping[str, Any]) -> str:
    """Return the share of ended chunks: 100 % only if all have ended."""
    return f"{int(100 * found['share'])}%"


def tolerance_text(policy: Mapping[str, Any]) -> str | None:
    """Return the tolerated failures and what happens beyond them, or None without a limit."""
    count, share = policy["tolerated_failures"], policy["tolerated_failure_share"]
    limits = [] if count is None else [f"{count} failed {'items' if policy['each'] else 'chunks'}"]
    limits += [] if share is None else [f"{100 * share:g}% failed"]
    then = "it fails" if policy["failures_action"] == "fail" else "it is paused"
    return f"{' and '.join(limits)}, then {then}" if limits else None


def _durations_text(spread: Mapping[str, float]) -> str:
    names = ("p50", "p95", "p99", "max")
    return ", ".join(f"{name} {duration_text(spread[f'{name}_ms'] / 1000)}" for name in names)


def _cost_text(cost: Mapping[str, Any]) -> str:
    text = f"{_money(cost['so_far'])} {cost['currency']}"
    if cost["wasted"]:
        text += f", {_money(cost['wasted'])} wasted"
    if cost["projected"] is not None and cost["projected"] != cost["so_far"]:
        text += f", {_money(cost['projected'])} projected"
    if cost["budget"] is not None:
        over = ", exceeded" if cost["is_over_budget"] else ""
        text += f"; budget {_money(cost['budget'])}{over}"
    return f"{text} ({cost['price_source']})"


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.6f}"


def _source_text(found: Mapping[str, Any]) -> str:
    source = found["source"]
    text = {
        "list": "list of items",
        "range": f"integers from {source.get('low')} up to {source.get('high')}",
        "lines": f"lines of {source.get('path')}",
        "bytes": f"bytes of {source.get('path')}",
    }.get(source.get("kind", ""), compact(source))
    return f"{text}, {found['chunk_size']} per chunk"


def _total_text(found: Mapping[str, Any]) -> str | None:
    return (
        None
        if found["finished_at"] is None
        else duration_text(seconds_between(found["created_at"], found["finished_at"]))
    )


def work_command(found: Mapping[str, Any]) -> str:
    """Return the command that runs the chunks of a fan-out without a queue."""
    handler = "" if found.get("handler") else "--handler MODULE:FUNCTION "
    return f"'headgate chunk work {handler}--run {found['run_id']}'"


def start_remedy(found: Mapping[str, Any], where: str = "") -> str:
    """Return how to get the chunks of a fan-out run."""
    if found.get("queue_url"):
        return f"start a consumer of {found['queue_url']}"
    return f"start a worker with {work_command(found)}{where}"


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two timestamps."""
    from datetime import datetime

    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def show_chunks(found: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of chunks."""
    rows = [
        (
            each["chunk_id"],
            each["status"],
            each["disposition"] if each["disposition"] not in _IMPLIED.get(each["status"], ()) else "",
            each["items"],
            each.get("attempt", 0),
            (each.get("started_at") or "")[11:19],
            "" if each.get("duration_ms") is None else duration_text(each["duration_ms"] / 1000),
            error_text(each),
        )
        for each in found
    ]
    columns = ("CHUNK", "STATUS", "", "ITEMS", "ATTEMPTS", "STARTED", "DURATION", "ERROR")
    show_table(columns, rows, nothing="no chunks")


# Dispositions that a status implies.
_IMPLIED: Final = {
    "PENDING": ("QUEUED",),
    "IN_PROGRESS": ("RUNNING",),
    "COMPLETED": ("DONE",),
    "CANCELLED": ("CANCELLED",),
    "SKIPPED": ("SKIPPED",),
}


def error_text(each: Mapping[str, Any]) -> str:
    """Return the error of a chunk or attempt on one line."""
    if not each.get("error") and not each.get("error_class"):
        return ""
    error_class, error = each.get("error_class") or "error", each.get("error")
    return error_line(f"{error_class}: {error}" if error else error_class)


def error_line(text: str) -> str:
    """Return as much of an error as a line of a table has. 'headgate chunk show' has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CHARS else f"{line[:_ERROR_CHARS]}…"
