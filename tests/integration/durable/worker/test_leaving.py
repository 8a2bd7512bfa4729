"""A worker that leaves: what has ended in it is stored, and no claim of it is left without a way to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.history import ActivityEnded
from tests.integration.durable.worker.fleets import Fleet

# Another worker takes claims of a dead one when it has not renewed its lease for this long.
LEASE_SECONDS = 15


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


def shop(app: hg.App) -> None:
    @app.activity(retry=hg.Retry(attempts=2))
    def charge() -> int:
        return hg.activity().attempt

    @app.workflow
    async def order() -> int:
        return await charge()


def end_activity(fleet: Fleet) -> None:
    """Have the worker `first` run the activity of an execution, up to the turn that would record its end."""
    worker = fleet.join("first", shop)
    fleet.client.start("order", Raw(b"null"), execution_id="o-1")
    worker.poll()
    worker.turn()
    worker.perform(worker.queue.popleft())
    assert worker.engine.has_work


def attempts(fleet: Fleet) -> list[int]:
    events = [event for turn in fleet.client.history("o-1") for event in turn.events]
    return [event.attempts for event in events if isinstance(event, ActivityEnded)]


def test_leave__ended_activity_without_a_turn__its_result_is_kept_for_another_worker(fleet: Fleet) -> None:
    end_activity(fleet)
    fleet.leave("first")
    fleet.join("second", shop)
    fleet.run()
    assert fleet.result("o-1") == 1
    assert attempts(fleet) == [1]


def test_leave__claim_whose_result_is_lost__another_worker_reclaims_it(fleet: Fleet) -> None:
    end_activity(fleet)
    # As a turn that hangs: its events are out of the ready list and never committed.
    fleet.workers["first"].engine.ready.clear()
    fleet.leave("first")
    fleet.join("second", shop)
    fleet.advance(LEASE_SECONDS)
    assert fleet.result("o-1") == 2
    assert attempts(fleet) == [2]


def test_stop__announced__turns_claim_nothing_more_and_results_are_stored_at_once(fleet: Fleet) -> None:
    worker = fleet.join("first", shop)
    fleet.client.start("order", Raw(b"null"), execution_id="o-1")
    worker.poll()
    worker.announce_stop()
    worker.turn()
    assert not worker.queue
    fleet.leave("first")
    fleet.join("second", shop)
    fleet.run()
    assert fleet.result("o-1") == 1
