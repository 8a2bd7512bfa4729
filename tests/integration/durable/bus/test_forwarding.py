"""Events sent to another service, over real connections to a real server on this machine."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import headgate as hg
from headgate.clock import Clock, SystemClock, VirtualClock
from headgate.durable.bus import events
from headgate.durable.bus.egress_policy import Destinations, is_public
from headgate.durable.bus.events import Event, Mode
from headgate.durable.bus.forwarding import Forwarder
from headgate.durable.bus.subscriptions import RETRY_DEFAULT, Registry
from headgate.durable.model.failures import NonRetryable, describe
from headgate.durable.service import Service
from headgate.errors import DefinitionError, SettingsError, ThrottledError, TransientError
from headgate.settings import Secret
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring

EVENT = Event(type="order.created", source="/shop", id="A-1", subject="é", data={"id": 17}, extensions={"tenant": "7"})
LOOPBACK = Destinations(networks=("127.0.0.0/8", "::1/128"), plain_http=True)
METADATA = "169.254.169.254"


class Handler(BaseHTTPRequestHandler):
    """Takes events; the path says how to answer."""

    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, dict(self.headers.items()), body))
        _, kind, argument, *_ = f"{self.path.partition('?')[0]}//".split("/")
        match kind:
            case "status":
                self._answer(int(argument), b"because of the moon")
            case "redirect":
                self.send_response(302)
                self.send_header("location", f"http://{METADATA}/latest/meta-data")
                self.end_headers()
            case "echo":
                self._answer(400, str(self.headers).encode())
            case "hang":
                self.server.released.wait(10)
            case "drip":
                self._drip()
            case "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
            case "flood":
                self._flood()
            case "unended":
                self.send_response(500)
                self.end_headers()
                self.wfile.write(b"half of it")
                self.server.released.wait(10)
            case _:
                self._answer(202, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        """Begin an answer and never end it, a byte at a time."""
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
            while not self.server.released.wait(0.05):
                self.wfile.write(b"z")
        except OSError:
            self.server.cut_off.set()

    def _flood(self) -> None:
        """Refuse with an answer that does not end."""
        self.send_response(400)
        self.end_headers()
        try:
            while not self.server.released.is_set():
                self.wfile.write(b"n" * 65_536)
        except OSError:
            self.server.cut_off.set()

    def log_message(self, *_: Any) -> None:
        return


class Receiver(ThreadingHTTPServer):
    """A service that events are sent to."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.released = threading.Event()
        self.cut_off = threading.Event()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of these tests."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.stop()


class Resolver:
    """Names with the answers they have, one after the other; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.asked: list[tuple[str, int]] = []
        self._answers = list(answers)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def forwarder(resolve: Resolver | None = None, clock: Clock | None = None, **options: Any) -> Forwarder:
    options.setdefault("destinations", LOOPBACK)
    return Forwarder(clock or SystemClock(), resolve=resolve or Resolver(["127.0.0.1"]), **options)


def raised(call: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is what the tests look at
        call()
    return caught.value


# What arrives.


@pytest.mark.parametrize("mode", Mode)
def test_send__an_event__arrives_as_the_same_cloud_event(receiver: Receiver, mode: Mode) -> None:
    forwarder(mode=mode).send(f"http://127.0.0.1:{receiver.port}/in?key=1", EVENT, message_id="m1")

    ((path, headers, body),) = receiver.received
    assert path == "/in?key=1"
    assert [event.decoded().data for event in events.from_http(headers, body)] == [{"id": 17}]
    assert [event.extensions for event in events.from_http(headers, body)] == [{"tenant": "7"}]
    assert ("ce-id" in headers) is (mode is Mode.BINARY)


def test_send__mode_of_a_subscription__comes_before_the_default(receiver: Receiver) -> None:
    sender = forwarder(mode=Mode.STRUCTURED)

    for mode in (None, Mode.BINARY, Mode.STRUCTURED):
        sender.send(f"http://127.0.0.1:{receiver.port}/in", EVENT, message_id="m1", mode=mode)

    assert ["ce-id" in headers for _, headers, _ in receiver.received] == [False, True, False]


@pytest.mark.parametrize("mode", [None, "binary", "structured"])
def test_forward__of_an_app__is_in_the_mode_that_it_says(receiver: Receiver, mode: str | None, tmp_path: Path) -> None:
    app = hg.App("shop")
    how: dict[str, Any] = {} if mode is None else {"mode": mode}
    app.forward("order.*", to=f"http://127.0.0.1:{receiver.port}/in", name="onwards", **how)
    with hg.testing.Environment(app) as env:
        keyring = Keyring.generate(env.clock)
        blobs = FolderBlobs(tmp_path)
        service = Service(app, env.service.store, env.clock, keyring, blobs, open_forwarder=forwarder)
        worker = service.worker()
        worker.join()
        app.emit("order.created", {"id": 17})
        worker.poll()
        worker.perform(worker.queue.popleft())
        # As another process would read it.
        (stored,) = Registry(env.service.store, env.clock).all()

    ((_, headers, body),) = receiver.received
    assert ("ce-id" in headers) is (mode == "binary")
    assert [event.decoded().data for event in events.from_http(headers, body)] == [{"id": 17}]
    assert stored.subscription.mode == (mode or "structured")


def test_forward__in_a_mode_that_there_is_not__is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"onwards: mode 'xml'.*binary.*structured"):
        hg.App("shop").forward("order.*", to="https://shop.example/in", name="onwards", mode="xml")


def test_send__to_a_name__goes_to_the_address_that_was_looked_up_once_and_keeps_the_name(receiver: Receiver) -> None:
    # The second answer is what a name whose owner means harm has by the time of a second lookup.
    resolver = Resolver(["127.0.0.1"], [METADATA])

    forwarder(resolver).send(f"http://shop.invalid:{receiver.port}/in", EVENT, message_id="m1")

    assert resolver.asked == [("shop.invalid", receiver.port)]
    ((_, headers, _),) = receiver.received
    assert headers["host"] == f"shop.invalid:{receiver.port}"


def test_send__with_a_secret__is_signed_as_standard_webhooks_are(receiver: Receiver) -> None:
    asked: list[str] = []

    def secret_for(url: str) -> bytes:
        asked.append(url)
        return b"s3cret"

    url = f"http://127.0.0.1:{receiver.port}/in"
    clock = VirtualClock(1_750_000_000.7)
    forwarder(clock=clock, secret_for=secret_for).send(url, EVENT, message_id="orders#evt_1")

    ((_, headers, body),) = receiver.received
    signed = hmac.new(b"s3cret", b"orders#evt_1.1750000000." + body, hashlib.sha256).digest()
    assert headers["webhook-id"] == "orders#evt_1"
    assert headers["webhook-timestamp"] == "1750000000"
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    assert asked == [url]
    assert json.loads(body)["type"] == "order.created"


def test_send__without_a_secret_for_the_receiver__is_not_signed(receiver: Receiver) -> None:
    forwarder(secret_for=lambda _: None).send(f"http://127.0.0.1:{receiver.port}/", EVENT, message_id="m1")

    assert not [name for name in receiver.received[0][1] if name.startswith("webhook-")]


def test_send__a_proxy_in_the_environment__is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    forwarder().send(f"http://127.0.0.1:{receiver.port}/", EVENT, message_id="m1")

    assert len(receiver.received) == 1


# Secret headers.


def test_send__headers_for_the_receiver__arrive_with_the_event(receiver: Receiver) -> None:
    asked: list[str] = []

    def headers_for(receiver_named: str) -> dict[str, Secret]:
        asked.append(receiver_named)
        return {"authorization": Secret("Bearer s3cret")}

    sender = forwarder(headers_for=headers_for)
    sender.send(f"http://Shop.invalid:{receiver.port}/in?key=1", EVENT, message_id="m1")

    ((_, headers, body),) = receiver.received
    assert headers["authorization"] == "Bearer s3cret"
    assert asked == [f"shop.invalid:{receiver.port}"]
    assert [event.decoded().data for event in events.from_http(headers, body)] == [{"id": 17}]


@pytest.mark.parametrize("kind", ["echo", "status/500", "cut", "redirect"])
def test_send__a_receiver_that_reports_what_it_was_sent__is_not_quoted(receiver: Receiver, kind: str) -> None:
    sender = forwarder(headers_for=lambda _: {"authorization": Secret("Bearer s3cret")})

    error = raised(lambda: sender.send(f"http://127.0.0.1:{receiver.port}/{kind}", EVENT, message_id="m1"))

    info = describe(error)
    assert len(receiver.received) == 1
    assert "s3cret" not in f"{error!r} {info}"
    assert "because of the moon" not in str(error)
    if kind == "echo":
        assert "answered 400" in str(error)


def test_send__headers_that_cannot_be_had__can_be_tried_again(receiver: Receiver) -> None:
    def headers_for(_: str) -> dict[str, Secret]:
        raise TransientError("its file is just being replaced")

    error = raised(
        lambda: forwarder(headers_for=headers_for).send(f"http://127.0.0.1:{receiver.port}/", EVENT, message_id="")
    )

    assert type(error) is TransientError
    assert receiver.received == []


# What it answers.


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_send__a_receiver_that_takes_it__is_done(receiver: Receiver, status: int) -> None:
    forwarder().send(f"http://127.0.0.1:{receiver.port}/status/{status}", EVENT, message_id="m1")

    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, NonRetryable),
        (401, NonRetryable),
        (404, NonRetryable),
        (410, NonRetryable),
        (422, NonRetryable),
        (301, NonRetryable),
        (408, TransientError),
        (425, TransientError),
        (429, ThrottledError),
        (500, TransientError),
        (502, TransientError),
        (503, TransientError),
    ],
)
def test_send__a_receiver_that_does_not__is_tried_again_only_where_that_can_help(
    receiver: Receiver, status: int, kind: type[Exception]
) -> None:
    url = f"http://127.0.0.1:{receiver.port}/status/{status}?token=hidden"

    error = raised(lambda: forwarder().send(url, EVENT, message_id="m1"))

    assert type(error) is kind
    assert f"answered {status}" in str(error)
    assert "hidden" not in str(error)
    assert ("because of the moon" in str(error)) is (status != 301)
    assert RETRY_DEFAULT.again(1, describe(error)) is (kind is not NonRetryable)


def test_send__a_redirect_into_the_network_behind_us__is_not_followed(receiver: Receiver) -> None:
    resolver = Resolver(["127.0.0.1"])

    error = raised(
        lambda: forwarder(resolver).send(f"http://shop.invalid:{receiver.port}/redirect", EVENT, message_id="")
    )

    assert isinstance(error, NonRetryable)
    assert "redirects are not followed" in str(error)
    assert resolver.asked == [("shop.invalid", receiver.port)]
    assert len(receiver.received) == 1


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_send__a_receiver_that_never_ends_its_answer__is_given_up_in_time(receiver: Receiver, kind: str) -> None:
    began = time.monotonic()

    error = raised(
        lambda: forwarder(timeout_seconds=0.4).send(f"http://127.0.0.1:{receiver.port}/{kind}", EVENT, message_id="")
    )

    assert type(error) is TransientError
    assert "no answer in time" in str(error)
    assert 0.3 < time.monotonic() - began < 5


def test_send__a_refusal_that_does_not_end__is_read_as_far_as_it_is_reported(receiver: Receiver) -> None:
    error = raised(lambda: forwarder().send(f"http://127.0.0.1:{receiver.port}/flood", EVENT, message_id=""))

    assert isinstance(error, NonRetryable)
    assert len(str(error)) < 1_000
    assert receiver.cut_off.wait(5)


def test_send__a_failure_that_does_not_end__is_reported_without_waiting_for_all_of_it(receiver: Receiver) -> None:
    began = time.monotonic()

    error = raised(lambda: forwarder().send(f"http://127.0.0.1:{receiver.port}/unended", EVENT, message_id=""))

    assert type(error) is TransientError
    assert "answered 500: half of it" in str(error)
    assert time.monotonic() - began < 5


def test_send__a_connection_that_breaks__can_be_tried_again(receiver: Receiver) -> None:
    error = raised(lambda: forwarder().send(f"http://127.0.0.1:{receiver.port}/cut", EVENT, message_id=""))

    assert type(error) is TransientError


def test_send__no_one_at_the_first_address__tries_the_next(receiver: Receiver) -> None:
    # Nothing listens on the second loopback address.
    forwarder(Resolver(["127.0.0.2", "127.0.0.1"])).send(f"http://shop.invalid:{receiver.port}/", EVENT, message_id="")

    assert len(receiver.received) == 1


def test_send__no_one_at_all__can_be_tried_again() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        error = raised(lambda: forwarder().send(f"http://127.0.0.1:{port}/", EVENT, message_id=""))

    assert type(error) is TransientError


# Where it may go.


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"], ["10.1.2.3"], ["172.16.0.1"], ["192.168.1.1"], [METADATA], ["100.100.100.200"], ["0.0.0.0"],
        ["168.63.129.16"], ["224.0.0.1"], ["255.255.255.255"], ["::1"], ["::"], ["fe80::1%eth0"], ["fd00:ec2::254"],
        ["fec0::1"], ["ff0e::1"], ["::ffff:127.0.0.1"], ["::ffff:169.254.169.254"], ["64:ff9b::a9fe:a9fe"],
        ["2002:7f00:1::1"], ["::127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["2606:4700:4700::1111", "fe80::1"],
    ],
    ids=str,
)  # fmt: skip
def test_send__a_name_with_an_address_that_is_not_public__is_refused_before_anything_is_sent(
    receiver: Receiver, answer: list[str]
) -> None:
    sender = forwarder(Resolver(answer), destinations=Destinations(plain_http=True))

    error = raised(lambda: sender.send(f"http://shop.invalid:{receiver.port}/", EVENT, message_id=""))

    assert isinstance(error, NonRetryable)
    assert "is not a public address" in str(error)
    assert receiver.received == []


def test_send__a_name_that_turns_to_a_private_address__is_refused_from_then_on(receiver: Receiver) -> None:
    sender = forwarder(Resolver(["127.0.0.1"], [METADATA]))
    sender.send(f"http://shop.invalid:{receiver.port}/", EVENT, message_id="")

    error = raised(lambda: sender.send(f"http://shop.invalid:{receiver.port}/", EVENT, message_id=""))

    assert isinstance(error, NonRetryable)
    assert METADATA in str(error)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:7f00:1]", "localhost"]
)
def test_send__this_machine_however_it_is_written__is_refused_by_what_it_resolves_to(
    receiver: Receiver, host: str
) -> None:
    sender = Forwarder(SystemClock(), destinations=Destinations(plain_http=True))

    error = raised(lambda: sender.send(f"http://{host}:{receiver.port}/", EVENT, message_id=""))

    assert isinstance(error, NonRetryable | TransientError)
    assert receiver.received == []
    assert "is not a public address" in str(error) or "it has no address" in str(error)


@pytest.mark.parametrize(
    "allowed",
    [
        Destinations(hosts=("shop.invalid",), plain_http=True),
        Destinations(hosts=("SHOP.invalid.",), plain_http=True),
        Destinations(networks=("127.0.0.0/8",), plain_http=True),
    ],
)
def test_send__a_private_address_that_is_allowed_by_name_or_network__is_reached(
    receiver: Receiver, allowed: Destinations
) -> None:
    forwarder(destinations=allowed).send(f"http://shop.invalid:{receiver.port}/", EVENT, message_id="")

    assert len(receiver.received) == 1


def test_send__a_host_like_the_one_that_is_allowed__is_not_it(receiver: Receiver) -> None:
    sender = forwarder(destinations=Destinations(hosts=("shop.invalid",), plain_http=True))

    assert isinstance(
        raised(lambda: sender.send(f"http://evil.shop.invalid:{receiver.port}/", EVENT, message_id="")), NonRetryable
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://shop.example/", "use https, or set forward.plain_http"),
        ("ftp://shop.example/", "use https"),
        ("file:///etc/passwd", "use https"),
        ("shop.example", "use https"),
        ("https://", "an address has a host"),
        ("https://user:pass@shop.example/", "neither user nor password"),
        ("https://shop.example:99999/", "is not an address"),
    ],
)
def test_send__what_is_not_an_address_to_send_to__is_refused(url: str, said: str) -> None:
    error = raised(lambda: forwarder(destinations=Destinations()).send(url, EVENT, message_id=""))

    assert isinstance(error, NonRetryable)
    assert said in str(error)
    assert "pass@" not in str(error)


def test_send__a_name_without_an_address__can_be_tried_again() -> None:
    def nobody(_: str, __: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    sender = Forwarder(SystemClock(), destinations=LOOPBACK, resolve=nobody)

    assert type(raised(lambda: sender.send("http://shop.invalid/", EVENT, message_id=""))) is TransientError
    assert type(raised(lambda: forwarder(Resolver([])).send("http://shop.invalid/", EVENT, message_id=""))) is (
        TransientError
    )


@pytest.mark.parametrize("address", [METADATA, "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "::ffff:a9fe:a9fe"])
def test_send__a_host_that_is_allowed_and_turns_to_the_clouds_own_services__is_refused(
    receiver: Receiver, address: str
) -> None:
    sender = forwarder(Resolver([address]), destinations=Destinations(hosts=("shop.invalid",), plain_http=True))

    error = raised(lambda: sender.send(f"http://shop.invalid:{receiver.port}/", EVENT, message_id=""))

    assert isinstance(error, NonRetryable)
    assert "forward.private_networks" in str(error)


def test_addresses__the_clouds_own_services_allowed_as_a_network__are_reached() -> None:
    allowed = Destinations(networks=("169.254.0.0/16",))

    assert allowed.addresses("shop.invalid", 80, Resolver([METADATA])) == [METADATA]


def test_destinations__a_network_that_is_none__is_refused_when_it_is_set() -> None:
    with pytest.raises(SettingsError, match=r"10\.0\.0\.0/99"):
        Destinations(networks=("10.0.0.0/99",))


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_is_public__addresses_of_the_internet__are(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


# TLS.


def certificate(folder: Path, name: str) -> Path:
    """Make a certificate for `name` that vouches for itself; return the file that has it and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / f"{name}.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return certificate(tmp_path, "shop.invalid")


@pytest.fixture
def server_names() -> list[str | None]:
    return []


@pytest.fixture
def tls_receiver(pem: Path, server_names: list[str | None]) -> Iterator[Receiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.sni_callback = lambda _, name, __: server_names.append(name)
    started = Receiver(context)
    yield started
    started.stop()


def test_send__over_tls__asks_for_and_checks_the_name_though_it_connects_to_an_address(
    tls_receiver: Receiver, pem: Path, server_names: list[str | None]
) -> None:
    sender = forwarder(destinations=Destinations(networks=("127.0.0.0/8",)), tls=ssl.create_default_context(cafile=pem))
    sender.send(f"https://shop.invalid:{tls_receiver.port}/in", EVENT, message_id="m1")
    assert server_names == ["shop.invalid"]
    assert len(tls_receiver.received) == 1

    error = raised(lambda: sender.send(f"https://other.invalid:{tls_receiver.port}/in", EVENT, message_id="m1"))

    assert type(error) is TransientError
    assert "certificate" in str(error).lower()
    assert len(tls_receiver.received) == 1


def test_send__to_a_certificate_that_no_one_vouches_for__is_not_done(tls_receiver: Receiver) -> None:
    error = raised(lambda: forwarder().send(f"https://shop.invalid:{tls_receiver.port}/in", EVENT, message_id="m1"))

    assert type(error) is TransientError
    assert tls_receiver.received == []
