"""TLS of both ports: one certificate and key, validated before the ports open."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headgate.errors import SettingsError

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True)
class Tls:
    """A certificate chain with its key. TLS 1.2 is the minimum."""

    context: ssl.SSLContext
    chain: bytes
    key: bytes = field(repr=False)

    @classmethod
    def load(cls, cert: Path, key: Path) -> Self:
        """Read PEM files. Raises `SettingsError`, naming the setting, if one cannot be read or they do not match."""
        chain = _read("tls.cert", cert)
        secret = _read("tls.key", key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _check_chain(cert, chain)
        try:
            context.load_cert_chain(cert, key, password=_no_password(key))
        except (ssl.SSLError, OSError) as exc:
            if getattr(exc, "reason", "") == "KEY_VALUES_MISMATCH":
                raise SettingsError(f"tls.key = {key}: not the key of the certificate in {cert}") from exc
            raise SettingsError(f"tls.key = {key}: no usable private key in PEM format") from exc
        return cls(context, chain, secret)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return gRPC credentials. gRPC itself requires TLS 1.2 or later."""
        # An extra.
        import grpc

        return grpc.ssl_server_credentials([(self.key, self.chain)])


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"{setting} = {path}: cannot be read: {exc.strerror}; name a PEM file") from exc


def _check_chain(path: Path, chain: bytes) -> None:
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        trial.load_verify_locations(cadata=chain.decode("ascii"))
    except (ssl.SSLError, ValueError) as exc:
        raise SettingsError(f"tls.cert = {path}: no certificate in PEM format") from exc


def _no_password(path: Path) -> Callable[[], str]:
    def refuse() -> str:
        # Without this OpenSSL would prompt on the terminal.
        raise SettingsError(
            f"tls.key = {path}: the key is encrypted; store it without a passphrase, readable only by you"
        )

    return refuse
