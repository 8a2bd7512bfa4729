"""Seeded histories on every backend. A failure prints its seed; the same seed gives the same history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import IDEMPOTENCY, SIGNAL_STATE, STREAM_CHECKPOINTS
from headgate.store.dynamodb.client import client_config
from headgate.store.dynamodb.store import DynamoStore
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Put
from headgate.store.port import Store
from headgate.store.table_names import TableNames
from tests.ministack import Ministack, aws_session, fresh_account
from tests.simulation.model import KEYS, TABLE, Simulation
from tests.simulation.seeds import seeds
from tests.stores import open_sqlite

# In the future, because DynamoDB's emulator deletes by the machine's own clock.
START_SECONDS = 2_200_000_000.0
SEEDS = seeds(20)


def run(seed: int, steps: int, clock: VirtualClock, reopen: Callable[[], Store]) -> None:
    simulation = Simulation(seed, clock, reopen)
    received: list[str] = []
    for _ in range(steps):
        try:
            received.append(simulation.step())
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}, step {len(received)}, after {received[-3:]}") from exc
    simulation.check_stream()
    simulation.store.close()
    assert any(step.startswith("applied") for step in received)
    assert any(step.startswith("refused") for step in received)


@pytest.mark.parametrize("seed", SEEDS)
def test_sqlite__seeded_history__agrees_with_the_model_after_every_step(tmp_path: Path, seed: int) -> None:
    clock = VirtualClock(START_SECONDS)

    run(seed, 120, clock, lambda: open_sqlite(tmp_path, clock=clock))


def _token_history(tmp_path: Path, seconds: list[int]) -> tuple[str, object]:
    """Apply a put under a token, replace the item, let the clock jump, repeat the put; return outcome and state."""
    clock = VirtualClock(START_SECONDS)
    simulation = Simulation(0, clock, lambda: open_sqlite(tmp_path, clock=clock))
    key = KEYS[0]
    first, second = ({**TABLE.key_attributes(key), "state": state} for state in ("OK", "CRITICAL"))
    simulation.send([Put(TABLE, first)], "token")
    simulation.send([Put(TABLE, second)], None)
    for jump in seconds:
        clock.advance(jump)
    outcome = simulation.repeat()
    simulation.check()
    item = simulation.store.get(TABLE, key, consistent=True)
    simulation.check_stream()
    simulation.store.close()
    assert item is not None
    return outcome.split()[0], item["state"]


def test_model__token_repeated_just_within_ten_minutes__expects_no_change(tmp_path: Path) -> None:
    assert _token_history(tmp_path, [90] * 6 + [59]) == ("repeated", "CRITICAL")


def test_model__short_jumps_add_up_to_ten_minutes__expects_a_new_transaction(tmp_path: Path) -> None:
    assert _token_history(tmp_path, [90] * 6 + [30, 30]) == ("applied", "OK")


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    server = Ministack.start(tmp_path_factory.mktemp("ministack"))
    yield server
    server.stop()


@pytest.mark.parametrize("seed", range(3))
def test_dynamodb__seeded_history__agrees_with_the_model_after_every_step(
    tmp_path: Path, ministack: Ministack, seed: int
) -> None:
    clock = VirtualClock(START_SECONDS)
    session, config = aws_session(fresh_account()), client_config(10.0)
    keyring = Keyring.generate(clock)

    def reopen() -> DynamoStore:
        return DynamoStore(
            client=session.client("dynamodb", endpoint_url=ministack.endpoint, config=config),
            streams=session.client("dynamodbstreams", endpoint_url=ministack.endpoint, config=config),
            names=TableNames(),
            clock=clock,
            cursors=Cursors(keyring),
            spill=Spill(FolderBlobs(tmp_path / "blobs"), clock),
        )

    first = reopen()
    first.create_tables([SIGNAL_STATE, IDEMPOTENCY, STREAM_CHECKPOINTS])
    first.close()
    run(seed, 40, clock, reopen)
