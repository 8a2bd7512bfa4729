"""Thresholds of the watchdog: how long something may be missing before the watchdog acts.

The settings give those of all pipelines; a definition replaces those that it names.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.pipelines.definition.model import Pipeline


class Thresholds(Struct, frozen=True, kw_only=True):
    """The thresholds for a pipeline, in seconds."""

    # Without activity beyond what its definition allows, a run is stuck.
    stuck_seconds: float = 1_800.0
    # After its slot, a period must have started, unless the schedule names a deadline.
    schedule_grace_seconds: float = 300.0
    # After a failure or an arrival, the watchdog starts what was not started.
    recovery_grace_seconds: float = 300.0
    # After its last change, a run or a lock without an execution is lost.
    lost_seconds: float = 300.0
    # A failure or an arrival is retried while the pipeline is paused, stopped, held or locked.
    patience_seconds: float = 7 * 86_400.0

    def of(self, pipeline: Pipeline | None) -> Thresholds:
        """Return the thresholds of a pipeline: its own, and these for the rest."""
        if pipeline is None:
            return self
        own = pipeline.watchdog
        given = {
            "stuck_seconds": own.stuck,
            "schedule_grace_seconds": own.schedule_grace,
            "recovery_grace_seconds": own.recovery_grace,
            "lost_seconds": own.lost,
            "patience_seconds": own.patience,
        }
        return replace(self, **{name: float(value) for name, value in given.items() if value is not None})


DEFAULTS: Final = Thresholds()
