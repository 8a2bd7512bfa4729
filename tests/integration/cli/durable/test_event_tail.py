"""`headgate event tail`: prints every event of the stream, as text or as JSON lines."""

from __future__ import annotations

import json

import pytest

from tests.integration.cli.http_peer import Peer, responds
from tests.unit.cli.program import invoke

EVENTS = [
    {"id": name, "accepted_at": "2026-01-31T06:00:00Z", "type": "order.created", "event": {"data": {"n": name}}}
    for name in ("evt_1", "evt_2")
]
STREAM = "".join(f"event: event\nid: {each['id']}\ndata: {json.dumps(each)}\n\n" for each in EVENTS)


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_tail__stream_of_two__prints_both(peer: Peer, flag: list[str]) -> None:
    peer.response = responds(200, STREAM.encode())

    result = invoke(["event", "tail", "--limit", "2", *flag], {"HEADGATE_SERVER": peer.url})

    lines = result.stdout.splitlines()
    assert [line[:5] if not flag else json.loads(line)["id"] for line in lines] == ["evt_1", "evt_2"]
