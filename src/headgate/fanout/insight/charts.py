"""Charts: progress, durations and attempts of a fan-out as self-contained SVG.

If the rows are a sample, the caller says so in `note`, which is shown below the title.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from headgate.fanout.insight.eta import Spread, durations_of, history, spread_of
from headgate.fanout.insight.plot_axes import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    RED,
    WIDTH,
    Entry,
    Frame,
    Tick,
    count_text,
    count_ticks,
    document,
    empty,
    head,
    label,
    log_time_ticks,
    number,
    rectangle,
    time_text,
    time_ticks,
    x_axis,
    y_axis,
)
from headgate.fanout.insight.progress import attempts_histogram
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk, Fanout

BINS_PER_DECADE: Final = 8
BINS_MAX: Final = 40
# Minimum height of a bar, so that a single chunk is visible.
BAR_HEIGHT_MIN: Final = 2.0
# Attempt counts from this one on share a bar.
ATTEMPTS_TOGETHER: Final = 10


def progress_plot(fanout: Fanout, counts: Counts, chunks: Sequence[Chunk], now_ms: int, *, note: str = "") -> str:
    """Return the chart of completed and failed chunks over time, from a sample of chunks and the counts."""
    title = f"Progress of {fanout.run_id}"
    points = history(fanout, counts, chunks, now_ms)
    if counts.total == 0 or len(points) < 2:
        return empty("progress", title, "No chunk has been begun yet.")
    entries = [
        Entry(GREEN, f"completed {count_text(counts.completed)}"),
        Entry(RED, f"failed {count_text(counts.failed)}"),
        Entry(GREY, f"of {count_text(counts.total)}"),
    ]
    above, top = head(entries, note, width=WIDTH)
    frame = Frame(top=top)
    highest, ticks = count_ticks(counts.total)
    seconds = (points[-1].at_ms - points[0].at_ms) / 1000
    shares = [(point.at_ms - points[0].at_ms) / 1000 / seconds for point in points]
    done = _curve(frame, shares, [point.completed / highest for point in points], GREEN, "completed")
    failed = _curve(
        frame, shares, [point.failed / highest for point in points], RED, "failed", dashes=' stroke-dasharray="5 3"'
    )
    whole = _curve(frame, [0, 1], [counts.total / highest] * 2, GREY, "total", dashes=' stroke-dasharray="2 3"')
    detail = (
        f"{counts.completed} of {counts.total} chunks completed and {counts.failed} failed in {time_text(seconds)}."
    )
    axes = [*x_axis(frame, time_ticks(seconds), "since the first chunk was begun"), *y_axis(frame, ticks, "chunks")]
    body = [*above, *axes, whole, done, failed]
    return document("progress", title, f"{detail} {note}", body, frame=frame)


def durations_plot(run_id: str, chunks: Iterable[Chunk], *, note: str = "") -> str:
    """Return the histogram of durations of completed chunks, in bins of equal ratio, with the tail highlighted."""
    title = f"How long chunks of {run_id} took"
    durations_ms = durations_of(chunks)
    spread = spread_of(durations_ms)
    if spread is None:
        return empty("durations", title, "No chunk has completed yet.")
    detail = (
        f"p50 {time_text(spread.p50_ms / 1000)}, p95 {time_text(spread.p95_ms / 1000)}, "
        f"p99 {time_text(spread.p99_ms / 1000)}, longest {time_text(spread.max_ms / 1000)}. {note}"
    ).strip()
    entries = [Entry(GREEN, "up to p95"), Entry(AMBER, "p95 to p99"), Entry(RED, "above p99")]
    above, top = head(entries, detail, width=WIDTH)
    frame = Frame(top=top)
    edges = log_edges(durations_ms[0], durations_ms[-1])
    bins = binned(durations_ms, edges)
    highest, ticks = count_ticks(max(bins))
    marks = []
    for place, count in enumerate(bins):
        left, right = frame.x(place / len(bins)), frame.x((place + 1) / len(bins))
        if count:
            tip = f"{time_text(edges[place] / 1000)} to {time_text(edges[place + 1] / 1000)}: {count} chunks"
            colour = _tail_colour(spread, edges[place])
            marks.append(_bar(frame, left, right - left - 1, count / highest, colour, tip))
    times = log_time_ticks(edges[0] / 1000, edges[-1] / 1000)
    axes = [*x_axis(frame, times, "duration, each bin longer by the same ratio"), *y_axis(frame, ticks, "chunks")]
    body = [*above, *axes, *marks, *_percentiles(frame, spread, edges)]
    return document("durations", title, f"{spread.count} completed chunks: {detail}", body, frame=frame)


def attempts_plot(run_id: str, chunks: Iterable[Chunk], *, note: str = "") -> str:
    """Return the histogram of attempts per chunk."""
    title = f"Attempts at chunks of {run_id}"
    found = attempts_histogram(chunks)
    if not found:
        return empty("attempts", title, "No chunk has been begun yet.")
    total = sum(found.values())
    detail = f"{total - found.get(1, 0)} of {total} chunks took more than one attempt. {note}".strip()
    entries = [Entry(GREEN, "at the first attempt"), Entry(AMBER, "at a later one")]
    above, top = head(entries, detail, width=WIDTH)
    frame = Frame(top=top, height=260)
    bars: dict[int, int] = dict.fromkeys(range(1, min(ATTEMPTS_TOGETHER, max(found)) + 1), 0)
    for attempts, count in found.items():
        bars[min(ATTEMPTS_TOGETHER, attempts)] += count
    highest, ticks = count_ticks(max(bars.values()))
    marks, names = [], []
    for attempts, count in bars.items():
        middle = (attempts - 0.5) / len(bars)
        name = f"{attempts} or more" if attempts == ATTEMPTS_TOGETHER else str(attempts)
        width = min(60.0, 0.7 * frame.inner_width / len(bars))
        names.append(Tick(middle, name))
        if count:
            left = frame.x(middle) - width / 2
            colour = GREEN if attempts == 1 else AMBER
            marks.append(_bar(frame, left, width, count / highest, colour, f"{count} chunks took {name} attempts"))
            marks.append(label(frame.x(middle), frame.y(count / highest) - 4, count_text(count), anchor="middle"))
    axes = [*x_axis(frame, names, "attempts"), *y_axis(frame, ticks, "chunks")]
    return document("attempts", title, detail, [*above, *axes, *marks], frame=frame)


def log_edges(low_ms: float, high_ms: float) -> list[float]:
    """Return the edges of bins of equal ratio that cover `low_ms` to `high_ms`."""
    low, high = max(1.0, low_ms), max(1.0, high_ms)
    if high / low < 1.5:
        low, high = low / 1.25, high * 1.25
    bins = min(BINS_MAX, max(1, math.ceil(BINS_PER_DECADE * math.log10(high / low))))
    return [low * (high / low) ** (place / bins) for place in range(bins + 1)]


def binned(durations_ms: Iterable[float], edges: Sequence[float]) -> list[int]:
    """Return the number of durations in each bin; the outermost bins include values beyond them."""
    bins = [0] * (len(edges) - 1)
    ratio = math.log(edges[-1] / edges[0])
    for duration in durations_ms:
        place = math.floor(len(bins) * math.log(max(1.0, duration) / edges[0]) / ratio)
        bins[min(len(bins) - 1, max(0, place))] += 1
    return bins


def _curve(frame: Frame, xs: Sequence[float], ys: Sequence[float], colour: str, mark: str, *, dashes: str = "") -> str:
    points = " ".join(f"{number(frame.x(x))},{number(frame.y(y))}" for x, y in zip(xs, ys, strict=True))
    return f'<polyline class="{mark}" points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _bar(frame: Frame, x: float, width: float, share: float, colour: str, tip: str) -> str:
    height = max(BAR_HEIGHT_MIN, frame.y(0) - frame.y(share))
    return rectangle(x, frame.y(0) - height, max(1.0, width), height, colour, mark="bar", tip=tip)


def _tail_colour(spread: Spread, low_ms: float) -> str:
    if low_ms > spread.p99_ms:
        return RED
    return AMBER if low_ms > spread.p95_ms else GREEN


def _percentiles(frame: Frame, spread: Spread, edges: Sequence[float]) -> list[str]:
    drawn = []
    for line, (name, value) in enumerate((("p50", spread.p50_ms), ("p95", spread.p95_ms), ("p99", spread.p99_ms))):
        share = _log_share(value, edges[0], edges[-1])
        at = number(frame.x(share))
        drawn.append(
            f'<line class="percentile" x1="{at}" y1="{number(frame.y(1))}" x2="{at}" y2="{number(frame.y(0))}" '
            f'stroke="{BLUE}" stroke-dasharray="3 3"/>'
        )
        anchor, beside = ("end", -4) if share > 0.9 else ("start", 4)
        drawn.append(label(frame.x(share) + beside, frame.y(1) + 10 + 13 * line, name, anchor=anchor))
    return drawn


def _log_share(value: float, low: float, high: float) -> float:
    return math.log(max(1.0, value) / low) / math.log(high / low)
