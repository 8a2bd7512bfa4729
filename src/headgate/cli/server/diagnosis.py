"""Checks of `headgate doctor`: read-only diagnostics of the installation and the home."""

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

from headgate import typed_decode
from headgate.bootstrap import store as bootstrap
from headgate.bootstrap.key_check import lost_keys_in_file, lost_keys_in_tables
from headgate.bootstrap.watchdog import heartbeats_in_file
from headgate.clock import SystemClock
from headgate.errors import HeadgateError
from headgate.extras import Extra, install_command
from headgate.pipelines.catalog.project import REPORT_FILE, FolderOutcome, FolderReport
from headgate.pipelines.watchdog.heartbeats import HeartbeatSource
from headgate.serve.probes import DISK_FREE_BYTES_MIN
from headgate.settings import Address, Settings
from headgate.store.keyring import Keyring, Purpose
from headgate.store.sqlite import doctor as sqlite_doctor
from headgate.store.table_names import TableNames

_WAL_BYTES_MAX: Final = 256 * 1024 * 1024
_ANSWER_SECONDS: Final = 2.0
_MOUNTS: Final = Path("/proc/mounts")
# File locks are not reliable between machines there, so two writers could corrupt the database.
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs", "vboxsf"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.mount-s3"}
)


class CheckStatus(enum.StrEnum):
    """Status of a check. WARN: works, but needs attention; FAIL: does not work."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class CheckResult(msgspec.Struct, frozen=True):
    """Result of one check, with a remedy unless it is OK."""

    check: str
    verdict: CheckStatus
    fact: str
    remedy: str = ""


def diagnose(load: Callable[[], Settings]) -> list[CheckResult]:
    """Run every check. Checks that need settings are left out if the settings cannot be loaded."""
    findings = [_check_python(), _check_sqlite(), _check_extras()]
    try:
        settings = load()
        TableNames(settings.store.table_prefix, settings.store.table_names)
    except HeadgateError as exc:
        return [*findings, _failed("settings", exc.message)]
    findings.append(CheckResult("settings", CheckStatus.OK, f"loaded; home is {settings.home}"))
    return [*findings, *_checks_of(settings)]


def _check_extras() -> CheckResult:
    off = [each for each in Extra if not each.is_installed]
    if not off:
        return CheckResult("extras", CheckStatus.OK, f"installed: {', '.join(each.adds for each in Extra)}")
    fact = f"not installed: {', '.join(each.adds for each in off)}; to have them, run: {install_command(*off)}"
    return CheckResult("extras", CheckStatus.OK, fact)


def _checks_of(settings: Settings) -> Iterator[CheckResult]:
    home = settings.home
    yield from _guarded("home", lambda: [_check_home(home)])
    yield from _guarded("free space", lambda: [_check_space(_existing(home))])
    yield from _guarded("filesystem", lambda: [_check_filesystem(_existing(home))])
    yield from _guarded("file locks", lambda: [_check_locks(_existing(home))])
    yield from _guarded("keys", lambda: [_check_keys(settings)])
    if settings.store.backend == "sqlite":
        yield from _guarded("database", lambda: _check_database(bootstrap.database_path(settings)))
        yield from _guarded("watchdog", lambda: [_check_watchdog(settings)])
    else:
        yield from _check_tables(settings)
    if settings.pipelines.folder is not None:
        yield from _guarded("definitions", lambda: _check_definitions(home / REPORT_FILE))
    yield _check_port("http", settings.http, _headgate_answers)
    if Extra.GRPC.is_installed:
        yield _check_port("grpc", settings.grpc, _grpc_health_answers)
    if settings.cache.redis_url is not None:
        yield _check_redis(settings)


def _check_definitions(file: Path) -> Iterator[CheckResult]:
    """Check the last load of the project folder, as the server recorded it."""
    name = "definitions"
    try:
        report = typed_decode.from_json(file.read_bytes(), FolderReport)
    except FileNotFoundError:
        yield CheckResult(name, CheckStatus.OK, "not loaded yet; the server loads them when it starts")
        return
    except msgspec.DecodeError:
        yield CheckResult(name, CheckStatus.WARN, f"{file}: not readable", "run 'headgate reload'")
        return
    for problem in report.problems:
        yield CheckResult(name, CheckStatus.WARN, problem, "fix the file, then run 'headgate reload'")
    for warning in report.warnings:
        yield CheckResult(name, CheckStatus.WARN, warning, "follow the message, then run 'headgate reload'")
    for each in report.definitions:
        if each.outcome.is_kept:
            remedy = "put the change into the file, then run 'headgate reload'"
            yield CheckResult(name, CheckStatus.WARN, f"{each.pipeline_id}: {each.detail}", remedy)
        elif each.outcome is FolderOutcome.REPLACED:
            remedy = f"see 'headgate pipeline diff {each.pipeline_id}'"
            yield CheckResult(name, CheckStatus.WARN, f"{each.pipeline_id}: {each.file} {each.detail}", remedy)
    for gone in report.gone:
        yield CheckResult(
            name, CheckStatus.WARN, f"{gone}: no longer in the folder, and in force", "run 'headgate pipeline delete'"
        )
    yield CheckResult(name, CheckStatus.OK, f"{len(report.definitions)} loaded from {report.folder} at {report.at}")


def _guarded(check: str, run: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check, or a failure if the filesystem denies access."""
    try:
        yield from run()
    except OSError as exc:
        remedy = "grant this user access, or choose another home with --home"
        yield CheckResult(check, CheckStatus.FAIL, f"{exc.filename}: cannot be read: {exc.strerror}", remedy)


def _failed(check: str, message: str) -> CheckResult:
    """Return a failure for an error message, which has the form "fact; remedy"."""
    fact, _, remedy = message.partition("; ")
    return CheckResult(check, CheckStatus.FAIL, fact, remedy)


def _check_python() -> CheckResult:
    verdict = CheckStatus.OK if sys.version_info >= (3, 11) else CheckStatus.FAIL
    remedy = "" if verdict is CheckStatus.OK else "install Python 3.11 or newer"
    return CheckResult("python", verdict, f"{platform.python_implementation()} {platform.python_version()}", remedy)


def _check_sqlite() -> CheckResult:
    library = sqlite_doctor.library()
    minimum = ".".join(map(str, sqlite_doctor.LIBRARY_MIN))
    if not library.is_new_enough:
        return CheckResult(
            "sqlite library", CheckStatus.FAIL, library.version, f"use a Python built with SQLite {minimum} or newer"
        )
    if not library.is_threadsafe:
        remedy = "use a Python with SQLite in serialized mode"
        return CheckResult("sqlite library", CheckStatus.FAIL, f"{library.version}, not thread-safe", remedy)
    return CheckResult("sqlite library", CheckStatus.OK, f"{library.version}, thread-safe")


def _existing(folder: Path) -> Path:
    """Return `folder`, or its nearest existing parent."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _check_home(home: Path) -> CheckResult:
    if home.exists() and not home.is_dir():
        return CheckResult("home", CheckStatus.FAIL, f"{home} is a file", "move it, or choose another home with --home")
    folder = _existing(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        remedy = "make it writable for this user, or choose another home with --home"
        return CheckResult("home", CheckStatus.FAIL, f"{folder} is not writable", remedy)
    if folder != home:
        return CheckResult("home", CheckStatus.OK, f"{home} does not exist yet; 'headgate up' creates it")
    return CheckResult("home", CheckStatus.OK, f"{home} is writable")


def _check_space(folder: Path) -> CheckResult:
    free_bytes = shutil.disk_usage(folder).free
    fact = f"{free_bytes // 2**20:,} MiB free"
    if free_bytes < DISK_FREE_BYTES_MIN:
        return CheckResult(
            "free space",
            CheckStatus.WARN,
            fact,
            f"free disk space: at least {DISK_FREE_BYTES_MIN // 2**20} MiB are recommended",
        )
    return CheckResult("free space", CheckStatus.OK, fact)


def _check_filesystem(folder: Path) -> CheckResult:
    kind = _filesystem(folder)
    if kind is None:
        return CheckResult("filesystem", CheckStatus.OK, "type unknown on this system")
    if kind in _NETWORK_FILESYSTEMS:
        remedy = "choose a home on a local disk with --home; use DynamoDB to share state between machines"
        return CheckResult("filesystem", CheckStatus.FAIL, f"{kind} is a network filesystem", remedy)
    return CheckResult("filesystem", CheckStatus.OK, f"{kind} is local")


def _filesystem(folder: Path) -> str | None:
    """Return the filesystem type of the mount point nearest above `folder`."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    resolved = folder.resolve()
    nearest: tuple[int, str] | None = None
    for line in lines:
        _, mounted_at, kind, *_ = line.split(" ")
        # The kernel escapes spaces in paths as octal.
        point = Path(mounted_at.encode().decode("unicode_escape"))
        # A later mount hides an earlier one at the same point.
        if resolved.is_relative_to(point) and (nearest is None or len(point.parts) >= nearest[0]):
            nearest = (len(point.parts), kind)
    return nearest[1] if nearest else None


def _check_locks(folder: Path) -> CheckResult:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return CheckResult("file locks", CheckStatus.OK, "work; held by another process")
    except OSError as exc:
        remedy = "choose a home on a filesystem with flock, with --home"
        return CheckResult("file locks", CheckStatus.FAIL, f"not supported by {folder}: {exc.strerror}", remedy)
    finally:
        os.close(descriptor)
    return CheckResult("file locks", CheckStatus.OK, "work")


def _lost_keys(settings: Settings, keyring: Keyring | None) -> list[str]:
    if settings.store.backend == "sqlite":
        return lost_keys_in_file(settings, keyring)
    try:
        return lost_keys_in_tables(settings, SystemClock(), keyring)
    except HeadgateError:
        # The check of the tables reports it.
        return []


def _check_keys(settings: Settings) -> CheckResult:
    path = bootstrap.keys_path(settings)
    try:
        keyring = Keyring.open(path, SystemClock()) if path.exists() else None
        lost = _lost_keys(settings, keyring)
    except HeadgateError as exc:
        return _failed("keys", exc.message)
    except OSError as exc:
        return CheckResult(
            "keys", CheckStatus.FAIL, f"{path}: cannot be read: {exc.strerror}", "make it readable for this user"
        )
    if lost:
        fact = "does not exist" if keyring is None else "lacks keys"
        remedy = "restore it from a backup, or accept the loss with 'headgate key accept-loss'"
        return CheckResult("keys", CheckStatus.FAIL, f"{path.name} {fact}: {', '.join(lost)}", remedy)
    if keyring is None:
        return CheckResult("keys", CheckStatus.OK, f"{path.name} does not exist yet; 'headgate up' creates it")
    held = ", ".join(f"{len(keyring.keys(purpose))} {purpose}" for purpose in Purpose)
    return CheckResult("keys", CheckStatus.OK, f"{path.name} is private; keys: {held}")


def _check_database(path: Path) -> Iterator[CheckResult]:
    if not path.exists() or path.stat().st_size == 0:
        yield CheckResult("database", CheckStatus.OK, f"{path.name} does not exist yet; 'headgate up' creates it")
        return
    if not os.access(path, os.W_OK):
        yield CheckResult("database", CheckStatus.FAIL, f"{path} is not writable", "make it writable for this user")
        return
    try:
        facts = sqlite_doctor.inspect(path)
    except HeadgateError as exc:
        yield _failed("database", exc.message)
        return
    yield CheckResult(
        "database", CheckStatus.OK, f"{path.name} opens: format {facts.format}, {facts.file_bytes:,} bytes"
    )
    if facts.damages:
        remedy = f"stop Headgate, copy {path} and its -wal file, and restore a backup"
        yield CheckResult("database content", CheckStatus.FAIL, "; ".join(facts.damages), remedy)
    else:
        yield CheckResult("database content", CheckStatus.OK, "quick_check found no damage")
    if facts.wal_bytes > _WAL_BYTES_MAX:
        remedy = "find and stop the process with a long read transaction"
        yield CheckResult(
            "write-ahead log", CheckStatus.WARN, f"{facts.wal_bytes // 2**20:,} MiB not checkpointed", remedy
        )
    else:
        yield CheckResult("write-ahead log", CheckStatus.OK, f"{facts.wal_bytes:,} bytes")


def _check_watchdog(settings: Settings) -> CheckResult:
    if not settings.pipelines.watchdog:
        return CheckResult("watchdog", CheckStatus.OK, "switched off by pipelines.watchdog")
    try:
        found = heartbeats_in_file(settings)
    except HeadgateError as exc:
        return _failed("watchdog", exc.message)
    own, server = found.get(HeartbeatSource.WATCHDOG), found.get(HeartbeatSource.SERVER)
    if own is None:
        return CheckResult("watchdog", CheckStatus.OK, "no heartbeat yet; it starts once a pipeline is defined")
    now_seconds = SystemClock().seconds()
    fact = f"last heartbeat {max(0.0, now_seconds - own.at_ms / 1000):,.0f} s ago"
    silent_seconds = settings.pipelines.watchdog_silent_seconds
    if now_seconds - own.at_ms / 1000 < silent_seconds:
        if own.degraded:
            remedy = "see the log of the watchdog for the errors"
            failed = f"{fact}; failed checks: {', '.join(own.degraded)}"
            return CheckResult("watchdog", CheckStatus.WARN, failed, remedy)
        return CheckResult("watchdog", CheckStatus.OK, fact)
    if server is None or now_seconds - server.at_ms / 1000 >= silent_seconds:
        return CheckResult("watchdog", CheckStatus.OK, f"{fact}; the server does not run either")
    remedy = "see the server's log for why it does not start; 'headgate watchdog' runs one"
    return CheckResult("watchdog", CheckStatus.WARN, f"{fact}, although the server runs", remedy)


def _check_tables(settings: Settings) -> Iterator[CheckResult]:
    try:
        differences = bootstrap.check_dynamodb_tables(settings, SystemClock())
    except HeadgateError as exc:
        yield _failed("dynamodb tables", exc.message)
        return
    for difference in differences:
        yield _failed("dynamodb tables", difference)
    if not differences:
        yield CheckResult("dynamodb tables", CheckStatus.OK, "all tables match the catalogue")


def _check_port(name: str, address: Address, answers: Callable[[Address], str | None]) -> CheckResult:
    check = f"{name} port"
    if address.port == 0:
        return CheckResult(check, CheckStatus.OK, "any free port")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except UnicodeError:
        return CheckResult(check, CheckStatus.FAIL, f"{address}: invalid host name", f"correct --{name} HOST:PORT")
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            return CheckResult(check, CheckStatus.FAIL, f"{address}: {exc.strerror}", f"correct --{name} HOST:PORT")
        served = answers(address)
        if served is not None:
            return CheckResult(check, CheckStatus.OK, f"{address} is served by {served}")
        remedy = f"stop the program that listens there, or choose another port with --{name} HOST:PORT"
        return CheckResult(check, CheckStatus.FAIL, f"{address} is used by another program", remedy)
    return CheckResult(check, CheckStatus.OK, f"{address} is free")


def _headgate_answers(address: Address) -> str | None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_ANSWER_SECONDS)
    try:
        # Every server accepts the host localhost; its address may be a wildcard such as 0.0.0.0.
        connection.request("GET", "/", headers={"Host": "localhost"})
        answer = msgspec.json.decode(connection.getresponse().read(65536))
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
    is_headgate = isinstance(answer, dict) and answer.get("name") == "headgate"
    return f"Headgate {answer.get('version')}" if is_headgate else None


def _grpc_health_answers(address: Address) -> str | None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # no stubs

    with grpc.insecure_channel(str(address)) as channel:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_ANSWER_SECONDS)
        except grpc.RpcError:
            return None
    return f"gRPC with health {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def _check_redis(settings: Settings) -> CheckResult:
    assert settings.cache.redis_url is not None, "checked only if it is set"
    try:
        bootstrap.ping_redis(settings.cache.redis_url)
    except HeadgateError as exc:
        return _failed("redis", exc.message)
    return CheckResult("redis", CheckStatus.OK, "responds")
