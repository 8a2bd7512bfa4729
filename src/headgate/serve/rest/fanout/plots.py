"""Plots of fan-outs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from headgate.errors import NotFoundError
from headgate.fanout.insight.charts import attempts_plot, durations_plot, progress_plot
from headgate.fanout.insight.plot_lanes import lanes_plot
from headgate.fanout.insight.plot_maps import failure_map
from headgate.fanout.insight.samples import Sample, mapped, sampled, sampled_attempts
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout
from headgate.fanout.service import FanoutService


def draw(fanouts: FanoutService, run_id: str, name: str) -> str:
    """Return a plot of a fan-out as SVG. Raises `NotFoundError` for an unknown plot or fan-out."""
    drawing = _PLOTS.get(name)
    if drawing is None:
        raise NotFoundError(f"plot {name!r}: not found; available are {', '.join(_PLOTS)}")
    fanout = fanouts.queries.fanout(run_id)
    counts = fanouts.queries.counts(fanout)
    return drawing(_Drawn(fanouts, fanout, counts, sampled(fanouts.store, fanout, counts)))


class _Drawn(Struct, frozen=True):
    """Data of a plot."""

    fanouts: FanoutService
    fanout: Fanout
    counts: Counts
    sample: Sample

    @property
    def note(self) -> str:
        """Notice if the plot is based on a sample."""
        return "" if self.sample.is_whole else f"From a sample of {len(self.sample.chunks):,} chunks."

    def progress(self) -> str:
        now_ms = self.fanouts.queries.now_ms()
        return progress_plot(self.fanout, self.counts, self.sample.chunks, now_ms, note=self.note)

    def durations(self) -> str:
        return durations_plot(self.fanout.run_id, self.sample.chunks, note=self.note)

    def attempts(self) -> str:
        return attempts_plot(self.fanout.run_id, self.sample.chunks, note=self.note)

    def chunks(self) -> str:
        rows = mapped(self.fanouts.store, self.fanouts.queries, self.fanout, self.counts)
        return failure_map(
            self.fanout.run_id,
            rows.chunks,
            chunks_total=self.counts.total,
            items_total=self.fanout.items_total,
            counts=self.counts,
            cells_max=rows.cells_max,
            note=rows.note,
        )

    def workers(self) -> str:
        attempts = sampled_attempts(self.fanouts.store, self.fanout)
        now_ms = self.fanouts.queries.now_ms()
        return lanes_plot(self.fanout.run_id, self.sample.chunks, attempts, now_ms, note=self.note)


_PLOTS: Final[Mapping[str, Callable[[_Drawn], str]]] = {
    "progress": _Drawn.progress,
    "durations": _Drawn.durations,
    "attempts": _Drawn.attempts,
    "chunks": _Drawn.chunks,
    "workers": _Drawn.workers,
}
