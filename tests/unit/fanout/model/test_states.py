"""States: what a chunk can be in, and what can never happen to it again."""

from __future__ import annotations

import pytest

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.states import LEGAL, ChunkStatus, Disposition, FanoutStatus, is_legal

OPEN = {Disposition.WAITING, Disposition.QUEUED, Disposition.RETRYING, Disposition.RUNNING}


def reachable(start: Disposition) -> set[Disposition]:
    """Every disposition that a chunk can come to from one."""
    found: set[Disposition] = set()
    left = [start]
    while left:
        for after in LEGAL[left.pop()]:
            if after not in found:
                found.add(after)
                left.append(after)
    return found


@pytest.mark.parametrize("disposition", Disposition)
def test_disposition__each__has_a_status_a_bucket_and_its_moves(disposition: Disposition) -> None:
    assert isinstance(disposition.status, ChunkStatus)
    assert disposition.bucket in Counts.__struct_fields__
    assert f"slow_{disposition.bucket}" in Counts.__struct_fields__
    assert disposition in LEGAL


def test_buckets__of_all_dispositions__are_distinct() -> None:
    assert len({disposition.bucket for disposition in Disposition}) == len(Disposition)


def test_status__the_four_of_the_table_and_two_more__by_those_names() -> None:
    assert {status.value for status in ChunkStatus} == {
        "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED", "SKIPPED",
    }  # fmt: skip


@pytest.mark.parametrize("disposition", Disposition)
def test_is_terminal__of_each_disposition__just_when_it_is_not_open(disposition: Disposition) -> None:
    assert disposition.status.is_terminal is (disposition not in OPEN)


def test_legal__skipped__never_moves_again() -> None:
    assert reachable(Disposition.SKIPPED) == set()


def test_legal__done__only_waits_again_for_its_failed_items() -> None:
    assert LEGAL[Disposition.DONE] == {Disposition.WAITING, Disposition.QUEUED}


def test_legal__deferred__can_only_become_done() -> None:
    assert LEGAL[Disposition.DEFERRED] == {Disposition.DONE}


@pytest.mark.parametrize("disposition", [d for d in Disposition if d not in OPEN])
def test_legal__what_has_ended__runs_only_after_it_was_put_back(disposition: Disposition) -> None:
    assert not is_legal(disposition, Disposition.RUNNING)
    assert not is_legal(disposition, Disposition.RETRYING)


@pytest.mark.parametrize("disposition", [d for d in Disposition if d is not Disposition.RUNNING])
def test_legal__completion__comes_from_running_alone(disposition: Disposition) -> None:
    assert not is_legal(disposition, Disposition.DEFERRED)
    assert is_legal(disposition, Disposition.DONE) is (disposition is Disposition.DEFERRED)


def test_legal__running__may_be_taken_over_and_may_end_in_every_way_but_skipped() -> None:
    assert is_legal(Disposition.RUNNING, Disposition.RUNNING)
    ends = {disposition for disposition in Disposition if disposition not in OPEN}
    assert {end for end in ends if not is_legal(Disposition.RUNNING, end)} == {Disposition.SKIPPED}


@pytest.mark.parametrize("disposition", sorted(OPEN))
def test_legal__from_every_open_one__every_end_can_be_reached(disposition: Disposition) -> None:
    assert {Disposition.DONE, Disposition.DEAD, Disposition.CANCELLED, Disposition.SKIPPED} <= reachable(disposition)


@pytest.mark.parametrize(
    "disposition", [Disposition.DEAD, Disposition.QUARANTINED, Disposition.CANCELLED], ids=lambda d: d.value
)
def test_legal__what_was_given_up__can_be_redriven_or_done_without(disposition: Disposition) -> None:
    assert is_legal(disposition, Disposition.QUEUED)
    assert is_legal(disposition, Disposition.WAITING)
    assert is_legal(disposition, Disposition.SKIPPED)


def test_fanout_status__six_of_them() -> None:
    assert {status.value for status in FanoutStatus} == {
        "SPLITTING", "RUNNING", "SUCCEEDED", "PARTIAL", "FAILED", "CANCELLED",
    }  # fmt: skip
