"""Decisions on pools: who gets the next slot, what a sweep drops, and which runs are woken."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.runs.pool_decisions import (
    LEASE_MS,
    OFFER_MS,
    Lease,
    Pool,
    Ticket,
    claim,
    grant,
    offers,
    pool_needs,
    swept,
    without,
)

NOW_MS = 1_000_000_000


def lease(run_id: str, *, slots: int = 1, claimed: bool = True, expires_at_ms: int = NOW_MS + LEASE_MS) -> Lease:
    return Lease(
        run_id=run_id, pipeline_id="silver", schedule_id="daily", date="2026-03-03", slots=slots,
        queued_at_ms=NOW_MS, granted_at_ms=NOW_MS, expires_at_ms=expires_at_ms, is_claimed=claimed,
    )  # fmt: skip


def ticket(run_id: str, *, slots: int = 1) -> Ticket:
    return Ticket(
        pool="spark", run_id=run_id, pipeline_id="silver", schedule_id="daily", date="2026-03-03",
        run_created_at_ms=NOW_MS, queued_at_ms=NOW_MS - 5_000, slots=slots,
    )  # fmt: skip


def pool(*leases: Lease) -> Pool:
    return Pool(name="spark", version=3, leases=leases)


def test_grant__free_slots__go_to_the_first_of_the_queue_as_offers_that_expire() -> None:
    granted = grant(pool(lease("a")), 3, [ticket("b"), ticket("c"), ticket("d")], NOW_MS)

    assert [each.run_id for each in granted.pool.leases] == ["a", "b", "c"]
    assert [each.run_id for each in granted.taken] == ["b", "c"]
    offer = granted.pool.leases[1]
    assert (offer.is_claimed, offer.expires_at_ms, offer.queued_at_ms) == (False, NOW_MS + OFFER_MS, NOW_MS - 5_000)


def test_grant__first_needs_more_than_is_free__no_smaller_run_overtakes_it() -> None:
    granted = grant(pool(lease("a", slots=2)), 4, [ticket("big", slots=3), ticket("small")], NOW_MS)

    assert granted.taken == ()
    assert granted.pool.used == 2


def test_grant__need_beyond_a_size_that_shrank__takes_the_whole_pool_when_it_is_empty() -> None:
    granted = grant(pool(), 2, [ticket("big", slots=5), ticket("small")], NOW_MS)

    assert [(each.run_id, each.slots) for each in granted.pool.leases] == [("big", 2)]


def test_grant__more_in_use_than_a_size_that_shrank__gives_nothing() -> None:
    assert grant(pool(lease("a"), lease("b")), 1, [ticket("c")], NOW_MS).taken == ()


def test_grant__ticket_of_a_run_that_has_slots__is_removed_and_counted_once() -> None:
    granted = grant(pool(lease("a")), 2, [ticket("a"), ticket("b")], NOW_MS)

    assert [each.run_id for each in granted.taken] == ["a", "b"]
    assert [each.run_id for each in granted.pool.leases] == ["a", "b"]


def test_claim__offer__becomes_a_lease() -> None:
    claimed = claim(pool(lease("a", claimed=False, expires_at_ms=NOW_MS + 1)), "a", NOW_MS)

    assert claimed.leases[0].is_claimed
    assert claimed.leases[0].expires_at_ms == NOW_MS + LEASE_MS
    assert claim(claimed, "a", NOW_MS + 5) == claimed


def test_swept__leases__ended_runs_and_stale_offers_go_and_old_leases_of_active_runs_are_renewed() -> None:
    before = pool(
        lease("ended"),
        lease("fresh"),
        lease("old", expires_at_ms=NOW_MS - 1),
        lease("offered", claimed=False, expires_at_ms=NOW_MS + 1),
        lease("unclaimed", claimed=False, expires_at_ms=NOW_MS),
    )

    after = swept(before, frozenset({"fresh", "old", "offered", "unclaimed"}), NOW_MS)

    assert [each.run_id for each in after.leases] == ["fresh", "old", "offered"]
    assert after.leases[1].expires_at_ms == NOW_MS + LEASE_MS
    assert swept(after, frozenset({"fresh", "old", "offered"}), NOW_MS) == after


def test_without__run__leaves_the_others() -> None:
    assert [each.run_id for each in without(pool(lease("a"), lease("b")), "a").leases] == ["b"]


def test_offers__change_of_a_pool__are_those_that_are_new_and_not_claimed() -> None:
    before = pool(lease("a", claimed=False))
    after = replace(before, leases=(*before.leases, lease("b", claimed=False), lease("c")))

    assert [each.run_id for each in offers(before, after)] == ["b"]
    assert [each.run_id for each in offers(None, after)] == ["a", "b"]


def test_pool_needs__pipeline_with_a_limit_of_its_own_and_a_pool__acquires_its_own_first() -> None:
    pipeline = Pipeline(id="silver", concurrency=2, pool="spark", slots=3)

    needs = pool_needs(pipeline, {"spark": 8})

    assert [(each.pool, each.size, each.slots) for each in needs] == [("pipeline/silver", 2, 1), ("spark", 8, 3)]
    assert pool_needs(Pipeline(id="silver"), {"spark": 8}) == ()
    assert pool_needs(pipeline, {})[1].size is None
    assert pool_needs(pipeline, {"spark": 2})[1].slots == 2
