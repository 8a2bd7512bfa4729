"""TLS on both ports: what is spoken, and what is said of files that cannot be used."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # it has no stubs
from litestar import Litestar

from headgate.errors import SettingsError
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.connection.tls import Tls
from headgate.serve.rpc.grpc import GrpcServer
from headgate.settings import Address

ANY_PORT = Address("127.0.0.1", 0)


def make_files(folder: Path, *, password: bytes | None = None) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    locking: Any = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locking)
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return make_files(tmp_path / "tls")


async def _http(tls: Tls, context: ssl.SSLContext) -> tuple[int, str]:
    server = HttpServer(ANY_PORT, tls=tls)
    serving = await server.start(Litestar([]), grace_seconds=1)
    try:
        async with httpx.AsyncClient(verify=context) as client:
            answer = await client.get(f"https://{server.address}/schema")
            stream: Any = answer.extensions["network_stream"]
            return answer.status_code, stream.get_extra_info("ssl_object").version()
    finally:
        await server.drain()
        await serving
        server.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_http__with_tls__is_served(files: tuple[Path, Path], version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=files[0])
    context.minimum_version = context.maximum_version = version

    status, spoken = asyncio.run(_http(Tls.load(*files), context))

    assert (status, spoken) == (200, version.name.replace("_", "."))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_http__older_than_tls_1_2__is_refused(files: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=files[0])
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

    with pytest.raises(httpx.ConnectError):
        asyncio.run(_http(Tls.load(*files), context))


def test_grpc__with_tls__is_served_and_without_is_not(files: tuple[Path, Path]) -> None:
    async def check(channel: grpc.aio.Channel) -> int:
        method: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        found: int = (await method(health_pb2.HealthCheckRequest(), timeout=5)).status
        return found

    async def scenario() -> tuple[int, grpc.StatusCode]:
        server = GrpcServer(ANY_PORT, tls=Tls.load(*files))
        await server.start()
        await server.set_serving()
        credentials = grpc.ssl_channel_credentials(files[0].read_bytes())
        async with grpc.aio.secure_channel(str(server.address), credentials) as channel:
            found = await check(channel)
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await check(channel)
        await server.drain(1)
        return found, caught.value.code()

    assert asyncio.run(scenario()) == (health_pb2.HealthCheckResponse.SERVING, grpc.StatusCode.UNAVAILABLE)


def test_files__not_there__name_the_setting(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tls\.cert = .*none\.pem: cannot be read"):
        Tls.load(tmp_path / "none.pem", files[1])
    with pytest.raises(SettingsError, match=r"tls\.key = .*none\.pem: cannot be read"):
        Tls.load(files[0], tmp_path / "none.pem")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe"])
def test_files__that_hold_something_else__name_the_setting(files: tuple[Path, Path], content: bytes) -> None:
    cert, key = files
    kept = cert.read_bytes()
    cert.write_bytes(content)
    with pytest.raises(SettingsError, match=r"tls\.cert"):
        Tls.load(cert, key)
    cert.write_bytes(kept)
    key.write_bytes(content)
    with pytest.raises(SettingsError, match=r"tls\.key"):
        Tls.load(cert, key)


def test_files__key_of_another_certificate__name_the_key(files: tuple[Path, Path], tmp_path: Path) -> None:
    _, other = make_files(tmp_path / "other")

    with pytest.raises(SettingsError, match=r"tls\.key = .*not the key of the certificate"):
        Tls.load(files[0], other)


def test_files__encrypted_key__is_refused_without_asking(tmp_path: Path) -> None:
    cert, key = make_files(tmp_path / "locked", password=b"secret")

    with pytest.raises(SettingsError, match=r"tls\.key = .*the key is encrypted"):
        Tls.load(cert, key)


def test_tls__shown__does_not_show_the_key(files: tuple[Path, Path]) -> None:
    assert "PRIVATE" not in repr(Tls.load(*files))
