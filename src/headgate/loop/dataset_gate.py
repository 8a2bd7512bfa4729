"""The gate of health, as the rules of pipelines ask it: may these datasets be read now?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.health.gate_decisions import OnUnknown, Question, Ruling
from headgate.health.gatekeeper import Gatekeeper
from headgate.pipelines.facts import DatasetFact
from headgate.pipelines.vocabulary import Verdict

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
        answer = self._gatekeeper.check([urn], Question(principal=_PRINCIPAL, on_unknown=OnUnknown.ASK))
        reason = "; ".join(each.message for each in answer.reasons)
        return DatasetFact(verdict=_VERDICTS[answer.decision], reason=reason or answer.decision.value)
