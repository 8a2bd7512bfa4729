"""Streams: a key that is revoked gets nothing more, on connections that are open already."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.security.server import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("streams")
    found = Target(folder, cwd=folder, roles=[])
    yield found
    found.stop()


def test_key__revoked_while_it_follows_events__the_stream_ends_before_the_next(target: Target) -> None:
    made = target.call("admin", "POST", "/api-keys", {"principal": "vera", "roles": ["viewer"]}).body
    is_over = threading.Event()

    def keep_emitting() -> None:
        for number in range(400):
            target.call("admin", "POST", "/events", {"type": "shop.tick", "id": f"tick-{number}"})
            if is_over.wait(0.05):
                return

    emitting = threading.Thread(target=keep_emitting)
    emitting.start()
    try:
        headers = {"authorization": f"Bearer {made['text']}", "accept": "text/event-stream"}
        with httpx.stream("GET", f"{target.url}/api/v1/events/tail", headers=headers, timeout=20) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert any(line.startswith("data:") for line in lines)
            assert target.call("admin", "DELETE", f"/api-keys/{made['key']['key_id']}").status == 200
            # Events go on; the stream does not. Without an end, the time-out of the client fails the test.
            late = sum(line.startswith("data:") for line in lines)
    finally:
        is_over.set()
        emitting.join()
    assert late < 20
