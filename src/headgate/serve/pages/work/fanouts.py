"""Fan-out pages: the list, and one fan-out with its heat map, throughput, errors and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.auth.roles import Permission
from headgate.fanout.model.states import FanoutStatus
from headgate.serve.http.operations import PREFIX
from headgate.serve.pages.actions import Action, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_WORK, changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute

LISTED: Final = 50
SHOWN_MAX: Final = 50
# Error groups that are shown with the traceback of one of their chunks.
TRACED_MAX: Final = 5
FILTERS: Final = ("group", "status", "cursor")
_WIDTH: Final = 1000
# The order of the bar: ended well first, open last.
_BUCKETS: Final[tuple[tuple[str, str], ...]] = (
    ("done", "good"),
    ("deferred", "good"),
    ("skipped", "dim"),
    ("cancelled", "dim"),
    ("dead", "bad"),
    ("quarantined", "bad"),
    ("retrying", "warn"),
    ("running", "busy"),
    ("queued", "line"),
    ("waiting", "line"),
)
_ITEM_BUCKETS: Final = (("ok", "good"), ("failed", "bad"), ("deferred", "warn"), ("open", "line"))


class Bar(Struct, frozen=True):
    """A part of a bar: chunks in one state, or items with one outcome."""

    name: str
    count: int
    tone: str
    x: float
    width: float


class FanoutRow(Struct, frozen=True):
    """A fan-out in the list."""

    fanout: Any
    bars: list[Bar]
    share: float


class FanoutList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    rows: list[FanoutRow]
    cursor: str | None
    filters: Mapping[str, str]
    width: int = _WIDTH
    statuses: tuple[str, ...] = tuple(each.value for each in FanoutStatus)


class Trace(Struct, frozen=True):
    """The traceback of an attempt, which stands for those with similar errors; else what the attempt printed.

    A process that crashes or takes too long prints the stack of that moment.
    """

    chunk_id: str
    text: str
    is_output: bool


class FanoutPage(Struct, frozen=True, kw_only=True):
    """View of a fan-out."""

    fanout: Any
    bars: list[Bar]
    item_bars: list[Bar]
    sentence: str
    eta: str
    errors: Section
    # The traceback of a chunk of each group, by fingerprint.
    traces: Mapping[str, Trace]
    failures: Section
    stuck: Section
    events: Section
    cells: str
    plots: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    width: int = _WIDTH


class ChunkPage(Struct, frozen=True, kw_only=True):
    """View of a chunk."""

    run_id: str
    chunk: Any
    # The newest first.
    logs: Sequence[Any]
    commands: tuple[tuple[str, str], ...]


def buckets(counts: Mapping[str, int], total: int, names: Sequence[tuple[str, str]] = _BUCKETS) -> list[Bar]:
    """Return the chunks by state, or the items by outcome, as parts of one bar; the parts sum to the total."""
    bars: list[Bar] = []
    x = 0.0
    for name, tone in names:
        count = counts.get(name, 0)
        width = _WIDTH * count / max(1, total)
        if count:
            bars.append(Bar(name, count, tone, round(x, 2), round(width, 2)))
        x += width
    return bars


def item_bars(fanout: Mapping[str, Any]) -> list[Bar]:
    """Return the items by outcome. Once the fan-out has ended, open ones are those of cancelled and skipped chunks."""
    bars = buckets(fanout["items"], fanout["items"]["total"], _ITEM_BUCKETS)
    if not fanout["is_finished"]:
        return bars
    return [replace(bar, name="not run") if bar.name == "open" else bar for bar in bars]


def _items_sentence(items: Mapping[str, int], of_all: str) -> str:
    """Return what is the matter with a fan-out none of whose chunks has failed."""
    if items["failed"]:
        return f"{items['failed']:,} of {items['total']:,} items failed. Fix the cause, then redrive them."
    deferred = f"; {items['deferred']:,} items are deferred to the slow lane" if items["deferred"] else ""
    return f"{of_all}{deferred}."


def sentence(fanout: Mapping[str, Any]) -> str:
    """Return what is the matter with a fan-out, in one sentence."""
    counts, chunks = fanout["counts"], fanout["chunks"]
    failed, total = chunks["failed"], chunks["total"]
    of_all = f"{chunks['completed']:,} of {total:,} chunks are done"
    failures = f"; {failed:,} failed" if failed else ""
    if fanout["split_error"]:
        return f"The split failed: {fanout['split_error']}"
    match fanout["status"]:
        case FanoutStatus.SPLITTING:
            return f"The input is being split; {of_all}{failures}."
        case FanoutStatus.SUCCEEDED:
            tolerated = f"{of_all}{failures}, which is tolerated."
            return tolerated if failed else f"All {total:,} chunks are done."
        case FanoutStatus.CANCELLED:
            return f"It was cancelled; {of_all}{failures}."
        case FanoutStatus.RUNNING:
            held = f"It is paused because {fanout['reason']}; " if fanout["exceeded_at"] else "It is paused; "
            held = held if fanout["paused_at"] else ""
            stalled = f" {fanout['stall']['reason']}." if fanout["stall"] else ""
            return f"{held}{of_all}, {counts.get('running', 0):,} running{failures}.{stalled}"
        case FanoutStatus.FAILED if fanout["exceeded_at"]:
            return f"It failed because {fanout['reason']}. Fix the cause, then redrive all."
        case _ if not failed:
            return _items_sentence(fanout["items"], of_all)
        case _:
            return f"{failed:,} of {total:,} chunks failed. Fix the cause, then redrive them."


def fanout_list(api: ApiCaller, query: Mapping[str, Any]) -> FanoutList:
    """Return a page of the list. Raises as the API operation."""
    found = api.call("GET /fanouts", query={**query, "limit": LISTED})
    rows = []
    for each in found["fanouts"]:
        total, done, failed = each["chunks_total"], each["chunks_completed"], each["chunks_failed"]
        counts = {"done": done, "dead": failed, "queued": total - done - failed}
        rows.append(FanoutRow(each, buckets(counts, total), done / max(1, total)))
    filters = {name: str(query.get(name, "")) for name in FILTERS}
    return FanoutList(rows=rows, cursor=found["cursor"], filters=filters)


def fanout_page(api: ApiCaller, run_id: str) -> FanoutPage:
    """Return the page of a fan-out. Raises `NotFoundError`, and as the API operation."""
    path = {"id": run_id}
    fanout = api.call("GET /fanouts/{id}", path=path)
    base = f"{PREFIX}/fanouts/{segment(run_id)}"
    errors = api.section("GET /fanouts/{id}/errors", path=path)
    return FanoutPage(
        fanout=fanout,
        bars=buckets(fanout["counts"], fanout["chunks"]["total"]),
        item_bars=item_bars(fanout),
        sentence=sentence(fanout),
        eta=_eta(fanout),
        errors=errors,
        traces=_traces(api, run_id, errors.items("groups")[:TRACED_MAX]),
        failures=api.section("GET /fanouts/{id}/failures", path=path, query={"limit": SHOWN_MAX}),
        stuck=api.section("GET /fanouts/{id}/stuck", path=path, query={"limit": SHOWN_MAX}),
        events=api.section("GET /fanouts/{id}/events", path=path),
        cells=f"{base}/cells",
        plots=tuple(
            (title, f"{base}/plots/{name}")
            for name, title in (
                ("progress", "Chunks done over time"),
                ("durations", "How long chunks take"),
                ("workers", "What each worker did"),
            )
        ),
        commands=(
            ("Follow it", command("fanout", "watch", run_id)),
            ("Its failures", command("fanout", "failures", run_id)),
            ("Its failed items", command("fanout", "items", run_id)),
            ("Compare it with another", command("fanout", "compare", run_id, "OTHER")),
            ("Check its counters", command("fanout", "reconcile", run_id)),
        ),
    )


def _traces(api: ApiCaller, run_id: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, Trace]:
    """Return the newest traceback or output of the first chunk of each group, as far as there is one."""
    found: dict[str, Trace] = {}
    for group in groups:
        for chunk_id in group["chunk_ids"][:1]:
            path = {"id": run_id, "chunk_id": chunk_id}
            logs = api.section("GET /fanouts/{id}/chunks/{chunk_id}/logs", path=path)
            texts = [(log["traceback"], log["printed"]) for log in logs.items("logs")]
            if texts:
                traceback, printed = texts[-1]
                found[group["fingerprint"]] = Trace(chunk_id, traceback or printed, is_output=not traceback)
    return found


def _eta(fanout: Mapping[str, Any]) -> str:
    """Return the band of the remaining time, or "unknown"; the page says why below it."""
    estimate = fanout["estimate"]
    if fanout["is_finished"]:
        return ""
    return "unknown" if estimate["unknown"] else str(estimate["text"])


def _steer(run_id: str, verb: str, label: str, text: str, done: str, tone: Tone = Tone.PLAIN) -> Action:
    return Action(
        label=label,
        sentence=text,
        path=f"/fanouts/{segment(run_id)}/{verb}",
        cli=f"{command('fanout', verb, run_id)} --reason {{reason}}",
        tone=tone,
        done=done,
    )


def fanout_actions(api: ApiCaller, fanout: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the actions that fit the state of a fan-out."""
    run_id, failed = fanout["run_id"], fanout["chunks"]["failed"]
    failed_items = fanout["items"]["failed"]
    found: list[Action] = []
    if failed or failed_items:
        what = "chunks" if failed else "items"
        of_all = f"{failed:,} failed chunks and all" if failed else f"{failed_items:,}"
        found.append(
            Action(
                label=f"Redrive failed {what}",
                sentence=f"Runs the {of_all} failed items of this fan-out again, with the code as it is now.",
                path=f"/fanouts/{segment(run_id)}/redrive",
                body={"failed": True},
                cli=f"{command('fanout', 'redrive', run_id, '--failed')} --reason {{reason}}",
                tone=Tone.PRIMARY,
                done=f"The failed {what} are queued again.",
            )
        )
    if not fanout["is_finished"]:
        if fanout["paused_at"]:
            found.append(
                _steer(run_id, "resume", "Resume", "Workers start chunks of this fan-out again.", "It goes on.")
            )
        else:
            found.append(
                _steer(run_id, "pause", "Pause", "No further chunk starts; running ones finish.", "It is paused.")
            )
        found.append(
            _steer(
                run_id, "cancel", "Cancel", "Ends the fan-out. Open chunks are cancelled.", "It is cancelled.",
                Tone.DANGER,
            )
        )  # fmt: skip
    return tuple(allowed(api, Permission.FANOUT_WRITE, each) for each in found)


def error_actions(api: ApiCaller, run_id: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, Action]:
    """Return the redrive of each group of errors by its fingerprint."""
    return {
        each["fingerprint"]: allowed(
            api,
            Permission.FANOUT_WRITE,
            Action(
                label="Redrive",
                sentence=f"Runs the chunks and items that failed with {each['error_class']} again.",
                path=f"/fanouts/{segment(run_id)}/redrive",
                body={"fingerprint": each["fingerprint"]},
                cli=f"{command('fanout', 'redrive', run_id, '--fingerprint', each['fingerprint'])} --reason {{reason}}",
                done="They are queued again.",
            ),
        )
        for each in groups
    }


def chunk_actions(api: ApiCaller, run_id: str, chunk: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the actions that fit the state of a chunk."""
    chunk_id = chunk["chunk_id"]
    found: list[Action] = []
    if chunk["status"] in ("FAILED", "CANCELLED"):
        found.append(
            Action(
                label="Redrive this chunk",
                sentence="Queues the chunk again, with the code as it is now.",
                path=f"/fanouts/{segment(run_id)}/redrive",
                body={"chunk_ids": [chunk_id]},
                cli=f"{command('fanout', 'redrive', run_id, chunk_id)} --reason {{reason}}",
                tone=Tone.PRIMARY,
                done="The chunk is queued again.",
            )
        )
        found.append(
            Action(
                label="Bisect",
                sentence="Cuts the chunk in two halves and runs both, to find the item that fails.",
                path=f"/fanouts/{segment(run_id)}/bisect",
                body={"chunk_id": chunk_id},
                fields=(),
                cli=command("fanout", "bisect", run_id, chunk_id),
                done="Both halves are queued.",
            )
        )
    if chunk["status"] == "COMPLETED" and chunk.get("item_errors"):
        found.append(
            Action(
                label="Redrive its failed items",
                sentence="Runs only the failed items of this chunk again, with the code as it is now.",
                path=f"/fanouts/{segment(run_id)}/redrive",
                body={"chunk_ids": [chunk_id]},
                cli=f"{command('fanout', 'redrive', run_id, chunk_id)} --reason {{reason}}",
                tone=Tone.PRIMARY,
                done="The failed items are queued again.",
            )
        )
    if chunk["status"] in ("FAILED", "PENDING"):
        found.append(
            Action(
                label="Skip",
                sentence="The chunk counts as handled without being run.",
                path=f"/fanouts/{segment(run_id)}/skip",
                body={"chunk_ids": [chunk_id]},
                cli=f"{command('fanout', 'skip', run_id, chunk_id)} --reason {{reason}}",
                tone=Tone.DANGER,
                done="The chunk is skipped.",
            )
        )
    return tuple(allowed(api, Permission.FANOUT_WRITE, each) for each in found)


def _list(api: ApiCaller, request: PageRequest) -> Page:
    view = fanout_list(api, request.query)
    filters = (("--group", request.query.get("group")), ("--status", request.query.get("status")))
    return Page(
        template="fanouts.html",
        title="Fan-outs",
        view=view,
        json=twin("/fanouts", request.query),
        cli=command("fanout", "ls", *options(filters)),
        changes=changes_of(of=ALL_WORK),
        section="fanouts",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    run_id = request.path["run_id"]
    view = fanout_page(api, run_id)
    actions = fanout_actions(api, view.fanout)
    groups = view.errors.items("groups")
    return Page(
        template="fanout.html",
        title=run_id,
        crumbs=(("Fan-outs", "/ui/fanouts"),),
        view=(view, error_actions(api, run_id, groups)),
        actions=actions,
        json=twin(f"/fanouts/{segment(run_id)}"),
        cli=command("fanout", "show", run_id),
        changes=changes_of(of=ALL_WORK),
        section="fanouts",
    )


def _chunk(api: ApiCaller, request: PageRequest) -> Page:
    run_id, chunk_id = request.path["run_id"], request.path["chunk_id"]
    path = {"id": run_id, "chunk_id": chunk_id}
    chunk = api.call("GET /fanouts/{id}/chunks/{chunk_id}", path=path)
    logs = api.call("GET /fanouts/{id}/chunks/{chunk_id}/logs", path=path)
    return Page(
        template="chunk.html",
        title=chunk_id,
        crumbs=(("Fan-outs", "/ui/fanouts"), (run_id, f"/ui/fanouts/{segment(run_id)}")),
        view=ChunkPage(
            run_id=run_id,
            chunk=chunk,
            logs=[*reversed(logs["logs"])],
            commands=(
                ("This page", command("chunk", "show", run_id, chunk_id)),
                ("Output and tracebacks", command("chunk", "logs", run_id, chunk_id)),
            ),
        ),
        actions=chunk_actions(api, run_id, chunk),
        json=twin(f"/fanouts/{segment(run_id)}/chunks/{segment(chunk_id)}"),
        cli=command("chunk", "show", run_id, chunk_id),
        changes=changes_of(of=ALL_WORK),
        section="fanouts",
    )


PAGES: Final = (
    PageRoute("/fanouts", _list, FILTERS, needs="GET /fanouts"),
    PageRoute("/fanouts/{run_id:str}", _one),
    PageRoute("/fanouts/{run_id:str}/chunks/{chunk_id:str}", _chunk),
)
