"""Backfill pages: the list, and one backfill with its periods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.pipelines.operations.backfill_plans import BackfillState
from headgate.serve.pages.actions import REASON, Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_PIPELINES, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, following
from headgate.serve.pages.work.fanouts import Bar

ADDRESS: Final = "/ui/backfills"
LISTED: Final = 50
# Maximum periods that the page of a backfill lists.
PERIODS_MAX: Final = 400
FILTERS: Final = ("state", "pipeline", "owner", "tier", "cursor")
_WIDTH: Final = 1000
_STATES: Final[tuple[tuple[str, str | list[str]], ...]] = (
    ("All", ""),
    *((each.value.capitalize(), [each.value]) for each in BackfillState),
)


class BackfillRow(Struct, frozen=True):
    """A backfill and its progress."""

    backfill: Any
    bars: list[Bar]


class BackfillList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    rows: list[BackfillRow]
    chips: list[Chip]
    filters: Mapping[str, Any]
    is_filtered: bool
    more: str
    width: int = _WIDTH


class BackfillPage(Struct, frozen=True, kw_only=True):
    """View of a backfill. `periods` are dates with their state and reason, `hidden` the number of further ones."""

    backfill: Any
    bars: list[Bar]
    sentence: str
    periods: list[tuple[str, str, str]]
    hidden: int
    width: int = _WIDTH


def bars(backfill: Mapping[str, Any]) -> list[Bar]:
    """Return the periods by outcome as parts of one bar; the parts sum to the number of periods."""
    total, failed, running = backfill["dates_count"], len(backfill["failed"]), len(backfill["running"])
    done, skipped = backfill["succeeded"], backfill["skipped"]
    parts = (
        ("succeeded", done, "good"),
        ("skipped", skipped, "dim"),
        ("failed", failed, "bad"),
        ("running", running, "busy"),
        ("left", max(0, total - done - skipped - failed - running), "line"),
    )
    found: list[Bar] = []
    x = 0.0
    for name, count, tone in parts:
        width = _WIDTH * count / max(1, total)
        if count:
            found.append(Bar(name, count, tone, round(x, 2), round(width, 2)))
        x += width
    return found


def sentence(backfill: Mapping[str, Any]) -> str:
    """Return the state of a backfill in one sentence."""
    total, failed = backfill["dates_count"], len(backfill["failed"])
    done = f"{backfill['succeeded']:,} of {total:,} periods succeeded"
    failures = f", {failed:,} failed" if failed else ""
    match BackfillState(backfill["state"]):
        case BackfillState.PAUSED:
            return f"It is paused; {done}{failures}. Running periods finish."
        case BackfillState.CANCELLED:
            return f"It was cancelled; {done}{failures}."
        case BackfillState.COMPLETED:
            return f"It is over; {done}{failures}."
        case BackfillState.RUNNING:
            return f"{done}{failures}; {len(backfill['running']):,} running, at most {backfill['concurrency']} at once."


def periods(backfill: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the dates that began, in order, with state and reason; the dates that did not begin are left."""
    running, failed = set(backfill["running"]), backfill["failed"]
    found = []
    for place, date in enumerate(backfill["dates"]):
        if date in failed:
            found.append((date, "FAILED", failed[date]))
        elif date in running:
            found.append((date, "RUNNING", ""))
        else:
            found.append((date, "DONE" if place < backfill["taken"] else "WAITING", ""))
    return found


def backfill_actions(api: ApiCaller, backfill: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the actions that fit the state of a backfill."""
    backfill_id, state = backfill["backfill_id"], BackfillState(backfill["state"])
    if state.is_over:
        return ()

    def steer(verb: str, label: str, text: str, done: str, tone: Tone = Tone.PLAIN) -> Action:
        action = Action(
            label=label,
            sentence=text,
            path=f"/backfills/{segment(backfill_id)}/{verb}",
            cli=f"{command('backfill', verb, backfill_id)} --reason {{reason}}",
            tone=tone,
            done=done,
        )
        return allowed(api, Permission.PIPELINE_CONTROL, action)

    first = (
        steer("resume", "Resume", "Further periods start again.", "It goes on.", Tone.PRIMARY)
        if state is BackfillState.PAUSED
        else steer("pause", "Pause", "No further period starts; running ones finish.", "It is paused.")
    )
    ends = "Ends the backfill. No further period starts; running ones finish."
    return (first, steer("cancel", "Cancel", ends, "It is cancelled.", Tone.DANGER))


def _start(api: ApiCaller, pipeline_id: str) -> Action:
    words = f"{command('backfill', 'create', pipeline_id)} --from {{from}} --to {{to}} --concurrency {{concurrency}}"
    action = Action(
        label="Start a backfill",
        sentence=f"Runs {pipeline_id} for each period from one date to another. Completed periods are left out.",
        path=f"/pipelines/{segment(pipeline_id)}/backfills",
        fields=(
            Field(name="from", label="From", is_required=True, hint="A date, such as 2026-01-31."),
            Field(name="to", label="To", is_required=True, hint="Included."),
            Field(name="concurrency", label="At once", kind=FieldKind.NUMBER, value="1"),
            Field(name="redo", label="Include completed periods", kind=FieldKind.FLAG),
            REASON,
        ),
        cli=f"{words} --reason {{reason}}",
        tone=Tone.PRIMARY,
        done="The backfill is started.",
    )
    return allowed(api, Permission.PIPELINE_CONTROL, action)


def backfill_list(api: ApiCaller, query: Mapping[str, Any]) -> BackfillList:
    """Return a page of the list. Raises as the API operation."""
    backfills, cursor = api.found("GET /backfills", "backfills", query={**query, "limit": LISTED})
    return BackfillList(
        rows=[BackfillRow(each, bars(each)) for each in backfills],
        chips=chips(ADDRESS, query, "state", _STATES),
        filters={name: query.get(name, "") for name in FILTERS},
        is_filtered=any(query.get(name) for name in FILTERS),
        more=following(ADDRESS, query, cursor),
    )


def _list(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    pipeline = query.get("pipeline", "")
    given = (("--state", query.get("state", [])), ("--owner", query.get("owner")), ("--tier", query.get("tier")))
    return Page(
        template="backfills.html",
        title="Backfills",
        view=backfill_list(api, query),
        actions=(_start(api, pipeline),) if pipeline else (),
        json=twin("/backfills", query),
        cli=command("backfill", "ls", *([pipeline] if pipeline else []), *options(given)),
        changes=changes_of(of=ALL_PIPELINES),
        section="backfills",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    backfill_id = request.path["backfill_id"]
    backfill = api.call("GET /backfills/{backfill_id}", path={"backfill_id": backfill_id})
    listed = periods(backfill)
    return Page(
        template="backfill.html",
        title=f"Backfill of {backfill['pipeline_id']}",
        crumbs=(("Backfills", ADDRESS),),
        view=BackfillPage(
            backfill=backfill,
            bars=bars(backfill),
            sentence=sentence(backfill),
            periods=listed[:PERIODS_MAX],
            hidden=max(0, len(listed) - PERIODS_MAX),
        ),
        actions=backfill_actions(api, backfill),
        json=twin(f"/backfills/{segment(backfill_id)}"),
        cli=command("backfill", "show", backfill_id),
        changes=changes_of(of=ALL_PIPELINES),
        section="backfills",
    )


PAGES: Final = (
    PageRoute("/backfills", _list, FILTERS, frozenset({"state"}), needs="GET /backfills"),
    PageRoute("/backfills/{backfill_id:str}", _one),
)
