"""Wiring opens what the settings name, loads no backend that they do not, and says what is missing."""

from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from headgate.bootstrap.store import AppService, open_cache, open_store, ping_redis
from headgate.clock import SystemClock, VirtualClock
from headgate.durable.bus.bus import DeadLetter
from headgate.durable.bus.events import Event
from headgate.durable.model.retry import Retry
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.slots import Spec
from headgate.durable.sdk.app import App
from headgate.errors import SettingsError, TransientError
from headgate.settings import ArchiveSettings, CacheSettings, ForwardSettings, Secret, Settings, StoreSettings
from headgate.store.cache.keys import dataset_config
from headgate.store.cache.read_through import Cache, Cached, CacheLayer, Loaded
from headgate.store.catalogue.tables import HEALTH_CHECK
from headgate.store.model.schema import Key
from tests.redis_server import RedisServer

DYNAMODB = StoreSettings(
    backend="dynamodb", aws_region="eu-west-1", aws_endpoint_url="http://127.0.0.1:9", blob_bucket="blobs"
)


def _loaded(tmp_path: Path, program: str) -> list[str]:
    """Run `program` after the usual imports, and return which of the heavy modules are then loaded."""
    source = f"""
import json, sys
from pathlib import Path
from headgate.clock import SystemClock
from headgate.settings import Settings, StoreSettings
from headgate.bootstrap.store import open_store
home = Path({str(tmp_path / "home")!r})
{program}
heavy = ("boto3", "botocore", "sqlite3", "redis", "litestar", "grpc", "opentelemetry")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    names: list[str] = json.loads(found.stdout)
    return names


class Failures(list[BaseException]):
    """Receives the failed attempts of a store."""

    def on_attempt_failed(self, error: BaseException) -> None:
        self.append(error)


def test_open_store__dynamodb_does_not_answer__every_attempt_reaches_the_observer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    failures = Failures()
    store = msgspec.structs.replace(DYNAMODB, deadline_seconds=0.3)
    opened = open_store(Settings(home=tmp_path, store=store), SystemClock(), observer=failures)

    with closing(opened.store), pytest.raises(TransientError):
        opened.store.get(HEALTH_CHECK, Key("x"), consistent=True)

    assert len(failures) > 1
    assert {type(each).__name__ for each in failures} == {"EndpointConnectionError"}


def test_open_store__sqlite__a_written_item_is_there_after_reopening(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "a" / "home")
    key = HEALTH_CHECK.entities[0].key()

    first = open_store(settings, SystemClock())
    first.store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "nonce": "x"})
    first.store.close()
    second = open_store(settings, SystemClock())
    item = second.store.get(HEALTH_CHECK, key)
    second.store.close()

    assert item is not None
    assert item["nonce"] == "x"
    assert (settings.home / "headgate.db").is_file()
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700
    assert stat.S_IMODE((settings.home / "keys.json").stat().st_mode) == 0o600


def test_open_store__large_attribute__spills_into_the_blobs_of_the_home(tmp_path: Path) -> None:
    opened = open_store(Settings(home=tmp_path), SystemClock())
    key = HEALTH_CHECK.entities[0].key()

    opened.store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "payload": "x" * 500_000})
    item = opened.store.get(HEALTH_CHECK, key)
    opened.store.close()

    assert item is not None
    assert len(item["payload"]) == 500_000
    assert list((tmp_path / "blobs").rglob("*"))


def test_open_store__sqlite__never_loads_boto3(tmp_path: Path) -> None:
    assert _loaded(tmp_path, "open_store(Settings(home=home), SystemClock()).store.close()") == ["sqlite3"]


def test_open_store__dynamodb__never_loads_sqlite(tmp_path: Path) -> None:
    program = """
store = StoreSettings(
    backend="dynamodb", aws_region="eu-west-1", aws_endpoint_url="http://127.0.0.1:9", blob_bucket="blobs"
)
import os
os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")
open_store(Settings(home=home, store=store), SystemClock()).store.close()
"""
    assert _loaded(tmp_path, program) == ["boto3", "botocore"]


@pytest.mark.parametrize(
    ("module", "extra", "settings"),
    [
        ("boto3", "aws", Settings(store=DYNAMODB)),
        ("boto3", "aws", Settings(store=StoreSettings(aws_region="eu-west-1", blob_bucket="blobs"))),
        ("redis", "redis", Settings(cache=CacheSettings(redis_url=Secret("redis://127.0.0.1:9/0")))),
    ],
)
def test_open__extra_not_installed__gives_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str, settings: Settings
) -> None:
    monkeypatch.chdir(tmp_path)
    backends = ("headgate.store.dynamodb", "headgate.store.blobs.s3", "headgate.store.cache.redis")
    for name in [name for name in sys.modules if name.startswith((f"{module}.", *backends))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(SettingsError) as caught:
        open_cache(settings, SystemClock()) if module == "redis" else open_store(settings, SystemClock())

    assert f"pip install 'headgate[{extra}]'" in caught.value.message


def test_open_store__home_below_a_file__says_that_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(SettingsError, match="--home"):
        open_store(Settings(home=tmp_path / "file" / "home"), SystemClock())


def test_ping_redis__it_answers__returns(tmp_path: Path) -> None:
    with RedisServer.start(tmp_path) as server:
        ping_redis(Secret(server.url))


def test_ping_redis__no_one_there__is_transient_and_hides_the_password() -> None:
    with pytest.raises(TransientError) as caught:
        ping_redis(Secret("redis://:hunter2@127.0.0.1:9/0"))

    assert "hunter2" not in caught.value.message


def test_ping_redis__not_a_url__hides_the_password() -> None:
    with pytest.raises(SettingsError) as caught:
        ping_redis(Secret("redis://:hunter2@host:port/0"))

    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"table_prefix": "prod-"}, {"table_prefix": "staging-"}),
        ({"table_prefix": ""}, {"table_prefix": "staging-"}),
        ({"namespace": "prod:"}, {"namespace": "staging:"}),
    ],
)
def test_open_cache__two_installations_on_one_redis__do_not_see_each_other(
    tmp_path: Path, first: dict[str, str], second: dict[str, str]
) -> None:
    variables = {"table_prefix": "HEADGATE_STORE_TABLE_PREFIX", "namespace": "HEADGATE_CACHE_NAMESPACE"}

    def read(cache: Cache, urn: str, owner: str) -> Cached[dict[str, str]]:
        return cache.get(dataset_config(urn), lambda: Loaded({"owner": owner}, 7), dict)

    def opened(url: str, given: dict[str, str]) -> Cache:
        environ = {variables[name]: value for name, value in given.items()}
        environ |= {"HEADGATE_CACHE_REDIS_URL": url, "HEADGATE_CACHE_ENTRIES_MAX": "0"}
        cache = open_cache(Settings.load(environ, None, {}), SystemClock())
        deadline = time.monotonic() + 10
        # Redis is not used before its invalidations are received.
        while read(cache, "urn:dp:warm-up", "anyone").layer is not CacheLayer.L2:
            assert time.monotonic() < deadline, "Redis has not answered within 10 s"
            time.sleep(0.01)
        return cache

    with (
        RedisServer.start(tmp_path) as server,
        closing(opened(server.url, first)) as one,
        closing(opened(server.url, second)) as other,
    ):
        read(one, "urn:dp:orders", "one")

        assert read(one, "urn:dp:orders", "one again").value == {"owner": "one"}
        assert read(other, "urn:dp:orders", "other").value == {"owner": "other"}


def test_redis_url__unknown_option__is_refused_without_the_password() -> None:
    url = Secret("redis://:hunter2@127.0.0.1:9/0?colour=red")

    for use in (
        lambda: ping_redis(url),
        lambda: open_cache(Settings(cache=CacheSettings(redis_url=url)), SystemClock()),
    ):
        with pytest.raises(SettingsError, match="unknown option") as caught:
            use()
        assert "hunter2" not in caught.value.message


# The service.


class Inbox(ThreadingHTTPServer):
    """A service on this machine that takes events, and notes with which headers they came."""

    daemon_threads = True

    def __init__(self) -> None:
        self.received: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            server: Inbox

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.server.received.append(dict(self.headers.items()))
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def receiver(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    started = Inbox()
    yield started
    started.shutdown()
    started.server_close()


def _forwarding_app(inbox: Inbox) -> App:
    app = App("shop")
    app.forward("order.*", to=f"http://{inbox.receiver}/in", name="onwards", retry=Retry(attempts=1))
    return app


def _forwarded(settings: Settings, app: App) -> DeadLetter | None:
    """Emit an event, have it sent on, and return the dead letter if it could not be."""
    opened = open_store(settings, SystemClock())
    with closing(opened.store):
        service = AppService(app, opened, SystemClock())
        worker = service.worker()
        worker.join()
        service.bus.emit(Event(type="order.created"))
        worker.poll()
        worker.perform(worker.queue.popleft())
        letters = service.bus.dead_letters().letters
    return letters[0] if letters else None


@pytest.mark.parametrize(
    "allowed",
    [
        ForwardSettings(plain_http=True, private_hosts=("127.0.0.1",)),
        ForwardSettings(plain_http=True, private_networks=("127.0.0.0/8",)),
    ],
)
def test_app_service__receivers_that_the_settings_allow__are_sent_events_with_their_headers(
    tmp_path: Path, inbox: Inbox, allowed: ForwardSettings
) -> None:
    (tmp_path / "secret").write_text("Authorization: Bearer s3cret\n")
    forward = msgspec.structs.replace(allowed, headers={inbox.receiver: str(tmp_path / "secret")})

    assert _forwarded(Settings(home=tmp_path / "home", forward=forward), _forwarding_app(inbox)) is None

    assert [headers["authorization"] for headers in inbox.received] == ["Bearer s3cret"]
    # Not in a row, a page of the file that was freed, or a blob.
    stored = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert len(stored) > 1
    assert [path for path in stored if b"s3cret" in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (ForwardSettings(), "forward.plain_http"),
        (ForwardSettings(plain_http=True), "forward.private_hosts"),
        (ForwardSettings(plain_http=True, private_networks=("10.0.0.0/8",)), "forward.private_networks"),
    ],
)
def test_app_service__receivers_that_the_settings_do_not_allow__are_not_reached(
    tmp_path: Path, inbox: Inbox, forward: ForwardSettings, message: str
) -> None:
    letter = _forwarded(Settings(home=tmp_path / "home", forward=forward), _forwarding_app(inbox))

    assert letter is not None
    assert message in letter.error.message
    assert inbox.received == []


def test_app_service__time_for_a_receiver__is_that_of_the_settings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        app = App("shop")
        app.forward("order.*", to=f"http://{address}/", name="onwards", retry=Retry(attempts=1))
        forward = ForwardSettings(plain_http=True, private_hosts=("127.0.0.1",), timeout_seconds=1.0)
        began = time.monotonic()

        letter = _forwarded(Settings(home=tmp_path / "home", forward=forward), app)

    assert letter is not None
    assert "no answer in time" in letter.error.message
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (ForwardSettings(headers={"shop.example": "nowhere"}), "No such file"),
        (ForwardSettings(headers={"https://shop.example": "nowhere"}), "not a receiver"),
        (ForwardSettings(private_networks=("10.0.0.0/99",)), "10.0.0.0/99"),
    ],
)
def test_app_service__settings_for_receivers_that_cannot_be_used__are_refused_before_work_begins(
    tmp_path: Path, inbox: Inbox, forward: ForwardSettings, message: str
) -> None:
    opened = open_store(Settings(home=tmp_path / "home", forward=forward), SystemClock())
    with closing(opened.store):
        # An app that forwards nothing needs none of them.
        AppService(App("quiet"), opened, SystemClock()).worker()
        service = AppService(_forwarding_app(inbox), opened, SystemClock())

        with pytest.raises(SettingsError, match=re.escape(message)):
            service.worker()


@pytest.mark.parametrize(("days", "kept_seconds"), [(365, 365 * 86_400), (30, 30 * 86_400), (0, None)])
def test_app_service__archives__are_kept_as_the_settings_say(
    tmp_path: Path, days: int, kept_seconds: float | None
) -> None:
    opened = open_store(Settings(home=tmp_path, archive=ArchiveSettings(days=days)), SystemClock())
    with closing(opened.store):
        assert AppService(App("shop"), opened, SystemClock()).archive.kept_seconds == kept_seconds


def test_app_service__a_schedule_of_another_apps_workflow__starts_it_with_that_apps_limits(tmp_path: Path) -> None:
    clock = VirtualClock()
    opened = open_store(Settings(home=tmp_path), clock)
    reports = App("reports")

    @reports.workflow(timeout="1h", retention="2h")
    async def report() -> None:
        return

    with closing(opened.store):
        shop = AppService(App("shop"), opened, clock)
        shop.schedules.create("nightly", Spec(workflow="report", recurrence=Recurrence("@hourly")))
        AppService(reports, opened, clock).worker()
        worker = shop.worker()
        worker.join()
        clock.advance(3600)
        worker.poll()
        (found,) = shop.client.list(workflow="report").executions

    assert found.timeout_at_ms == int(clock.seconds() * 1000) + 3_600_000
    assert found.retention_seconds == 7200.0
