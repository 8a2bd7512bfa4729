"""Downstream notifier: requests the periods of dependent pipelines when a run completes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.errors import NotFoundError, UserError
from headgate.pipelines.definition.model import Pipeline, Upstream
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.rules.facts import FactReader, Needs
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.schedule.dependencies import Dependency, upstreams_of
from headgate.pipelines.schedule.periods import periods_of
from headgate.pipelines.schedule.related_periods import RelatedPeriods
from headgate.pipelines.schedule.timetables import schedule_id_of

_SOURCE: Final = "cascade"


class DependentPeriod(Struct, frozen=True):
    """A period of a dependent pipeline that a completed period is an input of."""

    pipeline: Pipeline
    date: str
    dependency: Dependency


class DownstreamNotifier:
    """Wakes and starts the pipelines that depend on a completed period."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        facts: FactReader,
        events: EventWriter,
        clock: Clock,
        waiters: Waiters,
        periods: RelatedPeriods,
        dependents: Callable[[str], Sequence[str]],
    ) -> None:
        """`dependents` returns the ids of the pipelines that depend on a pipeline."""
        self._stores = stores
        self._definitions = definitions
        self._facts = facts
        self._events = events
        self._clock = clock
        self._waiters = waiters
        self._periods = periods
        self._dependents = dependents

    def notify(self, run: Run) -> int:
        """Wake executions that wait for a run, request the periods it completes, and return their number."""
        return self.notify_done(run.slot, self._definitions.of_run(run), run.run_id)

    def notify_done(self, slot: Slot, pipeline: Pipeline, run_id: str = "") -> int:
        """Do the same for a period that is done, by a run or because an operator marked it."""
        cascade = pipeline.cascade
        requested = 0
        delay_ms = round(1000 * cascade.delay_between)
        for dependent in self.dependent_periods(slot):
            target = Slot(dependent.pipeline.id, dependent.dependency.schedule, dependent.date)
            if not dependent.dependency.starts:
                self._waiters.wake_all(dependent.pipeline.id, WaitKind.CHANGE, f"{slot} is done")
                continue
            if not cascade.enabled or not self._is_complete(dependent):
                continue
            self._stores.markers.put_again(
                target,
                source=f"{_SOURCE}:{slot.pipeline_id}",
                data={"upstreamRunId": run_id, "notBeforeMs": epoch_ms(self._clock) + requested * delay_ms},
                also=self._events.writes(EventName.CASCADE_SENT, slot, {"run_id": run_id, "downstream": str(target)}),
            )
            requested += 1
        return requested

    def dependent_periods(self, slot: Slot) -> Iterator[DependentPeriod]:
        """Yield the periods of other pipelines that have this period as an input."""
        for pipeline_id in self._dependents(slot.pipeline_id):
            try:
                pipeline, _ = self._definitions.newest(pipeline_id)
            except NotFoundError:
                # The dependent pipeline was deleted in the meantime.
                continue
            for dependency in upstreams_of(pipeline):
                if dependency.upstream.pipeline == slot.pipeline_id and _is_of(dependency.upstream, slot):
                    yield from self._dates(pipeline, dependency, slot)

    def _dates(self, pipeline: Pipeline, dependency: Dependency, slot: Slot) -> Iterator[DependentPeriod]:
        own_periods = periods_of(pipeline)
        upstream, _ = self._definitions.newest(slot.pipeline_id)
        upstream_periods = periods_of(upstream, upstream.schedule(slot.schedule_id))
        # Candidates: the period that contains the upstream's start, and its two neighbours.
        near = own_periods.at(upstream_periods.start(slot.date))
        for date in dict.fromkeys((near, own_periods.next(near), own_periods.previous(near))):
            try:
                upstream_dates = self._periods.of_upstream(pipeline, dependency.upstream, date)
            except UserError:
                continue
            if slot.date in upstream_dates:
                yield DependentPeriod(pipeline, date, dependency)

    def _is_complete(self, dependent: DependentPeriod) -> bool:
        """Whether enough upstream periods are done to start the dependent schedule."""
        schedule_id = dependent.dependency.schedule
        schedule = next(each for each in dependent.pipeline.schedules if schedule_id_of(each) == schedule_id)
        slot = Slot(dependent.pipeline.id, schedule_id, dependent.date)
        needs = Needs(upstreams=schedule.upstream)
        facts = self._facts.gather(dependent.pipeline, slot, needs, self._clock.now())
        return all(_is_done(upstream, facts.upstreams[upstream]) for upstream in schedule.upstream)


def _is_of(upstream: Upstream, slot: Slot) -> bool:
    return upstream.schedule is None or upstream.schedule == slot.schedule_id


def _is_done(upstream: Upstream, fact: object) -> bool:
    dates = getattr(fact, "dates", ())
    statuses = getattr(fact, "statuses", {})
    missing = sum(not (date in statuses and statuses[date].is_done) for date in dates)
    return bool(dates) and missing <= upstream.missing_max
