"""Probe evaluator: `probe:NAME` answers with the shared result of a probe of the project folder.

A run of a period that the poller does not look at, such as one of a backfill, makes the probe look once by itself.
"""

from __future__ import annotations

from typing import Final

from headgate.errors import DefinitionError
from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.model import PREFIX as PROBE_PREFIX
from headgate.pipelines.probes.model import Probe, ProbeResult
from headgate.pipelines.probes.results import ProbeResults
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.schedule.periods import Periods, own_period
from headgate.pipelines.traits.protocol import Answer, Question, failure, not_met, passed

PREFIX: Final = PROBE_PREFIX


class ProbeEvaluator:
    """Evaluates references to probes. Thread-safe."""

    def __init__(self, catalog: ProbeCatalog, results: ProbeResults, runner: ProbeRunner) -> None:
        self._catalog = catalog
        self._results = results
        self._runner = runner

    def check(self, reference: str) -> None:
        """Raise `DefinitionError` for a probe that is not defined."""
        name = reference.removeprefix(PREFIX)
        if self._catalog.find(name) is None:
            raise DefinitionError(
                f"evaluator {reference[:80]!r}: there is no probe {name[:60]!r}; define it in the folder probes of the "
                "project"
            )

    def evaluate(self, question: Question) -> Answer:
        """Return the stored result for the run's period, or look now if there is no current one."""
        probe = self._catalog.get(question.reference.removeprefix(PREFIX)).probe
        period = _period(probe, question.date)
        state = self._results.states([probe.id]).get(probe.id)
        stored = None if state is None or not state.is_of(probe) else state.result_of(period)
        if stored is None or question.now_ms - stored.at_ms > probe.valid_seconds * 1000:
            stored = self._runner.run(probe, period)
        return _answer(stored)


def _period(probe: Probe, date: str) -> str:
    """Return the period of a probe that a run's date falls into."""
    if probe.period is None:
        return ""
    if not date:
        raise DefinitionError(f"probe {probe.id} looks at {probe.period} periods, and the trait is of none")
    return own_period(Periods(probe.period, probe.timezone), date)


def _answer(result: ProbeResult) -> Answer:
    match result.verdict:
        case Verdict.PASS:
            return passed(result.reason, result.seen)
        case Verdict.FAIL:
            return not_met(result.reason, result.seen)
    return failure(result.category or FailureCategory.TRANSIENT, result.reason)
