"""The checks of `headgate doctor`: each looks at one thing, changes nothing, and says what it saw."""

from __future__ import annotations

import enum
import errno
import fcntl
import http.client
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from headgate.bootstrap import store as wiring
from headgate.clock import SystemClock
from headgate.errors import HeadgateError
from headgate.serve.probes import DISK_FREE_BYTES_MIN
from headgate.settings import Address, Settings
from headgate.store.keyring import Keyring, Purpose
from headgate.store.sqlite import doctor as sqlite_doctor
from headgate.store.table_names import TableNames

_WAL_BYTES_MAX: Final = 256 * 1024 * 1024
_ANSWER_SECONDS: Final = 2.0
_MOUNTS: Final = Path("/proc/mounts")
# Their locks do not hold between machines, and some lose them: two writers would damage the file.
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs", "vboxsf"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.mount-s3"}
)


class Verdict(enum.StrEnum):
    """WARN works today and may not tomorrow; FAIL does not work."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """What one check saw, and what to do if that is not good."""

    check: str
    verdict: Verdict
    fact: str
    remedy: str = ""


def diagnose(load: Callable[[], Settings]) -> list[Finding]:
    """Run every check. Those that need settings are left out if the settings cannot be loaded."""
    findings = [_check_python(), _check_sqlite()]
    try:
        settings = load()
        TableNames(settings.store.table_prefix, settings.store.table_names)
    except HeadgateError as exc:
        return [*findings, _failed("settings", exc.message)]
    findings.append(Finding("settings", Verdict.OK, f"loaded; home is {settings.home}"))
    return [*findings, *_checks_of(settings)]


def _checks_of(settings: Settings) -> Iterator[Finding]:
    home = settings.home
    yield from _looked_at("home", lambda: [_check_home(home)])
    yield from _looked_at("free space", lambda: [_check_space(_existing(home))])
    yield from _looked_at("filesystem", lambda: [_check_filesystem(_existing(home))])
    yield from _looked_at("file locks", lambda: [_check_locks(_existing(home))])
    yield from _looked_at("keys", lambda: [_check_keys(wiring.keys_path(settings))])
    if settings.store.backend == "sqlite":
        yield from _looked_at("database", lambda: _check_database(wiring.database_path(settings)))
    else:
        yield from _check_tables(settings)
    yield _check_port("http", settings.http, _headgate_answers)
    yield _check_port("grpc", settings.grpc, _grpc_health_answers)
    if settings.cache.redis_url is not None:
        yield _check_redis(settings)


def _looked_at(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what `look` finds, or that the filesystem did not let it look."""
    try:
        yield from look()
    except OSError as exc:
        remedy = "give this user access to it, or name another home with --home"
        yield Finding(check, Verdict.FAIL, f"{exc.filename}: cannot be looked at: {exc.strerror}", remedy)


def _failed(check: str, message: str) -> Finding:
    """Return the finding for a message of ours, which gives the fact first and the remedy after a semicolon."""
    fact, _, remedy = message.partition("; ")
    return Finding(check, Verdict.FAIL, fact, remedy)


def _check_python() -> Finding:
    verdict = Verdict.OK if sys.version_info >= (3, 11) else Verdict.FAIL
    remedy = "" if verdict is Verdict.OK else "install Python 3.11 or newer"
    return Finding("python", verdict, f"{platform.python_implementation()} {platform.python_version()}", remedy)


def _check_sqlite() -> Finding:
    found = sqlite_doctor.library()
    least = ".".join(map(str, sqlite_doctor.LIBRARY_MIN))
    if not found.is_new_enough:
        return Finding(
            "sqlite library", Verdict.FAIL, found.version, f"use a Python built with SQLite {least} or newer"
        )
    if not found.is_threadsafe:
        remedy = "use a Python whose SQLite was built in serialized mode"
        return Finding("sqlite library", Verdict.FAIL, f"{found.version}, not safe for threads", remedy)
    return Finding("sqlite library", Verdict.OK, f"{found.version}, safe for threads")


def _existing(folder: Path) -> Path:
    """Return `folder` or, as long as it is not there, the folder it would be made in."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _check_home(home: Path) -> Finding:
    if home.exists() and not home.is_dir():
        return Finding("home", Verdict.FAIL, f"{home} is a file", "move it away or name another home with --home")
    folder = _existing(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        remedy = "make it writable for this user, or name another home with --home"
        return Finding("home", Verdict.FAIL, f"{folder} cannot be written", remedy)
    if folder != home:
        return Finding("home", Verdict.OK, f"{home} is not there yet; 'headgate up' makes it")
    return Finding("home", Verdict.OK, f"{home} is there and can be written")


def _check_space(folder: Path) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    fact = f"{free_bytes // 2**20:,} MiB free"
    if free_bytes < DISK_FREE_BYTES_MIN:
        return Finding(
            "free space", Verdict.WARN, fact, f"free some: less than {DISK_FREE_BYTES_MIN // 2**20} MiB is little"
        )
    return Finding("free space", Verdict.OK, fact)


def _check_filesystem(folder: Path) -> Finding:
    kind = _filesystem(folder)
    if kind is None:
        return Finding("filesystem", Verdict.OK, "this system does not tell which one it is")
    if kind in _NETWORK_FILESYSTEMS:
        remedy = "name a home on a local disk with --home; several machines share state through DynamoDB"
        return Finding("filesystem", Verdict.FAIL, f"{kind} is a network filesystem", remedy)
    return Finding("filesystem", Verdict.OK, f"{kind} is local")


def _filesystem(folder: Path) -> str | None:
    """Return the type of the filesystem that `folder` is on, from the mount point nearest above it."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    resolved = folder.resolve()
    nearest: tuple[int, str] | None = None
    for line in lines:
        _, mounted_at, kind, *_ = line.split(" ")
        # The kernel writes spaces and the like in a path as octal escapes.
        point = Path(mounted_at.encode().decode("unicode_escape"))
        # A later line hides an earlier one at the same place.
        if resolved.is_relative_to(point) and (nearest is None or len(point.parts) >= nearest[0]):
            nearest = (len(point.parts), kind)
    return nearest[1] if nearest else None


def _check_locks(folder: Path) -> Finding:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Finding("file locks", Verdict.OK, "work; another process holds one now")
    except OSError as exc:
        remedy = "name a home on a filesystem that has flock, with --home"
        return Finding("file locks", Verdict.FAIL, f"{folder} does not support them: {exc.strerror}", remedy)
    finally:
        os.close(descriptor)
    return Finding("file locks", Verdict.OK, "work")


def _check_keys(path: Path) -> Finding:
    if not path.exists():
        return Finding("keys", Verdict.OK, f"{path.name} is not there yet; 'headgate up' makes it")
    try:
        keyring = Keyring.open(path, SystemClock())
    except HeadgateError as exc:
        return _failed("keys", exc.message)
    except OSError as exc:
        return Finding(
            "keys", Verdict.FAIL, f"{path}: cannot be read: {exc.strerror}", "make it readable for this user"
        )
    held = ", ".join(f"{len(keyring.keys(purpose))} {purpose}" for purpose in Purpose)
    return Finding("keys", Verdict.OK, f"{path.name} is private; it holds {held}")


def _check_database(path: Path) -> Iterator[Finding]:
    if not path.exists() or path.stat().st_size == 0:
        yield Finding("database", Verdict.OK, f"{path.name} is not there yet; 'headgate up' makes it")
        return
    if not os.access(path, os.W_OK):
        yield Finding("database", Verdict.FAIL, f"{path} cannot be written", "make it writable for this user")
        return
    try:
        facts = sqlite_doctor.inspect(path)
    except HeadgateError as exc:
        yield _failed("database", exc.message)
        return
    yield Finding("database", Verdict.OK, f"{path.name} opens: format {facts.format}, {facts.file_bytes:,} bytes")
    if facts.damages:
        remedy = f"stop Headgate, keep a copy of {path} with its -wal, and restore a backup"
        yield Finding("database content", Verdict.FAIL, "; ".join(facts.damages), remedy)
    else:
        yield Finding("database content", Verdict.OK, "quick_check found no damage")
    if facts.wal_bytes > _WAL_BYTES_MAX:
        remedy = "look for a program that keeps the database open in a long read, and end it"
        yield Finding("write-ahead log", Verdict.WARN, f"{facts.wal_bytes // 2**20:,} MiB are not merged back", remedy)
    else:
        yield Finding("write-ahead log", Verdict.OK, f"{facts.wal_bytes:,} bytes")


def _check_tables(settings: Settings) -> Iterator[Finding]:
    try:
        differences = wiring.check_dynamodb_tables(settings, SystemClock())
    except HeadgateError as exc:
        yield _failed("dynamodb tables", exc.message)
        return
    for difference in differences:
        yield _failed("dynamodb tables", difference)
    if not differences:
        yield Finding("dynamodb tables", Verdict.OK, "all are there, as in the catalogue")


def _check_port(name: str, address: Address, answers: Callable[[Address], str | None]) -> Finding:
    check = f"{name} port"
    if address.port == 0:
        return Finding(check, Verdict.OK, "any free one")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except UnicodeError:
        return Finding(check, Verdict.FAIL, f"{address}: not a host name", f"correct --{name} HOST:PORT")
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            return Finding(check, Verdict.FAIL, f"{address}: {exc.strerror}", f"correct --{name} HOST:PORT")
        served = answers(address)
        if served is not None:
            return Finding(check, Verdict.OK, f"{address} is served by {served}")
        remedy = f"stop what listens there, or choose another port with --{name} HOST:PORT"
        return Finding(check, Verdict.FAIL, f"{address} is taken by another program", remedy)
    return Finding(check, Verdict.OK, f"{address} is free")


def _headgate_answers(address: Address) -> str | None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_ANSWER_SECONDS)
    try:
        # Under a name that every server of ours answers to: its address need not be one, such as 0.0.0.0.
        connection.request("GET", "/", headers={"Host": "localhost"})
        answer = msgspec.json.decode(connection.getresponse().read(65536))
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
    is_ours = isinstance(answer, dict) and answer.get("name") == "headgate"
    return f"Headgate {answer.get('version')}" if is_ours else None


def _grpc_health_answers(address: Address) -> str | None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it has no stubs

    with grpc.insecure_channel(str(address)) as channel:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_ANSWER_SECONDS)
        except grpc.RpcError:
            return None
    return f"gRPC with health {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def _check_redis(settings: Settings) -> Finding:
    assert settings.cache.redis_url is not None, "checked only if it is set"
    try:
        wiring.ping_redis(settings.cache.redis_url)
    except HeadgateError as exc:
        return _failed("redis", exc.message)
    return Finding("redis", Verdict.OK, "answers")
