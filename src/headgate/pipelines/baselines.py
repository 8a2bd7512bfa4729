"""Baselines: what the sensors of the post-run rules said when a run succeeded, to compare with what comes later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.errors import CorruptionError, UserError
from headgate.pipelines.definition import Pipeline
from headgate.pipelines.drift import baseline_of
from headgate.pipelines.event_names import EventName
from headgate.pipelines.parts import Parts
from headgate.pipelines.rules import compile_post_run
from headgate.pipelines.run_rows import Run, Slot
from headgate.store.catalogue.tables import BASELINE, PIPELINES
from headgate.store.model.requests import Put, Write

KEPT_SECONDS: Final = 30 * 86_400


class RunBaselines:
    """The baselines of one store, one for each period: that of its last success."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def writes(self, run: Run, pipeline: Pipeline) -> list[Write]:
        """Return the writes that keep the baseline of a run which has just succeeded, for that transaction.

        Where it cannot be taken they tell that.
        """
        if not pipeline.post_run.rules:
            return []
        parts = self._parts
        try:
            compiled = compile_post_run(pipeline.post_run)
            baseline = baseline_of(compiled, parts.facts.gather(pipeline, run.slot, compiled.needs, parts.now()))
        except (UserError, CorruptionError) as exc:
            # What cannot be read will not be readable the next time either, and the run has succeeded all the same.
            detail = {"run_id": run.run_id, "error": str(exc)}
            return parts.tells(EventName.BASELINE_CAPTURE_FAILED, run.slot, detail)
        key = BASELINE.key(**run.slot._asdict())
        item = {
            **PIPELINES.key_attributes(key),
            "run_id": run.run_id,
            "sensors": baseline,
            "ttl": parts.now_ms() // 1000 + KEPT_SECONDS,
        }
        captured = {"run_id": run.run_id, "sensors": sorted(baseline)}
        return [Put(PIPELINES, item), *parts.tells(EventName.POST_RUN_BASELINE_CAPTURED, run.slot, captured)]

    def find(self, slot: Slot) -> Mapping[str, Mapping[str, Any]] | None:
        """Return what the sensors said at the last success of a period."""
        item = self._parts.store.get(PIPELINES, BASELINE.key(**slot._asdict()), consistent=True)
        return None if item is None else item["sensors"]
