"""Rows of signals: what their codec answers for is in the form that every store keeps, and the rest is checked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.errors import CorruptionError
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.signals import Metrics, Producer, Signal, SignalValue
from headgate.health.model.volume_counts import VolumeHour
from headgate.health.signals.rows import signal_of, signal_row
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.validation import checked_item
from headgate.store.model.values import TrustedItem, canonical_item, dump, load

VALUE = SignalValue(
    state=SignalState.OK,
    score=0.999,
    slo_threshold=0.995,
    window_start="2026-01-15T10:00:00.000Z",
    window_end="2026-01-15T10:05:00.000Z",
    window_type="TUMBLING_5MIN",
    metrics=Metrics(evidence_count=2**53 - 1, pass_count=1, fail_count=0),
    evidence_sample=("evd-1", "evd-2"),
)
SIGNAL = Signal(
    dataset_urn="urn:dp:orders:created:v1",
    signal_type="FRESHNESS",
    value=VALUE,
    tier=Tier.TIER_1,
    owner_team="orders-team",
    version=7,
    digest="d1",
    last_updated="2026-01-15T10:05:01.000Z",
    state_changed_at="2026-01-15T09:00:00.000Z",
    previous_state=SignalState.WARNING,
)


def with_value(**changes: object) -> Signal:
    return replace(SIGNAL, value=replace(VALUE, **changes))


PLAIN = [
    SIGNAL,
    replace(SIGNAL, previous_state=None),
    with_value(score=1.0, slo_threshold=0.0),
    with_value(score=0.0, slo_threshold=2.0**53 - 1),
    with_value(incident_id="INC-1"),
    replace(SIGNAL, detected_at="2026-01-15T10:05:01.000Z"),
    with_value(state=SignalState.UNKNOWN, breach_start="2026-01-15T09:00:00.000Z"),
    with_value(state=SignalState.CRITICAL, failure_signature="MISSING_FIELD:id"),
    with_value(state=SignalState.WARNING, failure_signature='$n:"id" \\ $b'),
    with_value(evidence_sample=()),
    replace(with_value(state=SignalState.UNKNOWN), ok_until="2026-01-15T09:00:00.000Z"),
    replace(SIGNAL, volume=VolumeHour("2026-01-15T10", ((300_000, 2**53 - 1), (3_600_000, 0)))),
]
ODD = [
    replace(SIGNAL, owner_team="équipe"),
    with_value(window_type="fenêtre"),
    with_value(state=SignalState.CRITICAL, failure_signature="CHAMP_MANQUANT:numéro"),
    with_value(top_producer=Producer(producer_id="svc", deployed_at="2026-01-15T09:00:00.000Z")),
    with_value(slo_threshold=1e60),
    with_value(slo_threshold=2.0**53),
]


@pytest.mark.parametrize("signal", PLAIN)
def test_row__nothing_odd_in_it__is_what_a_store_would_have_made_of_it(signal: Signal) -> None:
    row = signal_row(signal, 1_768_471_500)
    assert type(row) is TrustedItem
    made, special = canonical_item(dict(row))
    assert (made, special) == (row, False)
    # 1 and 1.0 are equal, and not the same as text.
    assert dump(row, special=False) == dump(made, special=False)
    assert checked_item(SIGNAL_STATE, dict(row)) == (row, False)
    assert signal_of(load(dump(row, special=False))) == signal


@pytest.mark.parametrize("signal", ODD)
def test_row__words_of_people_or_odd_numbers__is_left_for_the_store_to_look_at(signal: Signal) -> None:
    row = signal_row(signal, 1_768_471_500)
    assert type(row) is dict
    item, special = checked_item(SIGNAL_STATE, row)
    assert signal_of(load(dump(item, special=special))) == signal


@pytest.mark.parametrize(
    "damage",
    [{"state": "MAYBE"}, {"tier": None}, {"score": "much"}, {"metrics": {"unheard": 1}}, {"previous_state": "WORSE"}],
)
def test_signal_of__a_row_that_is_no_signal__is_named(damage: dict[str, object]) -> None:
    row = {**signal_row(SIGNAL, 0), **damage}

    with pytest.raises(CorruptionError, match=r"urn:dp:orders:created:v1 FRESHNESS.*restore a backup"):
        signal_of(row)


def test_signal_of__a_row_that_lacks_something__is_named() -> None:
    row = {name: value for name, value in signal_row(SIGNAL, 0).items() if name != "owner_team"}

    with pytest.raises(CorruptionError, match="owner_team"):
        signal_of(row)
