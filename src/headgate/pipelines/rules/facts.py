"""Facts: the inputs of a pipeline's rules for one period, read once before the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from headgate.errors import TransientError, UserError
from headgate.pipelines.definition.model import Json, Pipeline, Upstream
from headgate.pipelines.enums import FailureCategory, RunStatus, TraitStatus, Verdict
from headgate.pipelines.runs.rows import Slot, run_log_key, run_log_of
from headgate.pipelines.sensors import Sensor, Sensors
from headgate.store.catalogue.tables import PIPELINES, RUN_LOG
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

# Most periods read of one upstream: a month of hours.
PERIODS_MAX: Final = 31 * 25
_SCHEDULES_MAX: Final = 100


class TraitFact(Struct, frozen=True, kw_only=True):
    """The result of a trait. An expired one is STALE."""

    status: TraitStatus
    reason: str = ""
    category: FailureCategory | None = None
    evaluated_at_ms: int = 0


class UpstreamFact(Struct, frozen=True, kw_only=True):
    """The upstream periods that are read, and the status of each that has started."""

    dates: tuple[str, ...] = ()
    statuses: Mapping[str, RunStatus] = {}
    # Why it is unknown, if it is.
    problem: str = ""


class DatasetFact(Struct, frozen=True, kw_only=True):
    """The gate's decision on a dataset."""

    verdict: Verdict
    reason: str = ""
    # UNKNOWN for a moment: what decides is under way, and the rule waits for it whatever its `on_unknown`.
    is_pending: bool = False


class RuleMemory(Struct, frozen=True):
    """The previous verdict of a rule, its start, and the number of consecutive passes."""

    verdict: Verdict
    since_ms: int
    passes: int = 0
    counted_at_ms: int = 0


class Memory(Struct, frozen=True, kw_only=True):
    """The previous evaluation by rule path. It is valid for the same rules only."""

    fingerprint: str
    rules: Mapping[str, RuleMemory]
    # Shortest distance between evaluations that count as separate passes.
    spacing_ms: int = 0


class Needs(Struct, frozen=True, kw_only=True):
    """The inputs of rules."""

    sensors: frozenset[str] = frozenset()
    # Those of which the newest value is read, whichever period it is of.
    any_period: frozenset[str] = frozenset()
    # Number of earlier periods by sensor.
    history: Mapping[str, int] = {}
    upstreams: tuple[Upstream, ...] = ()
    datasets: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()


class Facts(Struct, frozen=True, kw_only=True):
    """The inputs of an evaluation for one period. Immutable."""

    sensors: Mapping[str, Sensor] = {}
    # Sensors that are known only for another period, with that period.
    strays: Mapping[str, str] = {}
    # The fields of earlier periods, latest first.
    history: Mapping[str, Sequence[Mapping[str, Json]]] = {}
    traits: Mapping[str, TraitFact] = {}
    upstreams: Mapping[Upstream, UpstreamFact] = {}
    datasets: Mapping[str, DatasetFact] = {}
    memory: Memory | None = None


class PeriodDates(Protocol):
    """Computes earlier and upstream periods."""

    def earlier(self, pipeline: Pipeline, date: str, count: int) -> Sequence[str]:
        """Return the `count` periods before `date`, latest first."""

    def of_upstream(self, pipeline: Pipeline, upstream: Upstream, date: str) -> Sequence[str]:
        """Return the upstream periods that a run of `date` depends on. Raises `UserError` if there are none."""


Traits = Callable[[Pipeline, Slot, datetime], Mapping[str, TraitFact]]
Gate = Callable[[Sequence[str]], Mapping[str, DatasetFact]]


def _no_traits(_pipeline: Pipeline, _slot: Slot, _now: datetime) -> Mapping[str, TraitFact]:
    return {}


def _no_gate(_datasets: Sequence[str]) -> Mapping[str, DatasetFact]:
    return {}


class FactReader:
    """Reads facts. The number of reads depends on the inputs of the rules only."""

    def __init__(
        self,
        store: Store,
        sensors: Sensors,
        periods: PeriodDates,
        *,
        traits: Traits = _no_traits,
        gate: Gate = _no_gate,
    ) -> None:
        """`traits` returns current trait results, `gate` the decisions on datasets."""
        self._store = store
        self._sensors = sensors
        self._periods = periods
        self._traits = traits
        self._gate = gate

    def gather(
        self, pipeline: Pipeline, slot: Slot, needs: Needs, now: datetime, *, memory: Memory | None = None
    ) -> Facts:
        """Return the facts of a period. `memory` is that of the previous evaluation."""
        reading = self._sensors.read(pipeline.id, needs.sensors, slot.date, any_period=needs.any_period)
        has_traits = bool(needs.traits or pipeline.readiness.traits)
        return Facts(
            sensors=reading.sensors,
            strays=reading.strays,
            history=self._history(pipeline, slot.date, needs.history),
            traits=self._traits(pipeline, slot, now) if has_traits else {},
            upstreams=self._upstreams(pipeline, slot.date, needs.upstreams),
            datasets=self._datasets(needs.datasets),
            memory=memory,
        )

    def _history(
        self, pipeline: Pipeline, date: str, wanted: Mapping[str, int]
    ) -> dict[str, tuple[Mapping[str, Json], ...]]:
        if not wanted:
            return {}
        periods = {key: self._periods.earlier(pipeline, date, count) for key, count in wanted.items()}
        stored = self._sensors.read_periods(pipeline.id, periods)
        return {
            key: tuple(stored[key][period].data for period in dates if period in stored[key])
            for key, dates in periods.items()
        }

    def _upstreams(self, pipeline: Pipeline, date: str, wanted: Sequence[Upstream]) -> dict[Upstream, UpstreamFact]:
        return {upstream: self._upstream(pipeline, date, upstream) for upstream in wanted}

    def _upstream(self, pipeline: Pipeline, date: str, upstream: Upstream) -> UpstreamFact:
        try:
            dates = tuple(self._periods.of_upstream(pipeline, upstream, date))
        except UserError as exc:
            return UpstreamFact(problem=str(exc))
        if not 1 <= len(dates) <= PERIODS_MAX:
            return UpstreamFact(problem=f"it has {len(dates)} periods; 1 to {PERIODS_MAX} are allowed")
        return UpstreamFact(dates=dates, statuses=self._statuses(upstream, dates))

    def _statuses(self, upstream: Upstream, dates: Sequence[str]) -> dict[str, RunStatus]:
        if upstream.schedule is None:
            return self._statuses_of_any(upstream.pipeline, dates)
        keys = [run_log_key(Slot(upstream.pipeline, upstream.schedule, date)) for date in dates]
        # A consistent read: a run that has just ended must not be waited for.
        items = self._store.get_many(PIPELINES, keys, consistent=True)
        return {date: run_log_of(item).status for date, item in zip(dates, items, strict=True) if item is not None}

    def _statuses_of_any(self, pipeline_id: str, dates: Sequence[str]) -> dict[str, RunStatus]:
        """Return the status of each period over all schedules: done once every started one is done."""
        partition = RUN_LOG.key(pipeline_id=pipeline_id, date="-", schedule_id="-").partition
        queries = [
            Query(
                table=PIPELINES,
                partition=partition,
                sort=Sort(Range.BEGINS_WITH, f"RUNLOG#{date}#"),
                limit=_SCHEDULES_MAX,
                consistent=True,
            )
            for date in dates
        ]
        pages = self._store.query_many(queries)
        return {date: _worst(page.items) for date, page in zip(dates, pages, strict=True) if page.items}

    def _datasets(self, wanted: Sequence[str]) -> Mapping[str, DatasetFact]:
        if not wanted:
            return {}
        try:
            return self._gate(wanted)
        except TransientError as exc:
            problem = DatasetFact(verdict=Verdict.UNKNOWN, reason=f"the gate could not be read: {exc}")
            return dict.fromkeys(wanted, problem)


def _worst(items: Sequence[Item]) -> RunStatus:
    statuses = [run_log_of(item).status for item in items]
    return next((status for status in statuses if not status.is_done), statuses[0])
