"""The e-mail channel against a small SMTP server: STARTTLS, login, refusals, and a server that never answers."""

from __future__ import annotations

import base64
import email
import email.policy
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headgate.clock import SystemClock
from headgate.durable.model.failures import NonRetryable
from headgate.errors import TransientError
from headgate.notify.channels.factory import open_channels
from headgate.notify.configuration import parse_config
from headgate.notify.messages import Channel
from tests.stores import open_sqlite
from tests.unit.notify.rig import a_message, surroundings

PASSWORD = "correct horse battery"


class SmtpServer(socketserver.ThreadingTCPServer):
    """Speaks enough of SMTP to take a message, as a submission server does."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.tls = tls
        self.greets = True
        self.replies: dict[str, bytes] = {}
        self.mails: list[EmailMessage] = []
        self.commands: list[str] = []
        self.released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of these tests."""


class _Session(socketserver.StreamRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        if not self.server.greets:
            self.server.released.wait(10)
            return
        self.is_secure = False
        self._say(b"220 mail.test ESMTP")
        while line := self.rfile.readline():
            words = line.decode().strip()
            verb = words.split(" ", 1)[0].upper()
            self.server.commands.append(("tls " if self.is_secure else "") + words)
            if verb in self.server.replies:
                self._say(self.server.replies[verb])
            elif verb == "STARTTLS" and self.server.tls is not None:
                self._say(b"220 go ahead")
                self._secure(self.server.tls)
            elif verb == "DATA":
                self._take()
            elif verb == "QUIT":
                self._say(b"221 bye")
                return
            else:
                self._say(self._answer(verb, words))

    def _answer(self, verb: str, words: str) -> bytes:
        if verb == "EHLO":
            offers = [b"250-mail.test", b"250-8BITMIME"]
            offers += [b"250-STARTTLS"] if self.server.tls is not None and not self.is_secure else []
            offers += [b"250-AUTH PLAIN"] if self.is_secure else []
            return b"\r\n".join([*offers, b"250 SIZE 1000000"])
        if verb == "AUTH":
            given = base64.b64decode(words.split(" ")[2]).split(b"\0")
            return b"235 ok" if given[1:] == [b"alerts", PASSWORD.encode()] else b"535 5.7.8 bad credentials"
        return b"250 ok"

    def _take(self) -> None:
        self._say(b"354 go on")
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b"..") else line)
        parsed = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        self.server.mails.append(parsed)
        self._say(b"250 taken")

    def _secure(self, tls: ssl.SSLContext) -> None:
        self.connection = tls.wrap_socket(self.connection, server_side=True)
        self.rfile.close()
        self.rfile = self.connection.makefile("rb")
        self.is_secure = True

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _say(self, text: bytes) -> None:
        self.connection.sendall(text + b"\r\n")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and key for `localhost`, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


@pytest.fixture
def server(certificate: Path) -> Iterator[SmtpServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    started = SmtpServer(tls)
    yield started
    started.stop()


Open = Callable[..., Channel]


@pytest.fixture
def opening(tmp_path: Path, certificate: Path) -> Iterator[Open]:
    store = open_sqlite(tmp_path)
    (tmp_path / "password").write_text(PASSWORD)

    def open_with(server: SmtpServer, *, trusts: bool = True, **changes: Any) -> Channel:
        spec = {
            "kind": "email",
            "host": "localhost",
            "port": server.server_address[1],
            "sender": "alerts@headgate.example",
            "recipients": ["a@team.example", "b@team.example"],
            "username": "alerts",
            "password": f"file:{tmp_path / 'password'}",
            "timeout_seconds": 1,
            **changes,
        }
        tls = ssl.create_default_context(cafile=str(certificate)) if trusts else ssl.create_default_context()
        around = surroundings(store, SystemClock(), tmp_path, tls=tls)
        return open_channels(parse_config({"channels": {"mail": spec}}), around)["mail"]

    yield open_with
    store.close()


def test_email__taken__is_one_message_over_tls_with_a_thread_of_its_trouble(opening: Open, server: SmtpServer) -> None:
    channel = opening(server)

    message_id = channel.send(a_message(title="größer: the job failed\r\nBcc: everyone@example.com"))
    channel.send(a_message(message_id="alert_02-trigger"))

    first, second = server.mails
    assert message_id == first["Message-ID"] == "<alert_01-trigger@headgate.example>"
    assert first["To"] == "a@team.example, b@team.example"
    assert first["Subject"] == "[CRITICAL] größer: the job failed Bcc: everyone@example.com"
    assert first["Bcc"] is None
    assert first["References"] == second["References"] == second["In-Reply-To"]
    assert first["Auto-Submitted"] == "auto-generated"
    body = first.get_content()
    assert "JOB_FAILED: orders | daily | 2026-03-03" in body
    assert "error: exit 1" in body
    assert "What to do: look at the log" in body
    in_clear = [command for command in server.commands if not command.startswith("tls ")]
    assert {command.split(" ")[0].lower() for command in in_clear} == {"ehlo", "starttls"}


def test_email__server_offers_no_tls__nothing_is_sent(opening: Open, certificate: Path) -> None:
    plain = SmtpServer(None)
    try:
        with pytest.raises(NonRetryable, match="does not offer it"):
            opening(plain).send(a_message())
        assert plain.mails == []
        assert not any("AUTH" in command for command in plain.commands)
    finally:
        plain.stop()


def test_email__certificate_is_not_trusted__nothing_is_sent(opening: Open, server: SmtpServer) -> None:
    with pytest.raises(TransientError, match="CERTIFICATE_VERIFY_FAILED"):
        opening(server, trusts=False).send(a_message())
    assert server.mails == []


def test_email__wrong_password__is_refused_without_repeating_it(
    opening: Open, server: SmtpServer, tmp_path: Path
) -> None:
    channel = opening(server)
    (tmp_path / "password").write_text("not the right one")

    with pytest.raises(NonRetryable, match="535") as raised:
        channel.send(a_message())

    assert "not the right one" not in str(raised.value)


@pytest.mark.parametrize(
    ("verb", "reply", "error"),
    [
        ("MAIL", b"451 4.7.1 greylisted", TransientError),
        ("MAIL", b"550 5.7.1 sender rejected", NonRetryable),
        ("RCPT", b"450 4.2.2 mailbox full", TransientError),
        ("RCPT", b"550 5.1.1 no such user", NonRetryable),
        ("DATA", b"421 4.3.2 shutting down", TransientError),
    ],
)
def test_email__refused__says_whether_it_may_be_tried_again(
    opening: Open, server: SmtpServer, verb: str, reply: bytes, error: type[Exception]
) -> None:
    server.replies[verb] = reply

    with pytest.raises(error, match=reply[:3].decode()):
        opening(server).send(a_message())
    assert server.mails == []


def test_email__server_never_greets__is_given_up_in_time(opening: Open, server: SmtpServer) -> None:
    server.greets = False

    with pytest.raises(TransientError, match="channel mail: localhost"):
        opening(server).send(a_message())


def test_email__no_user_and_no_tls__is_sent_plainly(opening: Open) -> None:
    plain = SmtpServer(None)
    try:
        opening(plain, security="none", username="", password="").send(a_message())
        assert len(plain.mails) == 1
    finally:
        plain.stop()
