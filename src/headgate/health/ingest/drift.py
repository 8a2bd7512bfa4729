"""Schema drift: the signal of a change of a dataset's fields."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.health.model.dataset_fields import DatasetFields, Observation
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import MESSAGE_MAX, SIGNATURES_MAX, SignalValue

_WINDOW: str = "OBSERVATION"


def drift_value(
    before: DatasetFields, after: DatasetFields, required: Iterable[str], seen: Observation
) -> SignalValue | None:
    """Return the value of SCHEMA_DRIFT after a whole observation, or None if nothing is to be said.

    A field that is gone or has another type is a WARNING until the next observation without a change. A field that the
    contract requires and that is missing is CRITICAL for as long as it is missing. An added field is OK.
    """
    names = {each.name.casefold() for each in after.fields}
    missing = sorted(each for each in required if each.casefold() not in names)
    change = after.changes[0] if after.changes != before.changes else None
    if not missing and change is None and not before.is_drifting:
        return None
    signatures = [f"FIELD_MISSING:{each}" for each in missing]
    sentences = [f"the contract requires {', '.join(missing)}"] if missing else []
    if change is not None:
        signatures += change.signatures
        sentences.append(change.sentence)
    is_breach = bool(signatures)
    state = SignalState.CRITICAL if missing else SignalState.WARNING if is_breach else SignalState.OK
    named = tuple(dict.fromkeys(each.replace("#", "_") for each in signatures))[:SIGNATURES_MAX]
    return SignalValue(
        state=state,
        score=0.0 if is_breach else 1.0,
        window_start=seen.at,
        window_end=seen.at,
        window_type=_WINDOW,
        failure_signature=named[0] if named else None,
        failure_signatures=named,
        message="; ".join(sentences)[:MESSAGE_MAX] or None,
    )
