"""What may be said of a signal, and what is refused, with every field that is wrong named."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.durable.model.records import instant
from headgate.errors import InvalidIdError, InvalidPayloadError, UserError
from headgate.health.model.enums import Confidence, SignalState
from headgate.health.model.signals import Metrics, Producer, SignalUpdate, SignalValue, checked
from tests.health_rig import CRITICAL, OK, ORDERS, UNKNOWN, WARNING, evidence_id, value

NOW_MS = 1_750_000_000_000


def update(said: SignalValue | None = None, **more: Any) -> SignalUpdate:
    given: dict[str, Any] = {"dataset_urn": ORDERS, "signal_type": "FRESHNESS", "value": said or value(OK, NOW_MS)}
    return SignalUpdate(**{**given, **more})


def with_value(said: SignalValue, **more: Any) -> SignalUpdate:
    return update(msgspec.structs.replace(said, **more))


def refusal(given: SignalUpdate) -> str:
    with pytest.raises(UserError) as caught:
        checked(given, NOW_MS)
    return str(caught.value)


@pytest.mark.parametrize("state", list(SignalState))
def test_checked__what_the_contract_asks_for__is_taken(state: SignalState) -> None:
    given = update(value(state, NOW_MS, evidence=[evidence_id(n) for n in range(10)]))
    assert checked(given, NOW_MS) == given


@pytest.mark.parametrize("score", [0.0, 1.0, 0.102])
def test_checked__score_at_the_ends__is_taken(score: float) -> None:
    assert checked(with_value(value(OK, NOW_MS), score=score), NOW_MS).value.score == score


@pytest.mark.parametrize("score", [-0.001, 1.001, math.nan, math.inf, -math.inf])
def test_checked__score_that_is_none__is_refused(score: float) -> None:
    assert "Score must be between 0 and 1" in refusal(with_value(value(OK, NOW_MS), score=score))


@pytest.mark.parametrize("threshold", [-1.0, math.nan, math.inf])
def test_checked__threshold_that_is_none__is_refused(threshold: float) -> None:
    assert "slo_threshold" in refusal(with_value(value(OK, NOW_MS), slo_threshold=threshold))


@pytest.mark.parametrize("state", [WARNING, CRITICAL])
@pytest.mark.parametrize("signature", [None, ""])
def test_checked__breach_without_a_signature__is_refused(state: SignalState, signature: str | None) -> None:
    given = with_value(value(state, NOW_MS), failure_signature=signature)
    assert "failure_signature required for WARNING/CRITICAL states" in refusal(given)


@pytest.mark.parametrize(
    "signature", ["MISSING_FIELD:customer_id", "LATE", "G4_CONTRACT:MISSING_FIELD:customer_id", "X:a b", "X:$.a[0]"]
)
def test_checked__signature_in_any_neighbours_form__is_taken(signature: str) -> None:
    given = with_value(value(CRITICAL, NOW_MS), failure_signature=signature)
    assert checked(given, NOW_MS).value.failure_signature == signature


@pytest.mark.parametrize("signature", ["A#B", "A:b#c", "A\n", "A:b\x00", ":x", " ", "A:", "x" * 257, "A:b\x7f"])
def test_checked__signature_that_would_break_a_key__is_refused(signature: str) -> None:
    assert "failure_signature" in refusal(with_value(value(CRITICAL, NOW_MS), failure_signature=signature))


def test_checked__empty_signature_of_a_healthy_signal__is_none() -> None:
    assert checked(with_value(value(OK, NOW_MS), failure_signature=""), NOW_MS).value.failure_signature is None


def test_checked__window_that_ends_before_it_starts__is_refused() -> None:
    assert "window_start" in refusal(with_value(value(OK, NOW_MS), window_start=instant(NOW_MS + 1)))


def test_checked__window_of_no_length__is_taken() -> None:
    """Drift is reported by an event, not by a window."""
    checked(with_value(value(OK, NOW_MS), window_start=instant(NOW_MS)), NOW_MS)


def test_checked__window_of_a_day_that_has_not_come__is_refused() -> None:
    """It would keep every honest window after it out."""
    assert "window_end" in refusal(update(value(OK, NOW_MS + 24 * 3600 * 1000)))


def test_checked__engine_whose_clock_is_a_minute_ahead__is_taken() -> None:
    checked(update(value(OK, NOW_MS + 60_000)), NOW_MS)


@pytest.mark.parametrize(
    "text", ["2025-06-15T10:00:00Z", "2025-06-15T10:00:00.5Z", "2025-06-15T12:00:00.000+02:00", "2025-06-15", "1", ""]
)
@pytest.mark.parametrize("field", ["window_start", "window_end", "breach_start"])
def test_checked__moment_in_another_form__is_made_canonical_or_refused(field: str, text: str) -> None:
    """Windows are ordered by comparing them as text: another form would come out of order."""
    said = value(CRITICAL, NOW_MS)
    given = with_value(said, **{"window_start": "2025-06-15T09:00:00.000Z", field: text})
    try:
        taken = getattr(checked(given, NOW_MS).value, field)
    except UserError:
        return
    assert taken is None or (len(taken) == len(instant(NOW_MS)) and taken.endswith("Z") and taken[19] == ".")


@pytest.mark.parametrize("counts", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (5, 3, 3), (0, 1, 0), (2**63, 0, 0)], ids=str)
def test_checked__counts_that_do_not_add_up__are_refused(counts: tuple[int, int, int]) -> None:
    metrics = Metrics(evidence_count=counts[0], pass_count=counts[1], fail_count=counts[2])
    assert "metrics" in refusal(with_value(value(OK, NOW_MS), metrics=metrics))


def test_checked__eleven_samples__are_refused() -> None:
    assert "evidence_sample" in refusal(update(value(CRITICAL, NOW_MS, evidence=[evidence_id(n) for n in range(11)])))


@pytest.mark.parametrize("bad", ["", "a b", "evd#1", "x" * 200, "evd\n"])
def test_checked__sample_that_is_no_id__is_refused(bad: str) -> None:
    assert "evidence_sample" in refusal(update(value(CRITICAL, NOW_MS, evidence=[bad])))


@pytest.mark.parametrize("version", [-2, -100])
def test_checked__version_below_any__is_refused(version: int) -> None:
    assert "expected_version" in refusal(update(expected_version=version))


@pytest.mark.parametrize(
    "urn", ["orders", "urn:dp:", "urn:li:x:y", "urn:dp:a#b", "urn:dp:a b", "", "urn:dp:" + "a" * 600]
)
def test_checked__what_is_no_dataset__is_refused(urn: str) -> None:
    with pytest.raises((InvalidIdError, InvalidPayloadError)):
        checked(update(dataset_urn=urn), NOW_MS)


@pytest.mark.parametrize("urn", ["urn:dp:orders:created", "urn:dp:orders:created:v1", "urn:dp:unknown:topic"])
def test_checked__dataset_with_and_without_a_version__is_taken(urn: str) -> None:
    assert checked(update(dataset_urn=urn), NOW_MS).dataset_urn == urn


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("FRESHNESS_BREACH", "FRESHNESS"),
        ("volume-anomaly", "VOLUME"),
        ("CONTRACT_BREACH", "CONTRACT_COMPLIANCE"),
        ("DRIFT_DETECTED", "SCHEMA_DRIFT"),
        ("DQ_BREACH", "DATA_QUALITY"),
        ("MY_OWN", "MY_OWN"),
    ],
)
def test_checked__what_neighbours_call_a_signal__is_one_signal(given: str, canonical: str) -> None:
    assert checked(update(signal_type=given), NOW_MS).signal_type == canonical


@pytest.mark.parametrize("kind", ["", "a#b", "1X", "X" * 65, "Ä"])
def test_checked__what_is_no_signal_type__is_refused(kind: str) -> None:
    with pytest.raises(UserError):
        checked(update(signal_type=kind), NOW_MS)


def test_checked__much_that_is_wrong__is_reported_at_once() -> None:
    report = refusal(with_value(value(CRITICAL, NOW_MS), score=2.0, failure_signature=None, slo_threshold=-1.0))
    assert "score" in report
    assert "failure_signature" in report
    assert "slo_threshold" in report


def test_checked__a_text_of_a_megabyte__is_refused_and_not_repeated() -> None:
    said = value(CRITICAL, NOW_MS, top_producer=Producer(producer_id="x" * 1_000_000))
    assert len(refusal(update(said))) < 2_000
    assert len(refusal(update(dataset_urn="urn:dp:" + "x" * 1_000_000))) < 2_000
    assert len(refusal(with_value(value(CRITICAL, NOW_MS), failure_signature="x" * 1_000_000))) < 2_000


@given(st.sampled_from(list(SignalState)), st.floats(0, 1), st.integers(0, 10**9))
def test_digest__same_value__is_the_same_and_knows_no_incident(state: SignalState, score: float, ago: int) -> None:
    said = value(state, NOW_MS - ago, score=score)
    linked = msgspec.structs.replace(said, incident_id="INC-1")
    assert value(state, NOW_MS - ago, score=score).digest == said.digest == linked.digest


@pytest.mark.parametrize(
    "change",
    [
        {"state": WARNING},
        {"score": 0.25},
        {"slo_threshold": 0.5},
        {"window_start": instant(NOW_MS - 1)},
        {"window_end": instant(NOW_MS + 1)},
        {"window_type": "HOURLY"},
        {"metrics": Metrics(evidence_count=11, pass_count=5, fail_count=5)},
        {"breach_start": instant(NOW_MS - 7)},
        {"failure_signature": "X:y"},
        {"top_producer": Producer(producer_id="job:x", confidence=Confidence.HIGH)},
        {"evidence_sample": (evidence_id(1),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_digest__any_field_that_differs__differs(change: dict[str, Any]) -> None:
    said = value(CRITICAL, NOW_MS)
    assert msgspec.structs.replace(said, **change).digest != said.digest


def test_compliance_rate__nothing_judged__is_not_known() -> None:
    assert Metrics(evidence_count=3).compliance_rate is None
    assert Metrics(evidence_count=1247, pass_count=127, fail_count=1120).compliance_rate == pytest.approx(
        0.1018, abs=1e-4
    )


def test_checked__unknown_without_a_signature__is_taken() -> None:
    checked(with_value(value(UNKNOWN, NOW_MS), failure_signature=None), NOW_MS)


@pytest.mark.parametrize(
    "bad", ["nonsense", "evd-1", "evd-01HQXY8MNP4QR7ST9VW2XYZ45", "EVD-01HQXY8MNP4QR7ST9VW2XYZ456"]
)
def test_evidence_sample__what_is_no_id_of_evidence__is_refused(bad: str) -> None:
    assert "evidence_sample" in refusal(update(value(CRITICAL, NOW_MS, evidence=[bad])))
