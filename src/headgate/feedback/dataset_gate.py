"""Dataset gate: answers the dataset rules of pipelines with the decisions of the health gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headgate.errors import UserError
from headgate.feedback.outcome_signals import SIGNAL_TYPES
from headgate.health.gate.decisions import Code, GateQuestion, OnUnknown, Reason, Ruling, worst
from headgate.health.gate.gate import GateAnswer, Gatekeeper
from headgate.pipelines.enums import Verdict
from headgate.pipelines.rules.facts import DatasetFact

_PRINCIPAL: Final = "pipelines"
# A warning does not hold a pipeline; an override can.
_VERDICTS: Final = {
    Ruling.ALLOW: Verdict.PASS,
    Ruling.WARN: Verdict.PASS,
    Ruling.UNKNOWN: Verdict.UNKNOWN,
    Ruling.BLOCK: Verdict.FAIL,
}


class DatasetGate:
    """Evaluates datasets for pipeline rules. UNKNOWN is passed on: the rule decides how to treat it."""

    def __init__(
        self, gatekeeper: Gatekeeper, owed: Callable[[str], DatasetFact | None] = lambda _dataset: None
    ) -> None:
        """`owed` returns what a dataset still waits for, if its data was written a moment ago."""
        self._gatekeeper = gatekeeper
        self._owed = owed

    def __call__(self, datasets: Sequence[str]) -> Mapping[str, DatasetFact]:
        """Return the gate's decision for each dataset. Raises the gate's errors."""
        return {urn: self._fact(urn) for urn in datasets}

    def unregistered(self, datasets: Sequence[str]) -> list[str]:
        """Return the datasets that are not registered. An invalid name is not registered."""
        return [urn for urn in datasets if not self._is_registered(urn)]

    def _is_registered(self, urn: str) -> bool:
        try:
            answer = self._gatekeeper.check([urn], GateQuestion(principal=_PRINCIPAL, on_unknown=OnUnknown.ASK))
        except UserError:
            return False
        return all(each.code is not Code.DATASET_NOT_FOUND for each in answer.reasons)

    def _fact(self, urn: str) -> DatasetFact:
        try:
            answer = self._gatekeeper.check([urn], GateQuestion(principal=_PRINCIPAL, on_unknown=OnUnknown.ASK))
        except UserError as exc:
            # An invalid name makes this dataset UNKNOWN, and leaves the others unaffected.
            return DatasetFact(verdict=Verdict.UNKNOWN, reason=str(exc))
        ruling, reasons = _without_outdated_runs(answer)
        if _VERDICTS[ruling] is Verdict.PASS and answer.override_id is None:
            owed = self._owed(urn)
            if owed is not None:
                return owed
        reason = "; ".join(each.message for each in reasons)
        if reason and ruling is Ruling.WARN:
            # The rule holds: without this word the line would read as if the incident were the reason for that.
            reason = f"may be read, with a warning: {reason}"
        return DatasetFact(verdict=_VERDICTS[ruling], reason=reason or ruling.value)


def _without_outdated_runs(answer: GateAnswer) -> tuple[Ruling, list[Reason]]:
    """Return the decision without SIGNAL_OUTDATED for the signals of runs.

    Such a signal is valid until the next run, and the watchdog reports a run that is missing.
    """
    reasons = [
        each for each in answer.reasons if each.code is not Code.SIGNAL_OUTDATED or each.signal_type not in SIGNAL_TYPES
    ]
    if answer.override_id is not None or len(reasons) == len(answer.reasons):
        return answer.decision, reasons
    return worst([each.ruling for each in reasons]), reasons
