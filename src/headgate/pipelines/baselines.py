"""Baselines: what the sensors of the post-run rules said when a run succeeded, to compare with what comes later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.pipelines.definition import Pipeline
from headgate.pipelines.drift import baseline_of
from headgate.pipelines.event_names import EventName
from headgate.pipelines.parts import Parts
from headgate.pipelines.rules import compile_post_run
from headgate.pipelines.run_rows import Run, Slot
from headgate.store.tables import BASELINE, PIPELINES
from headgate.store.writes import Put, Write

KEPT_SECONDS: Final = 30 * 86_400


class RunBaselines:
    """The baselines of one store, one for each period: that of its last success."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def writes(self, run: Run, pipeline: Pipeline) -> list[Write]:
        """Return the writes that keep the baseline of a run which has just succeeded, for that transaction."""
        if not pipeline.post_run.rules:
            return []
        parts = self._parts
        compiled = compile_post_run(pipeline.post_run)
        facts = parts.facts.gather(pipeline, run.slot, compiled.needs, parts.now())
        baseline = baseline_of(compiled, facts)
        key = BASELINE.key(**run.slot._asdict())
        item = {
            **PIPELINES.key_attributes(key),
            "run_id": run.run_id,
            "sensors": baseline,
            "ttl": parts.now_ms() // 1000 + KEPT_SECONDS,
        }
        detail = {"run_id": run.run_id, "sensors": sorted(baseline)}
        return [Put(PIPELINES, item), *parts.tells(EventName.POST_RUN_BASELINE_CAPTURED, run.slot, detail)]

    def find(self, slot: Slot) -> Mapping[str, Mapping[str, Any]] | None:
        """Return what the sensors said at the last success of a period."""
        item = self._parts.store.get(PIPELINES, BASELINE.key(**slot._asdict()), consistent=True)
        return None if item is None else item["sensors"]
