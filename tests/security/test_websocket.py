"""GraphQL on a WebSocket: pages of other origins, callers without a key, revoked keys and foreign datasets."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.security.server import Target

ORDERS = "urn:dp:orders:created:v1"
STOCK = "urn:dp:stock:level:v1"
CONSOLE = "https://console.example"
SIGNALS = "subscription { signalChanged { datasetUrn state } }"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("websocket")
    found = Target(folder, cwd=folder, roles=[], HEADGATE_ALLOWED_ORIGINS=CONSOLE)
    for urn in (ORDERS, STOCK):
        assert found.call("admin", "POST", "/datasets", {"dataset_urn": urn}).status == 201
    yield found
    found.stop()


def opened(target: Target, key: str | None = None, **more: Any) -> ClientConnection:
    headers = {**({} if key is None else {"authorization": f"Bearer {key}"}), **more.pop("headers", {})}
    url = f"{target.url.replace('http', 'ws', 1)}/graphql"
    return connect(url, subprotocols=["graphql-transport-ws"], additional_headers=headers, **more)  # type: ignore[list-item]


def initialised(socket: ClientConnection, payload: Any = None) -> Any:
    """Return the acknowledgement, or the code with which the server closes."""
    socket.send(json.dumps({"type": "connection_init", "payload": payload}))
    return received(socket)


def received(socket: ClientConnection) -> Any:
    try:
        return json.loads(socket.recv(timeout=20))
    except ConnectionClosed as exc:
        assert exc.rcvd is not None
        return exc.rcvd.code


def refused(target: Target, key: str | None = None, **more: Any) -> int:
    """Return the HTTP status of a refused handshake."""
    with pytest.raises(InvalidStatus) as caught:
        opened(target, key, **more)
    return caught.value.response.status_code


def change(target: Target, urn: str, state: str) -> None:
    now = datetime.now(UTC)
    window = {"window_start": (now - timedelta(minutes=5)).isoformat(), "window_end": now.isoformat()}
    path = f"/datasets/{urn}/signals/VOLUME"
    value = {"state": state, "score": 0.5, "failure_signature": "LATE:x" if state == "WARNING" else None}
    reply = target.call("admin", "PUT", path, {**value, **window})
    assert reply.status == 200, reply.text


def issued(target: Target, scope: str) -> dict[str, Any]:
    body = {"principal": "vera", "roles": ["viewer"], "scopes": [scope]}
    reply = target.call("admin", "POST", "/api-keys", body)
    assert reply.status == 201, reply.text
    found: dict[str, Any] = reply.body
    return found


def failed_logins(target: Target) -> float:
    headers = {"authorization": f"Bearer {target.keys['admin']}"}
    text = httpx.get(f"{target.url}/metrics", headers=headers, timeout=20).text
    found = re.search(r"(?m)^headgate_failed_logins_total (\S+)", text)
    return 0.0 if found is None else float(found.group(1))


def test_origin__page_of_another__is_refused_before_it_is_accepted(target: Target) -> None:
    own = target.url
    port = int(own.rpartition(":")[2])

    for origin in ("https://evil.example", f"http://127.0.0.1:{port - 1}", f"http://localhost:{port}", "null"):
        assert refused(target, target.keys["admin"], origin=origin) == 403
    assert refused(target, headers={"sec-fetch-site": "cross-site"}) == 403
    assert refused(target, headers={"host": "evil.example"}) in (400, 421)
    for origin in (own, CONSOLE):
        with opened(target, target.keys["admin"], origin=origin) as socket:
            assert initialised(socket) == {"type": "connection_ack"}


def test_key__missing_or_wrong__is_refused_and_counted(target: Target) -> None:
    before = failed_logins(target)

    assert refused(target, "hg_wrong") == 401
    for payload in ({"Authorization": "Bearer hg_wrong"}, {"authorization": "Bearer"}):
        with opened(target) as socket:
            assert initialised(socket, payload) == 4403
    after = failed_logins(target)
    for none in (None, {}, {"Authorization": None}, ["Authorization"]):
        with opened(target) as socket:
            assert initialised(socket, none) == 4403
    for malformed in ({"Authorization": 7}, {"Authorization": {"a": "b"}}, {"Authorization": "Bearer é"}):
        with opened(target) as socket:
            assert initialised(socket, malformed) == 4400
    with opened(target) as socket:
        socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": {"query": SIGNALS}}))
        assert received(socket) == 4401

    assert after - before == 3


def test_cookie__of_a_session__counts_for_our_own_pages_only(target: Target) -> None:
    form = {"key": target.keys["admin"], "next": "/ui"}
    signed_in = httpx.post(f"{target.url}/ui/sign-in", data=form, timeout=20)
    cookie = {"cookie": f"headgate-session={signed_in.cookies['headgate-session']}"}

    with opened(target, origin=target.url, headers=cookie) as socket:
        assert initialised(socket) == {"type": "connection_ack"}
    for origin in (CONSOLE, None):
        with opened(target, origin=origin, headers=cookie) as socket:
            assert initialised(socket) == 4403


def test_key__of_one_dataset_in_the_first_message__gets_that_one_until_it_is_revoked(target: Target) -> None:
    made = issued(target, "urn:dp:stock:*")
    is_over = threading.Event()

    def keep_changing() -> None:
        # The subscription begins some time after its message.
        for number in range(400):
            for urn in (ORDERS, STOCK):
                change(target, urn, "WARNING" if number % 2 else "OK")
            if is_over.wait(0.05):
                return

    changing = threading.Thread(target=keep_changing)
    with opened(target) as socket:
        assert initialised(socket, {"Authorization": f"Bearer {made['text']}"}) == {"type": "connection_ack"}
        socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": {"query": SIGNALS}}))
        changing.start()
        try:
            got = [received(socket) for _ in range(4)]
            assert target.call("admin", "DELETE", f"/api-keys/{made['key']['key_id']}").status == 200
            ends_by = time.monotonic() + 20
            while isinstance(last := received(socket), dict):
                assert time.monotonic() < ends_by
        finally:
            is_over.set()
            changing.join()

    assert {each["payload"]["data"]["signalChanged"]["datasetUrn"] for each in got} == {STOCK}
    assert last == 4403
