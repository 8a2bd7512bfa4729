"""Owed checks: what a dataset's checks have yet to measure of the runs that have just written it.

A check that runs after runs is owed from the completion of a run until a measurement that began later has its result.
Which runs a measurement covers is read before it begins, so that neither clocks nor the order of events matter.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from headgate.checks.catalog import CheckCatalog, KnownCheck
from headgate.checks.state import CheckStates
from headgate.clock import Clock, epoch_ms
from headgate.health.model.urns import unversioned
from headgate.pipelines.enums import Verdict
from headgate.pipelines.rules.facts import DatasetFact
from headgate.pipelines.runs.dataset_writes import DatasetWrite, DatasetWrites

# A check without a result this long after the run, and its own time-out, is overdue.
OVERDUE_SECONDS: Final = 300.0


class OwedChecks:
    """Finds owed checks, and the runs that a measurement covers. Thread-safe."""

    def __init__(
        self,
        catalog: CheckCatalog,
        states: CheckStates,
        writes: DatasetWrites,
        registered: Callable[[str], str],
        clock: Clock,
    ) -> None:
        """`registered` returns the URN that a dataset is registered under."""
        self._catalog = catalog
        self._states = states
        self._writes = writes
        self._registered = registered
        self._clock = clock

    def covered(self, dataset: str) -> dict[str, str]:
        """Return the last completed run of each pipeline that writes a dataset: what a measurement from now covers."""
        return {each.pipeline_id: each.run_id for each in self._writes.of(self._names(dataset)).values()}

    def __call__(self, dataset: str) -> DatasetFact | None:
        """Return what a rule on a dataset waits for. None: no check is owed."""
        names = self._names(dataset)
        checks = [each for name in names for each in self._catalog.after_runs_of(name)]
        if not checks:
            return None
        writes = self._writes.of(names)
        states = self._states.of([each.key for each in checks])
        owed = [
            (check, write)
            for check in checks
            # A check without a state was never planned: it was defined after the run.
            if (state := states.get(check.key)) is not None
            for write in writes.values()
            if state.measured.get(write.pipeline_id) != write.run_id
        ]
        # The one that is waited for longest.
        return self._fact(*min(owed, key=lambda each: each[1].at_ms)) if owed else None

    def _fact(self, check: KnownCheck, write: DatasetWrite) -> DatasetFact:
        check_id, dataset = check.check.id, check.file.dataset
        reason = f"check {check_id} of dataset {dataset} has not measured run {write.run_id} yet"
        due_at_ms = write.at_ms + round(1000 * (check.file.timeout + OVERDUE_SECONDS))
        if epoch_ms(self._clock) < due_at_ms:
            return DatasetFact(verdict=Verdict.UNKNOWN, reason=reason, is_pending=True)
        due = datetime.fromtimestamp(due_at_ms / 1000, UTC)
        remedy = f"run it with `headgate check run {dataset} {check_id}`, and see whether the server runs checks"
        return DatasetFact(verdict=Verdict.UNKNOWN, reason=f"{reason}; it was due by {due:%H:%M} UTC: {remedy}")

    def _names(self, dataset: str) -> tuple[str, ...]:
        """Return the names that pipelines, rules and check files may call a dataset by."""
        urn = self._registered(dataset)
        return tuple(dict.fromkeys((dataset, urn, unversioned(urn))))
