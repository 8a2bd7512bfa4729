"""Rate limits: the attempts that start in any window, also when claims wait for a thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

import headgate as hg
from tests.integration.durable.worker.fleets import Fleet

RATE = 2


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("waits_seconds", [0.4, 0.9, 1.0, 1.5])
def test_rate__claims_wait_for_a_thread__no_window_has_more_starts_than_the_rate(
    fleet: Fleet, waits_seconds: float
) -> None:
    started: list[float] = []

    def shop(app: hg.App) -> None:
        @app.activity(limit=hg.Limit(rate=RATE, per="1s"))
        def hit() -> None:
            started.append(fleet.clock.seconds())

        @app.workflow
        async def order() -> None:
            await hit()

    worker = fleet.join("first", shop)
    for number in range(8):
        fleet.client.start("order", Raw(b"null"), execution_id=f"o-{number}")
    for _ in range(40):
        # Claims as a poll finds them; every thread is busy meanwhile.
        for _ in range(4):
            worker.poll()
            worker.turn()
        fleet.clock.advance(waits_seconds)
        worker.poll()
        worker.turn()
        while worker.queue:
            worker.perform(worker.queue.popleft())
        fleet.clock.advance(0.05)
    assert len(started) == 8
    assert max(sum(at <= each < at + 1.0 for each in started) for at in started) <= RATE
