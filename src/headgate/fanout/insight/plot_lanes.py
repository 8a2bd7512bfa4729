"""Worker lanes: a chart with a lane for each process of a worker, and a bar for each attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

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
    dashed,
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


# A worker and the number of its process.
Lane = tuple[str, int]


class Span(Struct, frozen=True):
    """The time of one attempt on a worker. `outcome` is None while it runs.

    A lost attempt is known to have run until `known_ms`; from there on nothing was heard of its worker.
    """

    worker: str
    chunk_id: str
    attempt: int
    begin_ms: int
    end_ms: int
    outcome: AttemptOutcome | None
    # Number of the worker's process; 0 if it is unknown.
    process: int = 0
    known_ms: int | None = None

    @property
    def lane(self) -> Lane:
        """The process that it ran in."""
        return self.worker, self.process


def lanes_plot(
    run_id: str, chunks: Iterable[Chunk], attempts: Iterable[Attempt], now_ms: int, *, note: str = ""
) -> str:
    """Return a chart of attempts over time, with a lane for each process of a worker.

    With many processes, those with failures and then the busiest are shown; with many attempts, an even choice of
    failures and others. The chart says how many it leaves out.
    """
    title = f"Workers of {run_id}"
    spans = _placed(spans_of(chunks, attempts, now_ms))
    if not spans:
        return empty("lanes", title, "No worker has claimed a chunk yet.")
    lanes = _lanes(spans)
    shown = _thinned([span for span in spans if span.lane in lanes])
    begin_ms = min(span.begin_ms for span in shown)
    seconds = max(0.001, (max(span.end_ms for span in shown) - begin_ms) / 1000)
    processes = len({span.lane for span in spans})
    left_out = f"{len(shown)} of {len(spans)} attempts" if len(shown) < len(spans) else f"{len(spans)} attempts"
    is_lost = any(span.outcome is AttemptOutcome.LOST for span in shown)
    lost = " Dashed: lost, nothing was heard of the worker." if is_lost else ""
    detail = f"{len(lanes)} of {processes} processes, {left_out}.{lost} {note}".strip()
    body, top = head(_outcome_entries(shown), detail, width=WIDTH)
    frame = Frame(left=160, top=top, height=top + LANE * len(lanes) + BOTTOM)
    for lane, name in enumerate(_labels(lanes)):
        body.append(label(frame.left - 6, frame.top + LANE * lane + 12, shortened(name, _NAME_LENGTH), anchor="end"))
    for span in sorted(shown, key=lambda one: one.begin_ms):
        left = frame.x((span.begin_ms - begin_ms) / 1000 / seconds)
        right = frame.x((span.end_ms - begin_ms) / 1000 / seconds)
        known = right if span.known_ms is None else frame.x((span.known_ms - begin_ms) / 1000 / seconds)
        body.append(_span_bar(span, left, right, known, frame.top + LANE * lanes[span.lane]))
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
            found[chunk_id, attempt.attempt] = _attempt_span(attempt, attempt.worker, chunk_id)
    return sorted(found.values(), key=lambda span: (span.begin_ms, span.chunk_id, span.attempt))


def _attempt_span(attempt: Attempt, worker: str, chunk_id: str) -> Span:
    end_ms, number = timestamp_ms(attempt.ended_at), attempt.process or 0
    if attempt.outcome is AttemptOutcome.LOST and attempt.started_at is not None:
        begin_ms = min(end_ms, timestamp_ms(attempt.started_at))
        known_ms = min(end_ms, begin_ms + (attempt.duration_ms or 0))
        return Span(worker, chunk_id, attempt.attempt, begin_ms, end_ms, attempt.outcome, number, known_ms)
    begin_ms = _begin_ms(attempt.started_at, attempt.duration_ms, end_ms)
    return Span(worker, chunk_id, attempt.attempt, begin_ms, end_ms, attempt.outcome, number)


def _placed(spans: Sequence[Span]) -> list[Span]:
    """Return the spans with a process each: attempts that run or were lost get one of their worker that was free.

    A worker without numbered processes, such as a function, keeps one lane.
    """
    free_ms: dict[str, dict[int, int]] = {}
    for span in spans:
        if span.process:
            free_ms.setdefault(span.worker, {})[span.process] = 0
    placed = []
    for span in spans:
        ends_ms = free_ms.get(span.worker)
        if ends_ms is not None:
            number = span.process or min(ends_ms, key=lambda each: (ends_ms[each], each))
            ends_ms[number] = max(ends_ms[number], span.end_ms)
            placed.append(replace(span, process=number))
        else:
            placed.append(span)
    return placed


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
    outcome = _ENDED_AS[chunk.disposition]
    return Span(chunk.worker, chunk.chunk_id, chunk.attempt, begin_ms, end_ms, outcome, chunk.process or 0)


def _begin_ms(started_at: str | None, duration_ms: int | None, end_ms: int) -> int:
    """Return when work began. Batched claims start early, so that the measured duration counts if there is one."""
    if duration_ms is not None:
        return end_ms - duration_ms
    return min(end_ms, timestamp_ms(started_at)) if started_at is not None else end_ms


def _lanes(spans: Sequence[Span]) -> dict[Lane, int]:
    """Return the place of each shown lane: workers in the order of their first attempts, each with its processes."""
    weights: dict[Lane, tuple[int, int]] = {}
    first: dict[str, int] = {}
    for span in spans:
        failures, busy_ms = weights.get(span.lane, (0, 0))
        weights[span.lane] = (failures + _is_bad(span), busy_ms + span.end_ms - span.begin_ms)
        first.setdefault(span.worker, len(first))
    chosen = sorted(weights, key=lambda lane: (-weights[lane][0], -weights[lane][1], lane))[:LANES_MAX]
    in_order = sorted(chosen, key=lambda lane: (first[lane[0]], lane[1]))
    return {lane: place for place, lane in enumerate(in_order)}


def _labels(lanes: Iterable[Lane]) -> list[str]:
    """Return the names of lanes, such as `4711@vm #2`. Several workers of a process, as for its two lanes, differ."""
    known: dict[str, str] = {}
    seen: Counter[str] = Counter()
    labels = []
    for worker, process in lanes:
        if worker not in known:
            name = short_worker_name(worker)
            seen[name] += 1
            known[worker] = name if seen[name] == 1 else f"{name} ({seen[name]})"
        labels.append(f"{known[worker]} #{process}" if process else known[worker])
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


def _span_bar(span: Span, left: float, right: float, known: float, top: float) -> str:
    ended = _RUNNING if span.outcome is None else span.outcome.value.lower()
    tip = f"{span.chunk_id} attempt {span.attempt}: {ended}, {time_text((span.end_ms - span.begin_ms) / 1000)}"
    colour = BLUE if span.outcome is None else _OUTCOME_COLOURS[span.outcome]
    if span.known_ms is None:
        return rectangle(left, top + 2, max(1.0, right - left - 0.5), LANE - 4, colour, mark="span", tip=tip)
    dead = dashed(known, top + 2, max(1.0, right - known - 0.5), LANE - 4, colour, mark="lost", tip=tip)
    if known - left < 1.0:
        return dead
    return rectangle(left, top + 2, known - left, LANE - 4, colour, mark="span", tip=tip) + dead
