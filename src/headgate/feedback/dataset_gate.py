"""The gate of health, as the rules of pipelines ask it: may these datasets be read now?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.errors import UserError
from headgate.feedback.outcome_signals import SIGNAL_TYPES
from headgate.health.gate.decisions import Code, GateQuestion, OnUnknown, Reason, Ruling, worst
from headgate.health.gate.gate import GateAnswer, Gatekeeper
from headgate.pipelines.enums import Verdict
from headgate.pipelines.rules.facts import DatasetFact

_PRINCIPAL: Final = "pipelines"
# A warning is for people: whoever wants to be held back by it says so with an override.
_VERDICTS: Final = {
    Ruling.ALLOW: Verdict.PASS,
    Ruling.WARN: Verdict.PASS,
    Ruling.UNKNOWN: Verdict.UNKNOWN,
    Ruling.BLOCK: Verdict.FAIL,
}


class DatasetGate:
    """Asks the gate for the rules of pipelines. What is not known is said to be: the rule decides what that means."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    def __call__(self, datasets: Sequence[str]) -> Mapping[str, DatasetFact]:
        """Return what the gate says of each dataset. Raises what the gate raises."""
        return {urn: self._fact(urn) for urn in datasets}

    def _fact(self, urn: str) -> DatasetFact:
        try:
            answer = self._gatekeeper.check([urn], GateQuestion(principal=_PRINCIPAL, on_unknown=OnUnknown.ASK))
        except UserError as exc:
            # No dataset can have this name; the other rules can be told nevertheless.
            return DatasetFact(verdict=Verdict.UNKNOWN, reason=str(exc))
        ruling, reasons = _weighed(answer)
        reason = "; ".join(each.message for each in reasons)
        return DatasetFact(verdict=_VERDICTS[ruling], reason=reason or ruling.value)


def _weighed(answer: GateAnswer) -> tuple[Ruling, list[Reason]]:
    """Return what the gate says, with what runs have said taken for what it is: it holds until the next run.

    Nobody renews it meanwhile, and a run that does not come is told by the watchdog.
    """
    reasons = [
        each for each in answer.reasons if each.code is not Code.SIGNAL_OUTDATED or each.signal_type not in SIGNAL_TYPES
    ]
    if answer.override_id is not None or len(reasons) == len(answer.reasons):
        return answer.decision, reasons
    return worst([each.ruling for each in reasons]), reasons
