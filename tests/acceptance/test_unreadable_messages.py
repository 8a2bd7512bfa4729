"""What a newer version has written stops the one execution it is about, and no other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import headgate as hg
from headgate.durable.model.history import Status
from headgate.store.catalogue.tables import INBOXES
from headgate.store.model.requests import Put

app = hg.App("unreadable")


@app.workflow
async def wait() -> str:
    return str(await hg.wait_signal("go"))


UNKNOWN = {
    "execution_id": "held",
    "message_id": "M#1750000000000#x",
    "body": '{"kind":"unheard_of"}',
    "at_ms": 1_750_000_000_000,
    "ready_pk": "INBOX",
}


def test_message__of_a_kind_this_version_does_not_know__holds_up_its_execution_alone(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    with hg.connect(app, home=tmp_path, work=False) as service:
        service.start(on_fatal=fatal.append)
        held, free = wait.start(id="held"), wait.start(id="free")
        service.store.transact([Put(INBOXES, UNKNOWN)])
        service.notifier.on_message_stored("held")

        free.signal("go", 1)

        assert free.result(10) == "1"
        assert not fatal
        assert "cannot be read" in _failure(held)
        held.terminate("not worth the upgrade")
        with pytest.raises(hg.ExecutionFailure):
            held.result(10)
        assert held.status() is Status.TERMINATED


def _failure(held: hg.Handle) -> str:
    """Wait until a turn of the execution has failed, and return why."""
    for _ in range(200):
        failure = held.describe().failure
        if failure is not None:
            return failure
        threading.Event().wait(0.05)
    raise AssertionError("no turn has failed")
