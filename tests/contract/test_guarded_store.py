"""The guarded store keeps the contract: tests of each part of it, run again through the guards on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.clock import VirtualClock
from headgate.store.resilience.circuit_breaker import BreakerState
from headgate.store.resilience.guarded_store import GuardedStore
from tests.contract.conftest import OpenStore
from tests.contract.test_batches import (
    test_batch_write__one_write_it_cannot_take__is_refused_as_a_whole,
    test_batch_write__puts_and_deletes__are_all_done,
)
from tests.contract.test_changes import (
    reader,
    test_changes__of_a_transaction__are_all_reported,
    test_changes__put_overwrite_update_delete__are_reported_with_both_images,
)
from tests.contract.test_expiry import test_expiry__at_the_very_second__is_the_same_to_every_call
from tests.contract.test_reads_and_writes import (
    test_delete__an_item__returns_what_was_there,
    test_get__after_put__gives_the_item,
    test_get_many__some_there_some_not__keeps_the_order_of_the_keys,
)
from tests.contract.test_submit import (
    test_submit__bad_input__is_raised_here_and_now,
    test_submit__condition_does_not_hold__done_is_reported_the_conflict,
    test_submit__many_from_many_threads__are_all_done,
)
from tests.contract.test_tokens import test_transact__same_call_with_the_same_token__counts_once
from tests.contract.test_transact_many import (
    test_transact_many__one_is_refused__the_others_are_written_and_it_names_the_write,
)
from tests.contract.test_transactions import (
    test_conflict__several_writes_refused__names_every_one_with_its_item,
    test_transact__across_tables_with_one_refused__does_nothing_in_any,
    test_transact__one_bad_write_among_good_ones__is_refused_as_a_whole,
)
from tests.contract.test_updates import test_update__set_add_and_remove_together__all_happen

READS_INDEXES = False

__all__ = [
    "reader",
    "test_batch_write__one_write_it_cannot_take__is_refused_as_a_whole",
    "test_batch_write__puts_and_deletes__are_all_done",
    "test_changes__of_a_transaction__are_all_reported",
    "test_changes__put_overwrite_update_delete__are_reported_with_both_images",
    "test_conflict__several_writes_refused__names_every_one_with_its_item",
    "test_delete__an_item__returns_what_was_there",
    "test_expiry__at_the_very_second__is_the_same_to_every_call",
    "test_get__after_put__gives_the_item",
    "test_get_many__some_there_some_not__keeps_the_order_of_the_keys",
    "test_submit__bad_input__is_raised_here_and_now",
    "test_submit__condition_does_not_hold__done_is_reported_the_conflict",
    "test_submit__many_from_many_threads__are_all_done",
    "test_transact__across_tables_with_one_refused__does_nothing_in_any",
    "test_transact__one_bad_write_among_good_ones__is_refused_as_a_whole",
    "test_transact__same_call_with_the_same_token__counts_once",
    "test_transact_many__one_is_refused__the_others_are_written_and_it_names_the_write",
    "test_update__set_add_and_remove_together__all_happen",
]


@pytest.fixture
def store(open_store: OpenStore, clock: VirtualClock) -> GuardedStore:
    """The store of the contract, behind guards."""
    return GuardedStore(open_store(), clock)


@pytest.fixture(autouse=True)
def _nothing_was_refused(store: GuardedStore) -> Iterator[None]:
    yield
    assert {breaker.state for breaker in store.breakers()} <= {BreakerState.CLOSED}
    assert all(limiter.rate is None for limiter in store.limiters())
