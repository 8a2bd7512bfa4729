"""SQL probes: one value of a query, through SQLAlchemy.

The query runs in a read-only transaction with a statement time-out, on a connection of its own, to an address that was
resolved once and checked. Files of SQLite and DuckDB are below the allowed folders, and are opened read-only; DuckDB
reads no other file.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from headgate.clock import Clock
from headgate.errors import DefinitionError
from headgate.file_roots import FileRoots
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.probes.endpoints import DatabaseHosts
from headgate.pipelines.probes.errors import ProbeFailedError
from headgate.pipelines.probes.extras import library
from headgate.pipelines.probes.local_paths import allowed_path
from headgate.pipelines.probes.model import Sighting, SqlProbe

EXTRA: Final = "sql"
BINDS: Final = ("date", "date_compact", "day_compact", "year", "week", "month", "day", "hour", "minute")
_STARTS: Final = re.compile(r"\s*(select|with|values|table)\b", re.IGNORECASE)
# Comments, texts and quoted names, in which a semicolon separates nothing.
_QUOTED: Final = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`", re.DOTALL)
_EXECUTED: Final = re.compile(r"/\*M?!")
_WRITES_FILES: Final = re.compile(r"\binto\s+(outfile|dumpfile)\b", re.IGNORECASE)
_BIND: Final = re.compile(r"(?<![:\w\\]):([A-Za-z_]\w*)(?!:)")
# Parameters of a URL reach the driver, and some of them name files, hosts or commands.
_PARAMETERS: Final = frozenset({"sslmode", "charset", "application_name"})
_PORTS: Final = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}
_TEXT_CHARS_MAX: Final = 1_000
_COLUMNS_MAX: Final = 2_000
_TIMED_OUT: Final = re.compile(
    r"statement timeout|max_statement_time|maximum statement execution time|interrupted|timed out", re.IGNORECASE
)


def check_query(query: str) -> None:
    """Raise `DefinitionError` unless a text is one SELECT."""
    plain = _QUOTED.sub(" ", query)
    if _EXECUTED.search(query):
        raise DefinitionError("query has a comment that MySQL runs; leave it out")
    if ";" in plain.rstrip().rstrip(";"):
        raise DefinitionError("query has several statements; give one SELECT")
    if not _STARTS.match(plain):
        raise DefinitionError("query is not a SELECT; a probe only reads")
    if _WRITES_FILES.search(plain):
        raise DefinitionError("query writes a file; a probe only reads")
    unknown = sorted(set(_BIND.findall(plain)) - set(BINDS))
    if unknown:
        raise DefinitionError(f"query uses :{unknown[0]}; use one of {', '.join(f':{name}' for name in BINDS)}")


def binds_of(query: str) -> set[str]:
    """Return the names of the period that a query uses."""
    return set(_BIND.findall(_QUOTED.sub(" ", query)))


def check_url(url: str) -> None:
    """Raise `DefinitionError` for a URL that has a password, or parameters that a probe must not set."""
    scheme, colon, rest = url.partition("://")
    if not colon or not re.fullmatch(r"[a-z][a-z0-9]*(\+[a-z][a-z0-9_]*)?", scheme):
        raise DefinitionError("url is not one of SQLAlchemy; write postgresql+psycopg://reader@host/database")
    authority, _, parameters = rest.partition("?")
    user, at, _ = authority.rpartition("@")
    if at and ":" in user:
        raise DefinitionError("url has a password; put it into the field password as ${env:HG_SECRET_NAME}")
    names = {part.partition("=")[0] for part in parameters.split("&") if part}
    refused = sorted(names - _PARAMETERS)
    if refused:
        raise DefinitionError(f"url: {refused[0]} cannot be set; of parameters use {', '.join(sorted(_PARAMETERS))}")


class SqlLooks:
    """Runs SQL probes. Safe to use from many threads."""

    def __init__(self, clock: Clock, files: FileRoots, hosts: DatabaseHosts) -> None:
        self._clock = clock
        self._files = files
        self._hosts = hosts

    def look(self, probe: SqlProbe, binds: Mapping[str, str], timeout_seconds: float) -> Sighting:
        """Return the value that the query selects. Raises `ProbeFailedError` and `DefinitionError`."""
        check_query(probe.query)
        wanted = {name: binds[name] for name in binds_of(probe.query) if name in binds}
        rows = self._rows(probe, probe.query.rstrip().rstrip(";"), wanted, timeout_seconds, limit=2)
        if len(rows) != 1 or len(rows[0]) != 1:
            shape = "no row" if not rows else f"{'several rows' if len(rows) > 1 else f'{len(rows[0])} columns'}"
            raise ProbeFailedError(f"the query selects {shape}; select one value", FailureCategory.PERMANENT)
        return Sighting({"value": _plain(rows[0][0])})

    def columns(self, probe: SqlProbe, table: str, timeout_seconds: float) -> Sighting:
        """Return the types of the columns of a table by name. Raises `ProbeFailedError` and `DefinitionError`."""
        schema, _, name = table.rpartition(".")
        schema = schema.rpartition(".")[2]
        if not re.fullmatch(r"[A-Za-z0-9_$]+", name):
            raise DefinitionError(f"table {table[:80]!r} is no name of a table")
        if probe.url.startswith("sqlite"):
            found = self._rows(probe, f'PRAGMA table_info("{name}")', {}, timeout_seconds, limit=_COLUMNS_MAX)
            rows = [(column, kind) for _, column, kind, *_ in found]
        else:
            of_schema = " AND lower(table_schema) = lower(:schema)" if schema else ""
            query = (
                "SELECT column_name, data_type FROM information_schema.columns "
                f"WHERE lower(table_name) = lower(:name){of_schema} ORDER BY ordinal_position"
            )
            wanted = {"name": name, **({"schema": schema} if schema else {})}
            rows = self._rows(probe, query, wanted, timeout_seconds, limit=_COLUMNS_MAX)
        if not rows:
            return Sighting({"exists": False})
        return Sighting({"exists": True, "columns": {str(name): str(kind) for name, kind in rows}})

    def _rows(
        self, probe: SqlProbe, query: str, binds: Mapping[str, str], timeout_seconds: float, *, limit: int
    ) -> list[Any]:
        check_url(probe.url)
        alchemy = library("sqlalchemy", EXTRA)
        try:
            with self._connected(alchemy, probe, timeout_seconds) as connection:
                result = connection.execute(alchemy.text(query), dict(binds))
                # A PRAGMA of SQLite without a result has no rows to fetch.
                rows: list[Any] = result.fetchmany(limit) if result.returns_rows else []
        except alchemy.exc.SQLAlchemyError as exc:
            raise _translated(exc, alchemy, timeout_seconds) from None
        except ModuleNotFoundError as exc:
            raise DefinitionError(f"{exc.name}, the driver of url, is not installed here; install it with pip") from exc
        return rows

    @contextmanager
    def _connected(self, alchemy: Any, probe: SqlProbe, timeout_seconds: float) -> Iterator[Any]:  # noqa: ANN401
        url = alchemy.engine.make_url(probe.url)
        if probe.password is not None:
            url = url.set(password=probe.password)
        backend = url.get_backend_name()
        if backend == "sqlite":
            engine = self._sqlite(alchemy, url, timeout_seconds)
        elif backend == "duckdb":
            engine = self._duckdb(alchemy, url)
        else:
            engine = self._server(alchemy, url, backend, timeout_seconds)
        try:
            with engine.connect() as connection, _read_only(alchemy, connection, backend, timeout_seconds):
                yield connection
        finally:
            engine.dispose()

    def _file(self, url: Any) -> Path:  # noqa: ANN401
        if not url.database or url.database == ":memory:":
            raise DefinitionError("url names no file; give the path of a database")
        path = allowed_path(url.database, self._files)
        if not path.is_file():
            raise ProbeFailedError(f"there is no file {path}", FailureCategory.TRANSIENT)
        return path

    def _sqlite(self, alchemy: Any, url: Any, timeout_seconds: float) -> Any:  # noqa: ANN401
        path = self._file(url)
        ends_at = self._clock.monotonic() + timeout_seconds

        # Imported only for such a probe: functions on AWS have none.
        from headgate.pipelines.probes.sqlite_reads import open_read_only

        def opened() -> Any:  # noqa: ANN401
            return open_read_only(path, min(2.0, timeout_seconds), lambda: self._clock.monotonic() >= ends_at)

        return _engine(alchemy, "sqlite://", creator=opened)

    def _duckdb(self, alchemy: Any, url: Any) -> Any:  # noqa: ANN401
        path = self._file(url)
        # The settings are locked: a query cannot give itself access to other files or to the network.
        config = {"enable_external_access": "false", "lock_configuration": "true"}
        return _engine(
            alchemy, alchemy.engine.URL.create("duckdb", database=str(path)),
            connect_args={"read_only": True, "config": config},
        )  # fmt: skip

    def _server(self, alchemy: Any, url: Any, backend: str, timeout_seconds: float) -> Any:  # noqa: ANN401
        if not url.host:
            raise DefinitionError("url names no host")
        address = self._hosts.address(url.host, url.port or _PORTS.get(backend, 0))
        whole = max(1, math.ceil(timeout_seconds))
        arguments: dict[str, Any] = {}
        if backend == "postgresql":
            # The name stays for the certificate; the connection goes to the checked address.
            limits = f"-c default_transaction_read_only=on -c statement_timeout={round(timeout_seconds * 1000)}"
            arguments = {"hostaddr": address, "connect_timeout": whole, "options": limits}
        elif backend in ("mysql", "mariadb"):
            url = url.set(host=address)
            arguments = {"connect_timeout": whole, "read_timeout": whole + 1, "write_timeout": whole + 1}
        return _engine(alchemy, url, connect_args=arguments)


def _engine(alchemy: Any, url: Any, **options: Any) -> Any:  # noqa: ANN401
    return alchemy.create_engine(url, poolclass=alchemy.pool.NullPool, hide_parameters=True, **options)


@contextmanager
def _read_only(alchemy: Any, connection: Any, backend: str, timeout_seconds: float) -> Iterator[None]:  # noqa: ANN401
    """Limit the transaction of a connection to reading, and its statements in time."""
    if backend in ("mysql", "mariadb"):
        is_mariadb = connection.dialect.is_mariadb
        limit = (
            f"SET SESSION max_statement_time={timeout_seconds:.3f}"
            if is_mariadb
            else f"SET SESSION max_execution_time={round(timeout_seconds * 1000)}"
        )
        connection.execute(alchemy.text(limit))
        connection.execute(alchemy.text("SET SESSION TRANSACTION READ ONLY"))
        connection.rollback()
    if backend != "duckdb":
        yield
        connection.rollback()
        return
    interrupt: Callable[[], None] = connection.connection.dbapi_connection.interrupt
    timer = threading.Timer(timeout_seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _translated(exc: Any, alchemy: Any, timeout_seconds: float) -> ProbeFailedError | DefinitionError:  # noqa: ANN401
    """Return the error of a driver, without the statement and its parameters."""
    if isinstance(exc, alchemy.exc.NoSuchModuleError):
        return DefinitionError(f"url: {exc}; install the dialect with pip")
    text = " ".join(str(getattr(exc, "orig", None) or exc).split())[:_TEXT_CHARS_MAX]
    if _TIMED_OUT.search(text):
        return ProbeFailedError(f"no result within {timeout_seconds:g} s: {text}", FailureCategory.TIMEOUT)
    is_passing = isinstance(exc, alchemy.exc.OperationalError | alchemy.exc.InterfaceError)
    return ProbeFailedError(text, FailureCategory.TRANSIENT if is_passing else FailureCategory.PERMANENT)


def _plain(value: object) -> Json:
    """Return a value of a driver as JSON. Times without an offset are UTC."""
    match value:
        case None | bool() | int() | float() | str():
            return value if not isinstance(value, str) else value[:_TEXT_CHARS_MAX]
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime():
            return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).isoformat()
        case date():
            return value.isoformat()
    raise ProbeFailedError(
        f"the query selects a {type(value).__name__}; select a number, a text or a time", FailureCategory.PERMANENT
    )
