"""Cascading: whom the end of a run concerns, and for which of their periods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import NotFoundError, UserError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline, Upstream
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.rules.facts import Needs
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.schedule.dependencies import Dependency, upstreams_of
from headgate.pipelines.schedule.periods import periods_of
from headgate.pipelines.schedule.related_periods import RelatedPeriods
from headgate.pipelines.schedule.timetables import schedule_id_of

_SOURCE: Final = "cascade"


class Concerned(Struct, frozen=True):
    """A period of another pipeline that a run may have been the last to be waited for by."""

    pipeline: Pipeline
    date: str
    dependency: Dependency


class Downstream:
    """The pipelines that depend on others."""

    def __init__(
        self,
        parts: Parts,
        waiters: Waiters,
        periods: RelatedPeriods,
        dependents: Callable[[str], Sequence[str]],
    ) -> None:
        """Take `dependents`, which gives the ids of the pipelines that depend on one."""
        self._parts = parts
        self._waiters = waiters
        self._periods = periods
        self._dependents = dependents

    def notify(self, run: Run) -> int:
        """Wake those who wait for this run, ask for the periods that it completes, and return how many these are."""
        return self.done(run.slot, self._parts.pipeline_of(run), run.run_id)

    def done(self, slot: Slot, pipeline: Pipeline, run_id: str = "") -> int:
        """Do what `notify` does for a period that is done, by a run or by someone's word."""
        parts = self._parts
        cascade = pipeline.cascade
        asked_for = 0
        delay_ms = round(1000 * cascade.delay_between)
        for concerned in self.concerned(slot):
            wanted = Slot(concerned.pipeline.id, concerned.dependency.schedule, concerned.date)
            if not concerned.dependency.starts:
                self._waiters.wake_all(concerned.pipeline.id, WaitKind.CHANGE, f"{slot} is done")
                continue
            if not cascade.enabled or not self._is_complete(concerned):
                continue
            parts.markers.put_again(
                wanted,
                source=f"{_SOURCE}:{slot.pipeline_id}",
                data={"upstreamRunId": run_id, "notBeforeMs": parts.now_ms() + asked_for * delay_ms},
                also=parts.tells(EventName.CASCADE_SENT, slot, {"run_id": run_id, "downstream": str(wanted)}),
            )
            asked_for += 1
        return asked_for

    def concerned(self, slot: Slot) -> Iterator[Concerned]:
        """Give the periods of other pipelines for which a period of this one counts."""
        for pipeline_id in self._dependents(slot.pipeline_id):
            try:
                pipeline, _ = self._parts.definitions.newest(pipeline_id)
            except NotFoundError:
                # Deleted since: what depended on nobody's behalf is not asked for.
                continue
            for dependency in upstreams_of(pipeline):
                if dependency.upstream.pipeline == slot.pipeline_id and _is_of(dependency.upstream, slot):
                    yield from self._dates(pipeline, dependency, slot)

    def _dates(self, pipeline: Pipeline, dependency: Dependency, slot: Slot) -> Iterator[Concerned]:
        ours = periods_of(pipeline)
        upstream, _ = self._parts.definitions.newest(slot.pipeline_id)
        theirs = periods_of(upstream, upstream.schedule(slot.schedule_id))
        # Ours that begins with theirs, its neighbours, and the one of the same name.
        near = ours.at(theirs.start(slot.date))
        for date in dict.fromkeys((near, ours.next(near), ours.previous(near))):
            try:
                looked_at = self._periods.of_upstream(pipeline, dependency.upstream, date)
            except UserError:
                continue
            if slot.date in looked_at:
                yield Concerned(pipeline, date, dependency)

    def _is_complete(self, concerned: Concerned) -> bool:
        """Whether everything that starts this schedule is there, or as much of it as it needs."""
        schedule_id = concerned.dependency.schedule
        schedule = next(each for each in concerned.pipeline.schedules if schedule_id_of(each) == schedule_id)
        slot = Slot(concerned.pipeline.id, schedule_id, concerned.date)
        needs = Needs(upstreams=schedule.upstream)
        facts = self._parts.facts.gather(concerned.pipeline, slot, needs, self._parts.now())
        return all(_is_done(upstream, facts.upstreams[upstream]) for upstream in schedule.upstream)


def _is_of(upstream: Upstream, slot: Slot) -> bool:
    return upstream.schedule is None or upstream.schedule == slot.schedule_id


def _is_done(upstream: Upstream, fact: object) -> bool:
    dates = getattr(fact, "dates", ())
    statuses = getattr(fact, "statuses", {})
    missing = sum(not (date in statuses and statuses[date].is_done) for date in dates)
    return bool(dates) and missing <= upstream.missing_max
