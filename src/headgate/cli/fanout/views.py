"""What the commands about fan-outs print for people: how far one is, its chunks, its failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import typer

from headgate.cli.output import compact, short, show_facts, show_table

_ERROR_CHARS: Final = 200
_COLUMNS: Final = ("RUN", "STATUS", "DONE", "FAILED", "CREATED", "GROUP", "")


def about(seconds: float | None) -> str:
    """Return a time as precisely as someone who waits wants to know it."""
    if seconds is None:
        return "?"
    if 0 < seconds < 0.9995:
        return f"{max(1, round(1000 * seconds))}ms"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def show_fanouts(found: Iterable[Mapping[str, Any]]) -> None:
    """Print fan-outs, one a line."""
    rows = [
        (
            each["run_id"],
            each["status"],
            f"{each['chunks_completed']}/{each['chunks_total']}",
            each["chunks_failed"] or "",
            # To the minute and without the year: a screen is narrow, and an id is long.
            each["created_at"][5:16].replace("T", " "),
            each["group"],
            _remark(each),
        )
        for each in found
    ]
    show_table(_COLUMNS, rows, nothing="no fan-outs; make one with 'headgate fanout submit'")


def _remark(each: Mapping[str, Any]) -> str:
    if each["is_finished"]:
        return str(each.get("reason") or "")
    if each.get("split_error"):
        return f"split stopped: {each['split_error']}"
    return "cancelling" if each.get("cancelled_at") else "paused" if each.get("paused_at") else ""


def show_fanout(found: Mapping[str, Any]) -> None:
    """Print all that someone wants to know of a fan-out."""
    durations, cost = found["durations"], found["cost"]
    facts: dict[str, Any] = {
        "run": found["run_id"],
        "group": found["group"],
        "campaign": found["campaign"],
        "status": found["status"],
        "chunks": chunks_text(found),
        "slow lane": _slow_text(found["counts"]),
        "items": _items_text(found["counts"]),
        "attempts": _attempts_text(found["counts"]),
        "rate": _rate_text(found),
        "left": eta_text(found),
        "durations": None if durations is None else _durations_text(durations),
        "cost": _cost_text(cost),
        "handler": found["handler"] or f"none: whoever runs {work_command(found)} brings it",
        "params": compact(found["params"]) if found["params"] else None,
        "source": _source_text(found),
        "queue": found["queue_url"],
        "submitted by": found["submitted_by"],
        "created": short(found["created_at"]),
        "started": short(found["started_at"]),
        "finished": short(found["finished_at"]),
        "took": _took_text(found),
        "reason": found["reason"],
    }
    show_facts(facts)
    for each in found["stragglers"]:
        typer.echo(f"straggler: {each['chunk_id']} runs for {about(each['seconds'])} at {each['worker']}")
    show_notes(found)


def show_notes(found: Mapping[str, Any]) -> None:
    """Print what someone should know or do."""
    for note in found["notes"]:
        typer.echo(f"note: {note}")


def chunks_text(found: Mapping[str, Any]) -> str:
    """Return where the chunks of a fan-out stand."""
    chunks = found["chunks"]
    parts = [f"{chunks['completed']} of {chunks['total']} completed"]
    names = {"failed": "failed", "in_progress": "running", "pending": "waiting"}
    names |= {"cancelled": "cancelled", "skipped": "skipped"}
    parts += [f"{chunks[name]} {said}" for name, said in names.items() if chunks[name]]
    if found["counts"]["retrying"]:
        parts.append(f"{found['counts']['retrying']} of the waiting to be tried again")
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


def _items_text(counts: Mapping[str, int]) -> str:
    parts = [f"{counts['items_ok']} of {counts['items_total']} ok"]
    names = {"items_failed": "failed", "items_deferred": "deferred"}
    return ", ".join([*parts, *(f"{counts[name]} {said}" for name, said in names.items() if counts[name])])


def _attempts_text(counts: Mapping[str, int]) -> str:
    names = {"retries": "retries", "lost": "lost", "redriven": "redriven", "duplicates": "duplicates dropped"}
    return ", ".join(
        [str(counts["attempts"]), *(f"{counts[each]} {said}" for each, said in names.items() if counts[each])]
    )


def _rate_text(found: Mapping[str, Any]) -> str | None:
    chunks, items = found["completed_per_second"], found["items_per_second"]
    if chunks is None:
        return None
    return f"{_number(chunks)} chunks/s" + (f", {_number(items)} items/s" if items is not None else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def eta_text(found: Mapping[str, Any]) -> str | None:
    """Return how long a fan-out will still take, as far as that can be said."""
    estimate = found["estimate"]
    if found["is_finished"]:
        return None
    if estimate["unknown"] is not None or estimate["eta_seconds"] is None:
        return f"unknown: {estimate['unknown'] or 'nothing ends'}"
    said = about(estimate["eta_seconds"])
    if estimate["p90_seconds"] is not None:
        said += f" (half of the time within {about(estimate['p50_seconds'])}, mostly {about(estimate['p90_seconds'])})"
    return said


def _durations_text(spread: Mapping[str, float]) -> str:
    names = ("p50", "p95", "p99", "max")
    return ", ".join(f"{name} {about(spread[f'{name}_ms'] / 1000)}" for name in names)


def _cost_text(cost: Mapping[str, Any]) -> str:
    said = _money(cost["so_far"])
    if cost["wasted"]:
        said += f", {_money(cost['wasted'])} of it wasted"
    if cost["projected"] is not None and cost["projected"] != cost["so_far"]:
        said += f", {_money(cost['projected'])} projected"
    if cost["budget"] is not None:
        over = ", which it is over" if cost["is_over_budget"] else ""
        said += f"; budget {_money(cost['budget'])}{over}"
    return said


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.6f}"


def _source_text(found: Mapping[str, Any]) -> str:
    source = found["source"]
    said = {
        "list": "items that were given",
        "range": f"numbers from {source.get('low')} to before {source.get('high')}",
        "lines": f"lines of {source.get('path')}",
        "bytes": f"bytes of {source.get('path')}",
    }.get(source.get("kind", ""), compact(source))
    return f"{said}, {found['chunk_size']} to a chunk"


def _took_text(found: Mapping[str, Any]) -> str | None:
    return None if found["finished_at"] is None else about(seconds_between(found["created_at"], found["finished_at"]))


def work_command(found: Mapping[str, Any]) -> str:
    """Return the command that runs the chunks of a fan-out."""
    handler = "" if found.get("handler") else "--handler MODULE:FUNCTION "
    return f"'headgate chunk work {handler}--run {found['run_id']}'"


def seconds_between(earlier: str, later: str) -> float:
    """Return the time between two moments."""
    from datetime import datetime

    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def show_chunks(found: Iterable[Mapping[str, Any]]) -> None:
    """Print chunks, one a line."""
    rows = [
        (
            each["chunk_id"],
            each["status"],
            each["disposition"] if each["disposition"] not in _PLAIN.get(each["status"], ()) else "",
            each["items"],
            each.get("attempt", 0),
            (each.get("started_at") or "")[11:19],
            "" if each.get("duration_ms") is None else about(each["duration_ms"] / 1000),
            error_text(each),
        )
        for each in found
    ]
    columns = ("CHUNK", "STATUS", "", "ITEMS", "TRIES", "STARTED", "TOOK", "ERROR")
    show_table(columns, rows, nothing="no chunks")


# What a status says already.
_PLAIN: Final = {
    "PENDING": ("QUEUED",),
    "IN_PROGRESS": ("RUNNING",),
    "COMPLETED": ("DONE",),
    "CANCELLED": ("CANCELLED",),
    "SKIPPED": ("SKIPPED",),
}


def error_text(each: Mapping[str, Any]) -> str:
    """Return the error of a chunk or an attempt in a line."""
    if not each.get("error") and not each.get("error_class"):
        return ""
    line = " ".join(str(each.get("error") or "").split())
    said = f"{each.get('error_class') or 'error'}: {line}"
    return said if len(said) <= _ERROR_CHARS else f"{said[:_ERROR_CHARS]}…"
