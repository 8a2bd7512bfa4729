"""What becomes of a signal: the latest window decides, versions have no gaps, and the same twice is once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.durable.model.records import instant
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.signals import ANY_VERSION, Signal, SignalUpdate, UpdateVerdict
from headgate.health.signals.decisions import decide, rejection
from tests.health_rig import CRITICAL, OK, ORDERS, UNKNOWN, WARNING, value

NOW_MS = 1_750_000_000_000
MINUTE_MS = 60_000
STANDING = DatasetProfile(Tier.TIER_1, "team-a")


def update(state: SignalState, minute: int, version: int = ANY_VERSION, **more: Any) -> SignalUpdate:
    said = value(state, NOW_MS + minute * MINUTE_MS, **more)
    return SignalUpdate(dataset_urn=ORDERS, signal_type="FRESHNESS", value=said, expected_version=version)


def after(*updates: SignalUpdate) -> Signal:
    """The signal once some updates were taken over, all of which must be."""
    signal: Signal | None = None
    for number, each in enumerate(updates):
        decision = decide(signal, each, STANDING, NOW_MS + number)
        assert decision.verdict is UpdateVerdict.APPLIED
        signal = decision.signal
    assert signal is not None
    return signal


class Fold:
    """A signal to which updates come in any order, each tried until it is decided, as an engine does."""

    def __init__(self) -> None:
        self.signal: Signal | None = None
        self.versions: list[int] = []
        self.transitions: list[tuple[SignalState | None, SignalState]] = []

    def take(self, given: SignalUpdate) -> UpdateVerdict:
        decision = decide(self.signal, given, STANDING, NOW_MS)
        if decision.verdict is UpdateVerdict.APPLIED:
            assert decision.signal is not None
            before = None if self.signal is None else self.signal.state
            assert decision.is_transition == (before is not decision.signal.state)
            if decision.is_transition:
                self.transitions.append((decision.signal.previous_state, decision.signal.state))
                assert decision.signal.previous_state is before
            self.signal = decision.signal
            self.versions.append(decision.signal.version)
        return decision.verdict


MINUTES = st.integers(0, 12)
UPDATES = st.lists(
    st.builds(lambda state, minute: update(state, minute, score=minute / 100), st.sampled_from(SignalState), MINUTES),
    min_size=1,
    max_size=25,
)


@given(UPDATES)
@settings(max_examples=300, deadline=None)
def test_decide__any_updates_in_any_order__ends_in_the_latest_window_with_versions_without_gaps(
    updates: list[SignalUpdate],
) -> None:
    fold = Fold()
    for each in updates:
        fold.take(each)
    assert fold.signal is not None
    latest = max(each.value.window_end for each in updates)
    last = [each for each in updates if each.value.window_end == latest][-1]
    assert fold.signal.value.window_end == latest
    assert fold.signal.digest == last.value.digest
    assert fold.versions == list(range(1, len(fold.versions) + 1))
    assert fold.signal.version == len(fold.versions)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_decide__one_value_for_each_window__the_order_makes_no_difference(data: st.DataObject) -> None:
    minutes = data.draw(st.lists(MINUTES, min_size=1, max_size=10, unique=True))
    states = data.draw(st.lists(st.sampled_from(SignalState), min_size=len(minutes), max_size=len(minutes)))
    updates = [update(state, minute) for state, minute in zip(states, minutes, strict=True)]
    ends = set()
    for _ in range(3):
        fold = Fold()
        for each in data.draw(st.permutations(updates)):
            fold.take(each)
        assert fold.signal is not None
        ends.add((fold.signal.state, fold.signal.digest, fold.signal.value.window_end))
    assert len(ends) == 1


@given(UPDATES)
@settings(max_examples=150, deadline=None)
def test_decide__each_update_sent_twice_in_a_row__is_one_version(updates: list[SignalUpdate]) -> None:
    once, twice = Fold(), Fold()
    for each in updates:
        first = once.take(each)
        assert twice.take(each) is first
        again = twice.take(each)
        assert again is (UpdateVerdict.STALE_WINDOW if first is UpdateVerdict.STALE_WINDOW else UpdateVerdict.DUPLICATE)
    assert once.versions == twice.versions
    assert once.signal == twice.signal


@given(UPDATES)
@settings(max_examples=150, deadline=None)
def test_decide__transitions__form_one_chain(updates: list[SignalUpdate]) -> None:
    fold = Fold()
    for each in updates:
        fold.take(each)
    assert fold.transitions[0][0] is None
    for before, then in zip(fold.transitions, fold.transitions[1:], strict=False):
        assert then[0] is before[1]


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        (0, UpdateVerdict.APPLIED),
        (ANY_VERSION, UpdateVerdict.APPLIED),
        (1, UpdateVerdict.VERSION_CONFLICT),
        (7, UpdateVerdict.VERSION_CONFLICT),
    ],
)
def test_decide__no_signal_yet__takes_zero_and_any(expected: int, verdict: UpdateVerdict) -> None:
    decision = decide(None, update(OK, 0, expected), STANDING, NOW_MS)
    assert decision.verdict is verdict
    assert (decision.signal is None) == (verdict is UpdateVerdict.VERSION_CONFLICT)


@pytest.mark.parametrize(("expected", "verdict"), [
    (0, UpdateVerdict.VERSION_CONFLICT), (1, UpdateVerdict.VERSION_CONFLICT), (3, UpdateVerdict.VERSION_CONFLICT),
    (2, UpdateVerdict.APPLIED), (ANY_VERSION, UpdateVerdict.APPLIED),
])  # fmt: skip
def test_decide__signal_at_version_two__takes_two_and_any(expected: int, verdict: UpdateVerdict) -> None:
    current = after(update(OK, 0), update(OK, 5))
    decision = decide(current, update(OK, 10, expected), STANDING, NOW_MS)
    assert decision.verdict is verdict
    if verdict is UpdateVerdict.VERSION_CONFLICT:
        assert decision.signal == current, "a conflict shows what is there"


@pytest.mark.parametrize("expected", [0, 1, 2, 3, ANY_VERSION])
def test_decide__an_older_window__never_overwrites_whatever_version_was_read(expected: int) -> None:
    current = after(update(OK, 0), update(CRITICAL, 10))
    assert decide(current, update(OK, 5, expected), STANDING, NOW_MS).verdict is UpdateVerdict.STALE_WINDOW


@pytest.mark.parametrize("expected", [0, 1, 2, 99, ANY_VERSION])
def test_decide__the_same_again_with_any_version__is_a_duplicate(expected: int) -> None:
    """The answer to the first may have been lost, so that the version the caller knows is the one before."""
    current = after(update(OK, 0), update(CRITICAL, 10))
    decision = decide(current, update(CRITICAL, 10, expected), STANDING, NOW_MS)
    assert decision.verdict is UpdateVerdict.DUPLICATE
    assert decision.signal == current


def test_decide__the_same_window_put_right__is_taken_by_version() -> None:
    current = after(update(OK, 0))
    assert decide(current, update(WARNING, 0, 1), STANDING, NOW_MS).verdict is UpdateVerdict.APPLIED
    assert decide(current, update(WARNING, 0, 2), STANDING, NOW_MS).verdict is UpdateVerdict.VERSION_CONFLICT


def test_decide__a_refresh__keeps_when_and_from_what_it_changed() -> None:
    signal = after(update(OK, 0), update(CRITICAL, 5), update(CRITICAL, 10))
    assert signal.previous_state is OK
    assert signal.state_changed_at == instant(NOW_MS + 5 * MINUTE_MS)


def test_decide__a_late_window__is_detected_when_it_is_stored_and_stays_so_while_it_lasts() -> None:
    first = decide(None, update(CRITICAL, -10_000), STANDING, NOW_MS).signal
    again = decide(first, update(CRITICAL, -9_995), STANDING, NOW_MS + 60_000).signal
    ended = decide(again, update(OK, -9_990), STANDING, NOW_MS + 120_000).signal

    assert first is not None
    assert again is not None
    assert ended is not None
    assert first.state_changed_at < instant(NOW_MS)
    assert (first.since, again.since, ended.since) == (instant(NOW_MS), instant(NOW_MS), instant(NOW_MS + 120_000))


def test_since__a_signal_of_an_earlier_release__is_when_its_state_changed() -> None:
    stored = replace(after(update(CRITICAL, 5)), detected_at=None)
    assert stored.since == stored.state_changed_at


def test_decide__a_breach__has_begun_with_its_first_window_and_ends_with_ok() -> None:
    first = after(update(OK, 0), update(WARNING, 5))
    assert first.value.breach_start == first.value.window_start
    worse = after(update(OK, 0), update(WARNING, 5), update(CRITICAL, 10))
    assert worse.value.breach_start == first.value.breach_start
    well = after(update(OK, 0), update(WARNING, 5), update(CRITICAL, 10), update(OK, 15))
    assert well.value.breach_start is None


def test_decide__a_breach_whose_beginning_the_engine_knows__is_as_it_says() -> None:
    began = instant(NOW_MS - 3_600_000)
    assert after(update(OK, 0), update(CRITICAL, 5, breach_start=began)).value.breach_start == began


def test_decide__unknown__is_no_breach() -> None:
    assert after(update(UNKNOWN, 0)).value.breach_start is None


def test_decide__an_incident__stays_linked_over_refreshes() -> None:
    from msgspec.structs import replace

    current = after(update(CRITICAL, 0))
    linked = replace(current, value=replace(current.value, incident_id="INC-1"))
    decision = decide(linked, update(CRITICAL, 5), STANDING, NOW_MS)
    assert decision.signal is not None
    assert decision.signal.value.incident_id == "INC-1"


def test_decide__the_dataset_moved_to_another_tier_and_team__the_signal_carries_it() -> None:
    current = after(update(OK, 0))
    decision = decide(current, update(OK, 5), DatasetProfile(Tier.TIER_3, "team-b"), NOW_MS)
    assert decision.signal is not None
    assert (decision.signal.tier, decision.signal.owner_team) == (Tier.TIER_3, "team-b")


def test_decide__no_longer_ok__knows_the_last_window_in_which_it_was() -> None:
    assert after(update(CRITICAL, 0)).last_ok_at is None
    fine = after(update(CRITICAL, 0), update(OK, 5), update(OK, 10))
    assert (fine.last_ok_at, fine.ok_until) == (fine.value.window_end, None)
    for rest in ([update(WARNING, 15)], [update(UNKNOWN, 15), update(CRITICAL, 20), update(CRITICAL, 25)]):
        broken = after(update(CRITICAL, 0), update(OK, 5), update(OK, 10), *rest)
        assert broken.last_ok_at == fine.value.window_end


def test_decide__first_update_of_a_misspelled_type__is_invalid_with_the_nearest_name() -> None:
    given = replace(update(OK, 0), signal_type="FRESHNES")

    decision = decide(None, given, STANDING, NOW_MS)

    assert decision.verdict is UpdateVerdict.INVALID
    message = rejection(given, None, decision.verdict)
    assert f"signal_type 'FRESHNES' of {ORDERS}: did you mean FRESHNESS?" in message
    assert "X_" in message


def test_decide__misspelled_type_that_exists__is_updated() -> None:
    stored = replace(after(update(OK, 0)), signal_type="FRESHNES")

    decision = decide(stored, replace(update(OK, 1), signal_type="FRESHNES"), STANDING, NOW_MS)

    assert decision.verdict is UpdateVerdict.APPLIED
