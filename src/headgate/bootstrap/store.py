"""Store bootstrap: opens the store, cache, blobs and durable service that the settings name.

Only this module names a concrete backend. A backend is imported when it is chosen: a process on SQLite never loads
boto3, and one on DynamoDB never loads SQLite.
"""

from __future__ import annotations

import functools
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from headgate.asl.service import AslService
from headgate.asl.tasks.task_backends import TaskBackends
from headgate.asl.tasks.user_tables import UserTables
from headgate.bootstrap.task_backends import open_task_backends
from headgate.clock import Clock, SystemClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.bus.events import TRACEPARENT, Event
from headgate.durable.bus.forward_headers import HeaderFiles
from headgate.durable.bus.forwarding import Forwarder
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.sdk.app import App
from headgate.durable.service import Service
from headgate.errors import HeadgateError, SettingsError, StoreFullError, StoreMovedError, TransientError
from headgate.fanout import hg_map as mapping
from headgate.fanout.background_threads import Background
from headgate.fanout.core.costs import Prices
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver, QueueChoice
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.events import ENDED_EVENT
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.queue_urls import QueueRules
from headgate.fanout.model.results import summary_json
from headgate.fanout.model.rows import Fanout, timestamp_ms
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.service import FanoutService
from headgate.file_roots import FileRoots, file_roots, usable_project
from headgate.ids import IdMaker
from headgate.settings import FanoutSettings, Secret, Settings, StoreSettings, WorkerSettings
from headgate.span_export import Attribute
from headgate.store.blobs.folder import Blobs, FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.cache.read_through import Cache
from headgate.store.cache.shared import OnAnswered, SharedLayer, TimedLayer
from headgate.store.catalogue.tables import ALL_TABLES, CONTROL
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Write
from headgate.store.model.schema import Table
from headgate.store.model.shards import plain_item
from headgate.store.model.values import Item
from headgate.store.peer_changes import NO_PEERS, PeerChanges
from headgate.store.port import Store
from headgate.store.resilience.guarded_store import AnyStore
from headgate.store.sharded_store import ShardedStore
from headgate.store.stats import AttemptObserver
from headgate.store.table_names import TableNames
from headgate.telemetry import Tracing

if TYPE_CHECKING:
    from headgate.deployment.doctor.facts import DeploymentFacts
    from headgate.fanout.doctor import QueueFinding
    from headgate.fanout.remote.sqs import Drained, SqsQueue
    from headgate.store.dynamodb.store import DynamoStore
    from headgate.store.sqlite.size import StoreSize

DATABASE: Final = "headgate.db"
KEYS: Final = "keys.json"
BLOBS: Final = "blobs"
_REDIS_SECONDS: Final = 3.0
_DAY_SECONDS: Final = 86_400
# Code outside the user's project: the import machinery, the standard library, installed packages and Headgate.
_LIBRARIES: Final = ("<", str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
# SQLite has one writer, so one counter row is enough; a DynamoDB item takes at most 1,000 writes a second.
_COUNTER_SHARDS: Final = {"sqlite": 1, "dynamodb": 16}


class OpenedStore(NamedTuple):
    """An open store with the keyring, blobs and settings it was opened with."""

    store: AnyStore
    keyring: Keyring
    spill: Spill
    blobs: Blobs
    settings: Settings
    # Whether the keyring was created when the store was opened.
    has_new_keys: bool = False


def open_store(
    settings: Settings,
    clock: Clock,
    *,
    observer: AttemptObserver | None = None,
    create: bool = True,
    accept_new_keys: bool = False,
) -> OpenedStore:
    """Open the store that the settings name, creating the home folder and its keys if they are missing.

    `observer` receives the failed attempts of a remote backend, which retries them. Without `create`, as child
    processes of a server open it, a missing home raises `StoreMovedError`: a home that was moved away must not be
    created anew. New keys are refused with `KeysLostError` if the database holds data of others, unless
    `accept_new_keys`; `check_keys` checks the keys that are present.

    Raises `SettingsError` if the home cannot be created or the backend's extra is not installed, and the backend's own
    errors if the store cannot be used.
    """
    if not create:
        _check_present(settings)
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise SettingsError(
            f"home {settings.home}: cannot be created: {exc.strerror}; name another with --home"
        ) from exc
    has_new_keys = not keys_path(settings).exists()
    database = database_path(settings)
    is_used = settings.store.backend == "sqlite" and database.exists() and database.stat().st_size > 0
    keyring = Keyring.open(keys_path(settings), clock)
    blobs = _open_blobs(settings)
    spill = Spill(blobs, clock)
    names = TableNames(settings.store.table_prefix, settings.store.table_names)
    cursors = Cursors(keyring)
    store: AnyStore
    if settings.store.backend == "sqlite":
        store = _open_sqlite(settings, names, clock, cursors, spill)
    else:
        store = ShardedStore(_open_dynamodb(settings, names, clock, cursors, spill, observer), cursors)
    opened = OpenedStore(store, keyring, spill, blobs, settings, has_new_keys)
    if has_new_keys and is_used and not accept_new_keys:
        _check_new_keys(opened)
    return opened


def _check_new_keys(opened: OpenedStore) -> None:
    from headgate.bootstrap.key_check import refuse_lost_keys

    try:
        refuse_lost_keys(opened)
    except BaseException:
        opened.store.close()
        raise


def _check_present(settings: Settings) -> None:
    needed = [keys_path(settings), *([database_path(settings)] if settings.store.backend == "sqlite" else [])]
    for path in needed:
        if not path.exists():
            raise StoreMovedError(f"{path}: it was moved or deleted; move it back, or restore a backup")


def load_app(reference: str) -> App:
    """Import the app that `module:name` names, from the current folder or an installed package.

    Raises `SettingsError` if the module or name is missing, if it is not an app, or if importing the module fails.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise SettingsError(f"--app {reference!r}: write module:name, such as orders:app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except HeadgateError:
        raise
    except Exception as exc:
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise SettingsError(f"--app {reference!r}: there is no module {missing!r} in {Path.cwd()}") from exc
        raise SettingsError(f"--app {reference!r}: {_location(exc)}{type(exc).__name__}: {exc}; fix it there") from exc
    app = getattr(module, name, None)
    if not isinstance(app, App):
        raise SettingsError(f"--app {reference!r}: {name} is not an hg.App in {module.__file__}")
    return app


def _location(error: Exception) -> str:
    """Return the innermost file and line of the user's code in a traceback, or '' if only libraries are in it."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}, line {error.lineno}: "
    own = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_LIBRARIES)]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""


class AppService(Service):
    """The durable service of an app, with the fan-outs and state machines that run on it.

    Workflows and state machines can start fan-outs; a fan-out that ends wakes its execution and emits an event.
    """

    def __init__(
        self,
        app: App,
        opened: OpenedStore,
        clock: Clock,
        backends: TaskBackends | None = None,
        *,
        meters: ExecutionMeters | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`backends` are what Tasks of state machines may call outside of Headgate; by default nothing."""
        days, store = opened.settings.archive.days, opened.settings.store
        super().__init__(
            app,
            opened.store,
            clock,
            opened.keyring,
            opened.blobs,
            archive_seconds=days * _DAY_SECONDS if days else None,
            events_days=opened.settings.retention.events_days,
            dead_letters_days=opened.settings.retention.dead_letters_days,
            open_forwarder=lambda: open_forwarder(opened.settings, clock),
            meters=meters,
            build=opened.settings.build or "",
            tracing=tracing,
        )
        self.fanouts = open_fanouts(opened, clock, self.ids, _FanoutEvents(self, clock))
        mapping.register(app, self.fanouts.splitter, self.fanouts.control, self.fanouts.queries)
        names = TableNames(store.table_prefix, store.table_names)
        tables = UserTables(opened.store, opened.settings.tasks.tables, names)
        self.asl = AslService(self, opened.store, opened.keyring, self.fanouts, opened.blobs, tables, backends)


def open_fanouts(
    opened: OpenedStore, clock: Clock, ids: IdMaker, observer: FanoutObserver = NO_OBSERVER
) -> FanoutService:
    """Return the fan-out service of an open store. With an AWS region, fan-outs with an SQS queue can be sent."""
    store = opened.settings.store

    # One client, opened with the first send: most processes never send.
    @functools.cache
    def queue() -> SqsQueue:
        return open_queue(opened, clock)

    rules = QueueRules(store.aws_region, opened.settings.fanout.queues, opened.settings.fanout.queue_url)

    def check_queue(queue_url: str) -> None:
        rules.check(queue_url)
        queue().check(queue_url)

    return FanoutService(
        opened.store,
        clock,
        ids,
        shards=_COUNTER_SHARDS[store.backend],
        send=None if store.aws_region is None else lambda fanout: queue().send(fanout),
        observer=observer,
        access=local_access(opened.settings),
        retention_days=opened.settings.retention.fanouts_days,
        queues=QueueChoice(check_queue, opened.settings.fanout.queue_url),
        prices=_prices(opened.settings.fanout),
    )


def _prices(settings: FanoutSettings) -> Prices:
    return Prices(settings.price_per_gb_second, settings.price_per_request, settings.currency)


def local_access(settings: Settings) -> LocalAccess:
    """Return which modules and files of this machine fan-outs may name."""
    project = usable_project(settings.project)
    folders = (*([] if project is None else [str(project)]), *settings.fanout.folders)
    files = allowed_files(settings)
    return LocalAccess(folders, settings.fanout.handlers, files.denied, files)


def allowed_files(settings: Settings) -> FileRoots:
    """Return the folders below which fan-outs and probes may read: not the home, and no file with a secret."""
    project = usable_project(settings.project)
    roots: Sequence[str | Path] = settings.files.roots or ([] if project is None else [project])
    secrets = [settings.tls.key, settings.region.authority_home, *map(Path, settings.forward.headers.values())]
    denied = [settings.home, *(path for path in secrets if path is not None)]
    return file_roots(roots, denied, project=project)


def with_app_folder(settings: Settings, reference: str) -> Settings:
    """Return settings that allow handlers from the folder of a loaded app."""
    module = reference.partition(":")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return settings
    levels = module.count(".") + (Path(file).name == "__init__.py")
    folders = (*settings.fanout.folders, str(Path(file).resolve().parents[levels]))
    return replace(settings, fanout=replace(settings.fanout, folders=folders))


def drain_queue(settings: Settings, clock: Clock, queue_url: str, *, letters_max: int) -> Drained:
    """Record the messages of a dead-letter queue on their chunks. Raises `SettingsError`."""
    opened = open_store(settings, clock)
    with closing(opened.store), closing(open_queue(opened, clock)) as queue:
        from headgate.fanout.remote.sqs import recorder

        # Publishes the events of fan-outs that end here; it runs no workflow.
        fanouts = AppService(App("headgate"), opened, clock).fanouts
        return queue.drain(queue_url, recorder(fanouts.dead_letters), letters_max=letters_max)


def open_queue(opened: OpenedStore, clock: Clock) -> SqsQueue:
    """Return the client of SQS queues. Raises `SettingsError` without a region or without the extra `aws`."""
    store = opened.settings.store
    if store.aws_region is None:
        raise SettingsError("store.aws_region: SQS needs a region; set it, for instance to eu-west-1")
    with required_extra("aws", "boto3", "botocore"):
        from headgate.fanout.remote.sqs import SqsQueue
    return SqsQueue.connect(
        region=store.aws_region, endpoint_url=store.aws_endpoint_url, store=opened.store, clock=clock
    )


class _FanoutEvents:
    """Reports the end of a fan-out to the waiting execution and to the bus, and stalls and failures to the bus."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    def on_work_available(self, run_id: str) -> None:
        pass

    def closing_writes(self, fanout: Fanout, counts: Counts) -> list[Write]:
        return self.notice_writes(ENDED_EVENT, fanout, counts)

    def notice_writes(self, event_type: str, fanout: Fanout, counts: Counts) -> list[Write]:
        event = Event(
            id=self._service.ids.make("evt"),
            type=event_type,
            source="/headgate/fanout",
            subject=fanout.run_id,
            data=summary_json(fanout, counts),
            extensions={TRACEPARENT: fanout.traceparent} if fanout.traceparent else {},
        )
        return self._service.bus.event_writes(event, int(self._clock.seconds() * 1000))

    def on_noticed(self) -> None:
        self._service.bus.on_committed()

    def on_closed(self, fanout: Fanout) -> None:
        if fanout.waiter is not None:
            self._service.notifier.on_message_stored(fanout.waiter)
        self._service.bus.on_committed()
        if self._service.tracing is not None:
            attributes: dict[str, Attribute] = {"headgate.fanout": fanout.run_id, "headgate.chunks": fanout.chunks}
            created_ms = timestamp_ms(fanout.created_at)
            is_error = fanout.status is FanoutStatus.FAILED
            ended_ms = int(self._clock.seconds() * 1000)
            self._service.tracing.record(
                "fanout.run", fanout.traceparent, created_ms, ended_ms, attributes, is_error=is_error
            )


def open_forwarder(settings: Settings, clock: Clock) -> Forwarder:
    """Return the forwarder that sends events to the allowed destinations. Raises `SettingsError`."""
    forward = settings.forward
    files = HeaderFiles(forward.headers)
    files.check()
    allowed = Destinations(forward.private_hosts, forward.private_networks, forward.plain_http)
    return Forwarder(clock, destinations=allowed, headers_for=files.headers, timeout_seconds=forward.timeout_seconds)


@contextmanager
def connect(
    app: App,
    *,
    home: Path | str = ".headgate",
    work: bool = True,
    threads_max: int | None = None,
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[AppService]:
    """Run an app inside this process, on the store in `home`, or with `settings` on the home that they name.

    With `work`, this process runs workers until the block ends. Without it, executions can be started and queried,
    and another process has to run them.
    """
    clock = SystemClock()
    settings = settings or Settings.load({}, None, {"home": str(home)})
    opened = open_store(settings, clock)
    with closing(opened.store):
        service = AppService(app, opened, clock, open_task_backends(settings, clock, environ))
        chunks = Background(service.fanouts, processes=settings.fanout.processes if work else 0)
        if work:
            worker = settings.worker
            chunks.start()
            service.start(
                limits=worker_limits(worker if threads_max is None else replace(worker, threads_max=threads_max)),
                lease_seconds=worker.lease_seconds,
                turn_seconds=worker.turn_seconds,
            )
        try:
            yield service
        finally:
            service.stop()
            if work:
                chunks.stop()
            app.bind(None, None)


def worker_limits(settings: WorkerSettings) -> WorkerLimits:
    """Return the limits of a worker with these settings."""
    return WorkerLimits(
        threads_max=settings.threads_max,
        async_max=settings.async_max,
        isolated_max=settings.isolated_max,
        cached_max=settings.cached_max,
        prefetch_max=settings.prefetch_max,
        poll_seconds=settings.poll_seconds,
    )


def examine_queue(settings: Settings, clock: Clock, *, queue_url: str, environment: str) -> list[QueueFinding]:
    """Check the configuration of an SQS queue, its dead-letter queue and its Lambda. Raises `SettingsError`."""
    if settings.store.aws_region is None:
        raise SettingsError("store.aws_region: SQS needs a region; set it, for instance to eu-west-1")
    with required_extra("aws", "boto3", "botocore"):
        import boto3

        from headgate.fanout.doctor import QueueScope, check_setup, read_setup
    session = boto3.Session(region_name=settings.store.aws_region)
    scope = QueueScope(queue_url=queue_url, environment=environment)
    return check_setup(read_setup(session, scope, clock, endpoint_url=settings.store.aws_endpoint_url))


def read_deployment(settings: Settings, clock: Clock, *, name: str, hours: int) -> DeploymentFacts:
    """Read the state of a deployment on AWS. Raises `SettingsError` without a region, `StoreIOError` without AWS."""
    if settings.store.aws_region is None:
        raise SettingsError("store.aws_region: a deployment is in a region; give --region, for instance eu-west-1")
    with required_extra("aws", "boto3", "botocore"):
        import boto3

        from headgate.deployment.doctor import reader
    return reader.read_deployment(
        boto3.Session(region_name=settings.store.aws_region),
        clock,
        region=settings.store.aws_region,
        name=name,
        catalogue=ALL_TABLES,
        names=TableNames(settings.store.table_prefix, settings.store.table_names),
        hours=hours,
        endpoint_url=settings.store.aws_endpoint_url,
    )


def check_dynamodb_tables(settings: Settings, clock: Clock) -> list[str]:
    """Return one sentence for each difference between the tables and the catalogue. Changes nothing."""
    with closing(dynamodb_for_tables(settings, clock)) as store:
        return store.check_tables()


def create_dynamodb_tables(settings: Settings, clock: Clock) -> list[str]:
    """Create the missing tables, wait until they are active, and return their names."""
    with closing(dynamodb_for_tables(settings, clock)) as store:
        return store.create_tables()


def dynamodb_for_tables(settings: Settings, clock: Clock) -> DynamoStore:
    """Return the DynamoDB store without a home and its keys."""
    # Throw-away keys: describing tables signs nothing and must not create a home folder.
    keyring = Keyring.generate(clock)
    names = TableNames(settings.store.table_prefix, settings.store.table_names)
    spill = Spill(FolderBlobs(settings.home / BLOBS), clock)
    return _open_dynamodb(settings, names, clock, Cursors(keyring), spill)


def open_cache(
    settings: Settings, clock: Clock, *, answered: OnAnswered | None = None, peer_changes: PeerChanges = NO_PEERS
) -> Cache:
    """Return an in-memory cache, backed by Redis if the settings name one.

    `answered` receives the duration of each Redis call. `peer_changes` counts changes of this server's processes.
    """
    url, entries_max = settings.cache.redis_url, settings.cache.entries_max
    if url is None:
        return Cache(clock=clock, entries_max=entries_max, peer_changes=peer_changes)
    with required_extra("redis", "redis"):
        from headgate.store.cache.redis import RedisLayer
    layer: SharedLayer = RedisLayer(url=url.reveal(), clock=clock, namespace=_namespace(settings))
    if answered is not None:
        layer = TimedLayer(layer, clock, answered)
    return Cache(clock=clock, shared=layer, entries_max=entries_max, peer_changes=peer_changes)


def _namespace(settings: Settings) -> str:
    # A table prefix holds no colon, so two prefixes never produce the same key.
    prefix = settings.store.table_prefix
    return f"{settings.cache.namespace}{prefix}:" if prefix else settings.cache.namespace


def ping_redis(url: Secret) -> None:
    """Raise `TransientError` if Redis does not answer, `SettingsError` for a bad URL or a missing package."""
    with required_extra("redis", "redis"):
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    once = Retry(NoBackoff(), 0)
    try:
        client = redis.Redis.from_url(
            url.reveal(), socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS, retry=once
        )
        # Unknown URL options only fail when a connection object is made; this does not connect.
        client.connection_pool.make_connection()
    except (ValueError, TypeError):
        # Not chained: the parser's message can quote part of the password.
        raise SettingsError(
            "cache.redis_url: not a Redis URL, or it has an unknown option; write redis://user:password@host:6379/0"
        ) from None
    try:
        client.ping()
    except redis.RedisError as exc:
        raise TransientError(
            f"Redis does not answer ({type(exc).__name__}); start it or correct cache.redis_url"
        ) from exc
    finally:
        client.close()


def _open_blobs(settings: Settings) -> Blobs:
    store = settings.store
    if store.blob_bucket is None:
        return FolderBlobs(settings.home / BLOBS)
    with required_extra("aws", "boto3", "botocore"):
        from headgate.store.blobs.s3 import S3Blobs
    return S3Blobs.connect(
        region=_region(settings),
        endpoint_url=store.aws_endpoint_url,
        bucket=store.blob_bucket,
        prefix=store.blob_prefix,
    )


def _open_sqlite(settings: Settings, names: TableNames, clock: Clock, cursors: Cursors, spill: Spill) -> AnyStore:
    from headgate.store.sqlite.space_reserve import SpaceReserve
    from headgate.store.sqlite.store import SqliteStore, Synchronous

    def open_file() -> SqliteStore:
        return SqliteStore.open(
            database_path(settings),
            names=names,
            clock=clock,
            cursors=cursors,
            spill=spill,
            synchronous=Synchronous(settings.store.synchronous),
        )

    try:
        return open_file()
    except StoreFullError:
        if not SpaceReserve(settings.home).release():
            raise
        return open_file()


def ensure_space_reserve(settings: Settings) -> None:
    """Create the file that a start on a full disk deletes, if it is missing and there is room. SQLite only."""
    if settings.store.backend == "sqlite":
        from headgate.store.sqlite.space_reserve import SpaceReserve

        SpaceReserve(settings.home).ensure()


def _open_dynamodb(
    settings: Settings,
    names: TableNames,
    clock: Clock,
    cursors: Cursors,
    spill: Spill,
    observer: AttemptObserver | None = None,
) -> DynamoStore:
    with required_extra("aws", "boto3", "botocore"):
        from headgate.store.dynamodb.store import DynamoStore
    return DynamoStore.connect(
        region=_region(settings),
        endpoint_url=settings.store.aws_endpoint_url,
        names=names,
        clock=clock,
        cursors=cursors,
        spill=spill,
        deadline_seconds=settings.store.deadline_seconds,
        observer=observer,
    )


def all_items(opened: OpenedStore, table: Table, clock: Clock) -> Iterator[Item]:
    """Yield every live item of a table as stored. This is a full scan."""
    store, chosen = opened.store, opened.settings.store
    if chosen.backend == "sqlite":
        from headgate.store.sqlite import scan as sqlite_scan
        from headgate.store.sqlite.store import SqliteStore

        assert isinstance(store, SqliteStore), "opened by the same settings"
        names = TableNames(chosen.table_prefix, chosen.table_names)
        return sqlite_scan.items(store.read_sql, table, names, clock.seconds())
    return (plain_item(table, item) for item in _dynamo(opened).restored().items(table))


def measure_size(opened: OpenedStore) -> StoreSize | None:
    """Return the size of the store; None on DynamoDB, which has metrics of its own."""
    chosen, store = opened.settings.store, opened.store
    if chosen.backend != "sqlite":
        return None
    from headgate.store.sqlite.size import measure
    from headgate.store.sqlite.store import SqliteStore

    assert isinstance(store, SqliteStore), "opened by the same settings"
    names = TableNames(chosen.table_prefix, chosen.table_names)
    return measure(database_path(opened.settings), store.read_sql, names)


def make_usable(opened: OpenedStore, table: Table) -> list[str]:
    """Enable the TTL, stream and recovery that an AWS restore leaves out; return the faults that remain."""
    return [] if opened.settings.store.backend == "sqlite" else _dynamo(opened).restored().make_usable(table)


def _dynamo(opened: OpenedStore) -> DynamoStore:
    from headgate.store.dynamodb.store import DynamoStore

    assert isinstance(opened.store, ShardedStore), "opened by the same settings"
    assert isinstance(opened.store.store, DynamoStore), "opened by the same settings"
    return opened.store.store


def open_authority(settings: Settings, clock: Clock) -> Store:
    """Open the store that holds the writer lease of the regions. Raises `SettingsError` if none is configured."""
    region = settings.region
    if region.authority_home is not None:
        home = region.authority_home.expanduser().absolute()
        return open_store(replace(settings, home=home, store=StoreSettings()), clock).store
    if region.authority_aws_region is None:
        raise SettingsError("region.home: no regions are configured; set region.home, region.standby and the authority")
    names = TableNames("", {CONTROL.name: region.authority_table})
    chosen = replace(settings, store=replace(settings.store, aws_region=region.authority_aws_region))
    spill = Spill(FolderBlobs(settings.home / BLOBS), clock)
    return _open_dynamodb(chosen, names, clock, Cursors(Keyring.generate(clock)), spill)


def database_path(settings: Settings) -> Path:
    """Return the path of the SQLite file, which may not exist yet."""
    return settings.home / DATABASE


def keys_path(settings: Settings) -> Path:
    """Return the path of the keyring, which may not exist yet."""
    return settings.home / KEYS


def _region(settings: Settings) -> str:
    assert settings.store.aws_region is not None, "Settings.load refuses AWS without a region"
    return settings.store.aws_region


@contextmanager
def required_extra(extra: str, *modules: str) -> Iterator[None]:
    """Replace the import error of an optional dependency by the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name not in modules:
            raise
        raise SettingsError(
            f"{exc.name} is not installed, and the settings need it; run: pip install 'headgate[{extra}]'"
        ) from exc
