"""Worker lanes: a chart with a lane per worker and a bar per attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.fanout.insight.plot_axes import (
    AMBER,
    BLUE,
    BOTTOM,
    BROWN,
    GREEN,
    GREY,
    RED,
    WIDTH,
    Entry,
    Frame,
    document,
    empty,
    head,
    label,
    rectangle,
    shortened,
    time_text,
    time_ticks,
    x_axis,
)
from headgate.fanout.model.rows import Attempt, Chunk, timestamp_ms
from headgate.fanout.model.states import AttemptOutcome, Disposition
from headgate.fanout.model.worker_names import short_worker_name

LANES_MAX: Final = 30
SPANS_MAX: Final = 2000
LANE: Final = 16.0
_NAME_LENGTH: Final = 22
_OUTCOME_COLOURS: Final[Mapping[AttemptOutcome, str]] = {
    AttemptOutcome.COMPLETED: GREEN,
    AttemptOutcome.FAILED: RED,
    AttemptOutcome.LOST: AMBER,
    AttemptOutcome.CANCELLED: GREY,
    AttemptOutcome.RELEASED: BROWN,
}
_RUNNING: Final = "running"
_ENDED_AS: Final = {
    Disposition.DONE: AttemptOutcome.COMPLETED,
    Disposition.DEFERRED: AttemptOutcome.COMPLETED,
    Disposition.RETRYING: AttemptOutcome.FAILED,
    Disposition.DEAD: AttemptOutcome.FAILED,
    Disposition.QUARANTINED: AttemptOutcome.FAILED,
    Disposition.CANCELLED: AttemptOutcome.CANCELLED,
}


class Span(Struct, frozen=True):
    """The time of one attempt on a worker. `outcome` is None while it runs."""

    worker: str
    chunk_id: str
    attempt: int
    begin_ms: int
    end_ms: int
    outcome: AttemptOutcome | None


def lanes_plot(
    run_id: str, chunks: Iterable[Chunk], attempts: Iterable[Attempt], now_ms: int, *, note: str = ""
) -> str:
    """Return a chart of attempts over time, with a lane per worker.

    With many workers, those with failures and then the busiest are shown; with many attempts, an even choice of
    failures and others. The chart says how many it leaves out.
    """
    title = f"Workers of {run_id}"
    spans = spans_of(chunks, attempts, now_ms)
    if not spans:
        return empty("lanes", title, "No worker has claimed a chunk yet.")
    lanes = _lanes(spans)
    shown = _thinned([span for span in spans if span.worker in lanes])
    begin_ms = min(span.begin_ms for span in shown)
    seconds = max(0.001, (max(span.end_ms for span in shown) - begin_ms) / 1000)
    workers = len({span.worker for span in spans})
    left_out = f"{len(shown)} of {len(spans)} attempts" if len(shown) < len(spans) else f"{len(spans)} attempts"
    detail = f"{len(lanes)} of {workers} workers, {left_out}. {note}".strip()
    body, top = head(_outcome_entries(shown), detail, width=WIDTH)
    frame = Frame(left=160, top=top, height=top + LANE * len(lanes) + BOTTOM)
    for lane, name in enumerate(_labels(lanes)):
        body.append(label(frame.left - 6, frame.top + LANE * lane + 12, shortened(name, _NAME_LENGTH), anchor="end"))
    for span in sorted(shown, key=lambda one: one.begin_ms):
        left = frame.x((span.begin_ms - begin_ms) / 1000 / seconds)
        right = frame.x((span.end_ms - begin_ms) / 1000 / seconds)
        body.append(_span_bar(span, left, right, frame.top + LANE * lanes[span.worker]))
    body += x_axis(frame, time_ticks(seconds), "since the first attempt that is shown")
    return document("lanes", title, detail, body, frame=frame)


def spans_of(chunks: Iterable[Chunk], attempts: Iterable[Attempt], now_ms: int) -> list[Span]:
    """Return the attempts found in chunks and attempt rows, each once, earliest first."""
    found: dict[tuple[str, int], Span] = {}
    for chunk in chunks:
        span = _chunk_span(chunk, now_ms)
        if span is not None:
            found[span.chunk_id, span.attempt] = span
    for attempt in attempts:
        chunk_id = attempt.sk.split("#")[1]
        if attempt.worker is not None:
            end_ms = timestamp_ms(attempt.ended_at)
            begin_ms = _begin_ms(attempt.started_at, attempt.duration_ms, end_ms)
            span = Span(attempt.worker, chunk_id, attempt.attempt, begin_ms, end_ms, attempt.outcome)
            found[chunk_id, attempt.attempt] = span
    return sorted(found.values(), key=lambda span: (span.begin_ms, span.chunk_id, span.attempt))


def _chunk_span(chunk: Chunk, now_ms: int) -> Span | None:
    if chunk.worker is None or not chunk.attempt:
        return None
    if chunk.disposition is Disposition.RUNNING:
        begin_ms = _begin_ms(chunk.started_at, None, now_ms)
        return Span(chunk.worker, chunk.chunk_id, chunk.attempt, min(begin_ms, now_ms), now_ms, None)
    if chunk.disposition not in _ENDED_AS or chunk.completed_at is None:
        return None
    end_ms = timestamp_ms(chunk.completed_at)
    begin_ms = _begin_ms(chunk.started_at, chunk.duration_ms, end_ms)
    return Span(chunk.worker, chunk.chunk_id, chunk.attempt, begin_ms, end_ms, _ENDED_AS[chunk.disposition])


def _begin_ms(started_at: str | None, duration_ms: int | None, end_ms: int) -> int:
    """Return when work began. Batched claims start early, so that the measured duration counts if there is one."""
    if duration_ms is not None:
        return end_ms - duration_ms
    return min(end_ms, timestamp_ms(started_at)) if started_at is not None else end_ms


def _lanes(spans: Sequence[Span]) -> dict[str, int]:
    """Return the lane of each shown worker, in the order of their first attempts."""
    weights: dict[str, tuple[int, int]] = {}
    for span in spans:
        failures, busy_ms = weights.get(span.worker, (0, 0))
        weights[span.worker] = (failures + _is_bad(span), busy_ms + span.end_ms - span.begin_ms)
    chosen = set(sorted(weights, key=lambda worker: (-weights[worker][0], -weights[worker][1], worker))[:LANES_MAX])
    in_order = (worker for worker in weights if worker in chosen)
    return {worker: lane for lane, worker in enumerate(in_order)}


def _labels(workers: Iterable[str]) -> list[str]:
    """Return the short names of workers. Several of one process, as for its main and slow lane, are numbered."""
    seen: Counter[str] = Counter()
    labels = []
    for worker in workers:
        name = short_worker_name(worker)
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return labels


def _thinned(spans: Sequence[Span]) -> list[Span]:
    bad = [span for span in spans if _is_bad(span)]
    good = [span for span in spans if not _is_bad(span)]
    shown = _even(bad, max(SPANS_MAX // 2, SPANS_MAX - len(good)))
    return [*shown, *_even(good, SPANS_MAX - len(shown))]


def _even(spans: Sequence[Span], most: int) -> list[Span]:
    """Return that many spans, chosen evenly."""
    count = min(len(spans), most)
    return [spans[place * len(spans) // count] for place in range(count)]


def _is_bad(span: Span) -> bool:
    return span.outcome in (AttemptOutcome.FAILED, AttemptOutcome.LOST)


def _outcome_entries(spans: Iterable[Span]) -> list[Entry]:
    found = {span.outcome for span in spans}
    entries = [Entry(colour, outcome.value.lower()) for outcome, colour in _OUTCOME_COLOURS.items() if outcome in found]
    return [*entries, Entry(BLUE, _RUNNING)] if None in found else entries


def _span_bar(span: Span, left: float, right: float, top: float) -> str:
    ended = _RUNNING if span.outcome is None else span.outcome.value.lower()
    tip = f"{span.chunk_id} attempt {span.attempt}: {ended}, {time_text((span.end_ms - span.begin_ms) / 1000)}"
    colour = BLUE if span.outcome is None else _OUTCOME_COLOURS[span.outcome]
    return rectangle(left, top + 2, max(1.0, right - left - 0.5), LANE - 4, colour, mark="span", tip=tip)
