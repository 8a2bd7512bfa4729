"""Shares: room is divided in proportion to priorities, and none of it is left while someone wants it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fanout.local.claims import Want, shares

WANTS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(1, 9)), max_size=8
).map(lambda rows: [Want(f"r{place}", *row) for place, row in enumerate(rows)])  # fmt: skip


@given(st.integers(-3, 100), WANTS)
def test_shares__any_wants__give_all_the_room_and_no_more_than_is_wanted(room: int, wants: list[Want]) -> None:
    given_out = shares(room, wants)

    assert sum(given_out.values()) == max(0, min(room, sum(want.wanted for want in wants)))
    wanted = {want.run_id: want.wanted for want in wants}
    assert all(0 < count <= wanted[run_id] for run_id, count in given_out.items())


@given(st.integers(1, 100), WANTS)
def test_shares__any_wants__no_one_has_a_place_that_another_had_the_better_claim_to(
    room: int, wants: list[Want]
) -> None:
    given_out = shares(room, wants)
    have = {want.run_id: want.running + given_out.get(want.run_id, 0) for want in wants}
    for one in wants:
        if given_out.get(one.run_id, 0) == 0:
            continue
        for other in wants:
            if given_out.get(other.run_id, 0) < other.wanted:
                # Had it gone to the other one instead, that one would have had more for its priority.
                assert (have[one.run_id] - 1) / one.priority <= have[other.run_id] / other.priority


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ([Want("a", 100), Want("b", 100)], {"a": 6, "b": 6}),
        ([Want("a", 100, priority=9), Want("b", 100, priority=3)], {"a": 9, "b": 3}),
        ([Want("a", 100, running=6), Want("b", 100)], {"a": 3, "b": 9}),
        ([Want("a", 1), Want("b", 100)], {"a": 1, "b": 11}),
        ([Want("a", 0), Want("b", 5)], {"b": 5}),
        ([], {}),
    ],
)
def test_shares__twelve_places__go_by_priority_and_by_what_runs(wants: list[Want], expected: dict[str, int]) -> None:
    assert shares(12, wants) == expected


def test_shares__one_place_and_equals__goes_to_the_one_named_first() -> None:
    assert shares(1, [Want("b", 5), Want("a", 5)]) == {"b": 1}


def test_shares__one_place_again_and_again__no_one_starves() -> None:
    running = dict.fromkeys("abc", 0)
    for _ in range(30):
        wants = [Want(name, 1, running[name], priority) for name, priority in zip("abc", (9, 5, 1), strict=True)]
        for name, count in shares(1, wants).items():
            running[name] += count

    assert running == {"a": 18, "b": 10, "c": 2}
