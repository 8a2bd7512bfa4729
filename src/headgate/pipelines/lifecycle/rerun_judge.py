"""Rerun judge: decides on a requested rerun from the facts of its period, and publishes the decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rerun_decisions import Situation, newest_update_ms, spent_limit
from headgate.pipelines.runs.rerun_rows import Rerun
from headgate.pipelines.runs.reruns import RerunJudgement, Reruns
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.sensors import Sensors
from headgate.store.model.requests import Write


def _nothing(_: Rerun) -> Sequence[Write]:
    return ()


class RerunJudge:
    """Decides on reruns: accepts one for the holder of the period's lock, rejects one for any caller."""

    def __init__(self, reruns: Reruns, definitions: DefinitionReader, sensors: Sensors, events: EventWriter) -> None:
        self._reruns = reruns
        self._definitions = definitions
        self._sensors = sensors
        self._events = events

    def judge(
        self,
        rerun_id: str,
        slot: Slot,
        *,
        execution: str = "",
        lock_token: str = "",
        also: Callable[[Rerun], Sequence[Write]] = _nothing,
    ) -> RerunJudgement:
        """Decide on a rerun under the newest definition, with its events and `also`. Raises as `Reruns.judge` does."""
        pipeline, _ = self._definitions.newest(slot.pipeline_id)
        timetable = self._definitions.timetable(pipeline, slot.schedule_id)
        sensors = [sensor.data for sensor in self._sensors.ls(slot.pipeline_id)]
        situation = Situation(
            budgets=pipeline.budgets,
            retry=pipeline.retry,
            is_excluded=timetable is not None and timetable.exclusion_reason(slot.date) is not None,
            newest_update_ms=newest_update_ms(sensors),
        )
        return self._reruns.judge(
            rerun_id,
            situation,
            execution=execution,
            lock_token=lock_token,
            also=lambda rerun, _log: [*self._decision_events(rerun, pipeline), *also(rerun)],
        )

    def _decision_events(self, rerun: Rerun, pipeline: Pipeline) -> list[Write]:
        detail = {"rerun_id": rerun.rerun_id, "reason": rerun.reason.value, "refusal": rerun.decision}
        limit = spent_limit(rerun, pipeline.budgets, pipeline.retry)
        if rerun.status.is_open:
            name = EventName.DRY_RUN_WOULD_RERUN if pipeline.dry_run else EventName.RERUN_ACCEPTED
        else:
            name = EventName.DRY_RUN_RERUN_REJECTED if pipeline.dry_run else EventName.RERUN_REJECTED
        writes = self._events.writes(name, rerun.slot, detail)
        if limit is not None and not pipeline.dry_run:
            writes += self._events.writes(EventName.RERUN_CAP_REACHED, rerun.slot, {**detail, "limit": limit})
        return writes
