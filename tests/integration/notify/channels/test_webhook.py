"""The webhook channel: signed, timed, bounded, and never to an address that is not allowed."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.model.failures import NonRetryable
from headgate.errors import SettingsError, TransientError
from headgate.ids import IdMaker
from headgate.notify.channels.factory import ChannelDependencies, open_channels
from headgate.notify.channels.webhook import signing_key
from headgate.notify.configuration import parse_config
from headgate.notify.messages import Channel
from headgate.settings import Secret
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite
from tests.unit.notify.rig import LOOPBACK, LocalService, Reply, Request, a_message

SECRET = b"0123456789abcdef0123456789abcdef"
Serve = Callable[[Callable[[Request], Reply | None]], LocalService]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path)
    yield opened
    opened.close()


def opened(store: SqliteStore, folder: Path, url: str, *, around: dict[str, Any] | None = None) -> Channel:
    (folder / "secret").write_text("whsec_" + base64.b64encode(SECRET).decode())
    spec = {"kind": "webhook", "url": url, "secret": f"file:{folder / 'secret'}", "timeout_seconds": 1}
    facts = {"clock": SystemClock(), "destinations": LOOPBACK, **(around or {})}
    surroundings = ChannelDependencies(store=store, ids=IdMaker(SystemClock()), home=folder, **facts)
    return open_channels(parse_config({"channels": {"hook": spec}}), surroundings)["hook"]


def test_webhook__taken__is_a_cloud_event_that_the_receiver_can_verify(
    store: SqliteStore, tmp_path: Path, serve: Serve
) -> None:
    service = serve(lambda _request: (202, {}, {}))
    clock = VirtualClock()

    opened(store, tmp_path, f"{service.url}/hook?team=a", around={"clock": clock}).send(a_message())

    request = service.received[0]
    headers = request.headers
    assert request.path == "/hook?team=a"
    assert headers["webhook-id"] == "alert_01-trigger"
    assert headers["webhook-timestamp"] == str(int(clock.seconds()))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    event = request.json
    assert (event["type"], event["subject"], event["specversion"]) == ("headgate.alert.trigger", "orders", "1.0")
    assert event["data"]["title"] == "orders daily 2026-03-03: the job failed"
    assert event["data"]["detail"] == {"error": "exit 1"}


def test_webhook__tried_again__has_the_same_id(store: SqliteStore, tmp_path: Path, serve: Serve) -> None:
    service = serve(lambda _request: (500, {}, {}))
    channel = opened(store, tmp_path, service.url)

    for _ in range(2):
        with pytest.raises(TransientError, match="answered 500"):
            channel.send(a_message())

    assert [request.headers["webhook-id"] for request in service.received] == ["alert_01-trigger"] * 2


def test_webhook__never_answers__is_given_up_in_time(store: SqliteStore, tmp_path: Path, serve: Serve) -> None:
    service = serve(lambda _request: None)

    with pytest.raises(TransientError, match="no answer in time"):
        opened(store, tmp_path, service.url).send(a_message())


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "10.1.2.3", "::1", "fd00:ec2::254"])
def test_webhook__name_leads_inside__is_not_reached(store: SqliteStore, tmp_path: Path, address: str) -> None:
    around = {"destinations": Destinations(), "resolve": lambda _host, _port: [address]}

    with pytest.raises(NonRetryable, match="not a public address"):
        opened(store, tmp_path, "https://hooks.example/x", around=around).send(a_message())


def test_webhook__without_tls__is_refused_unless_allowed(store: SqliteStore, tmp_path: Path) -> None:
    channel = opened(store, tmp_path, "http://hooks.example/x", around={"destinations": Destinations()})

    with pytest.raises(NonRetryable, match="use https"):
        channel.send(a_message())


def test_webhook__secret_is_not_base_64__is_refused_without_being_repeated(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="not base64") as raised:
        signing_key(Secret("whsec_!!!!"))
    assert "!!!!" not in str(raised.value)
    (tmp_path / "short").write_text("short")
    spec = {"kind": "webhook", "url": "https://a.example", "secret": f"file:{tmp_path / 'short'}"}
    around = ChannelDependencies(store=store, clock=SystemClock(), ids=IdMaker(SystemClock()), home=tmp_path)
    with pytest.raises(SettingsError, match="its content is malformed"):
        open_channels(parse_config({"channels": {"hook": spec}}), around)
