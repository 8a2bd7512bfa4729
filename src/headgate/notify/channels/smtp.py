"""E-mail channel: SMTP with STARTTLS or TLS, one mail per alert, with one thread per dedup key."""

from __future__ import annotations

import hashlib
import re
import smtplib
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from msgspec import Struct

from headgate.durable.model.failures import NonRetryable
from headgate.durable.model.records import instant
from headgate.errors import TransientError
from headgate.notify.credentials import Credential
from headgate.notify.enums import AlertAction
from headgate.notify.messages import Message, line

TIMEOUT_SECONDS: Final = 15.0
PASSWORD: Final = re.compile(r"[ -~]{1,512}")
_SUBJECT_MAX: Final = 150


class MailServer(Struct, frozen=True, kw_only=True):
    """The SMTP server. `security` is starttls, tls or none; none allows no password."""

    host: str
    port: int = 587
    security: str = "starttls"
    username: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS


class EmailChannel:
    """Sends mails through one server, with a connection for each."""

    actions = frozenset(AlertAction)

    def __init__(
        self,
        name: str,
        server: MailServer,
        sender: str,
        recipients: Sequence[str],
        *,
        password: Credential | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self._server = server
        self._sender = sender
        self._recipients = tuple(recipients)
        self._password = password
        self._tls = tls if tls is not None else ssl.create_default_context()

    def send(self, message: Message) -> str:
        """Send the mail, and return its id. Raises `TransientError` unless the server rejects it permanently.

        Partial acceptance counts as success, since a retry would send duplicates. If no recipient is accepted, it is a
        rejection.
        """
        mail = self._mail(message)
        try:
            with self._connected() as smtp:
                smtp.send_message(mail, self._sender, list(self._recipients))
        except smtplib.SMTPRecipientsRefused as exc:
            self._refuse(next(iter(exc.recipients.values()))[0], "no recipient was accepted", exc)
        except smtplib.SMTPResponseException as exc:
            self._refuse(exc.smtp_code, line(exc.smtp_error, 200), exc)
        except smtplib.SMTPNotSupportedError as exc:
            raise NonRetryable(f"channel {self.name}: {self._server.host} does not offer it: {exc}") from exc
        except (smtplib.SMTPException, OSError) as exc:
            raise TransientError(f"channel {self.name}: {self._server.host}: {type(exc).__name__} {exc}") from exc
        return str(mail["Message-ID"])

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        if server.security == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=server.timeout_seconds, context=self._tls
            )
        else:
            smtp = smtplib.SMTP(server.host, server.port, timeout=server.timeout_seconds)
        try:
            if server.security == "starttls":
                # Raises if the server does not offer it: nothing is sent in plain text.
                smtp.starttls(context=self._tls)
            if server.username and self._password is not None:
                smtp.login(server.username, self._password.read().reveal())
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        domain = self._sender.rpartition("@")[2]
        cause = (message.thread or message.dedup_key).encode()
        thread = f"<{hashlib.blake2b(cause, digest_size=16).hexdigest()}@{domain}>"
        mail["From"] = self._sender
        mail["To"] = ", ".join(self._recipients)
        mail["Subject"] = line(f"[{message.severity.upper()}] {message.title}", _SUBJECT_MAX)
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.at_ms / 1000, UTC))
        mail["Message-ID"] = f"<{message.message_id}@{domain}>"
        mail["References"] = thread
        mail["In-Reply-To"] = thread
        # Suppresses automatic replies.
        mail["Auto-Submitted"] = "auto-generated"
        parts = [f"{message.event}: {message.subject}", message.text]
        parts += [f"What to do: {message.hint}"] if message.hint else []
        parts += [message.link] if message.link else []
        parts += [f"{message.alert_id}, {instant(message.at_ms)}"]
        mail.set_content("\n\n".join(parts))
        return mail

    def _refuse(self, code: int, reason: str, cause: BaseException) -> None:
        text = f"channel {self.name}: {self._server.host} answered {code}: {reason}"
        if 400 <= code < 500:
            raise TransientError(text) from cause
        raise NonRetryable(f"{text}; check user, sender and recipients") from cause
