"""Task backends bootstrap: builds from the settings what Tasks of state machines may call outside of Headgate.

AWS and HTTP clients are made with the first call: most processes never make one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headgate.asl.tasks.aws_calls import AwsCalls
from headgate.asl.tasks.http_calls import HttpCalls
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.asl.tasks.resource_map import ResourceMap
from headgate.asl.tasks.resource_map_file import load_resource_map
from headgate.asl.tasks.task_access import OwnNames, TaskAccess
from headgate.asl.tasks.task_backends import TaskBackends
from headgate.asl.tasks.user_tables import DeclaredTables
from headgate.bootstrap.task_commands import TaskCommands
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.bus.forward_headers import HeaderFiles
from headgate.durable.bus.outbound_http import OutboundHttp
from headgate.errors import SettingsError
from headgate.file_roots import usable_project
from headgate.settings import Settings
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.table_names import TableNames
from headgate.triggers.aws.clients import AwsClients

if TYPE_CHECKING:
    import boto3

_ROLE_SESSION: Final = "headgate-tasks"


def open_task_backends(
    settings: Settings, clock: Clock, environ: Mapping[str, str] | None = None, *, own: Sequence[str] = ()
) -> TaskBackends:
    """Return what Tasks may call. Commands inherit parts of `environ`; `own` names further queues of Headgate.

    Raises `SettingsError` for an invalid setting, and `DefinitionError` for an invalid resource map.
    """
    tasks = settings.tasks
    if tasks.resources is None and not tasks.aws:
        return TaskBackends()
    access = TaskAccess(tasks.aws, own_names(settings, own))
    forward = settings.forward
    destinations = Destinations(forward.private_hosts, forward.private_networks, forward.plain_http)
    return TaskBackends(
        resources=resource_map(settings, tasks.resources),
        access=access,
        aws=None if access.is_empty else AwsCalls(TaskClients(settings), access),
        http=HttpCalls(OutboundHttp(clock, destinations), HeaderFiles(forward.headers).headers),
        commands=TaskCommands(clock, settings.home, environ or {}, usable_project(settings.project)),
    )


def local_tasks(settings: Settings) -> LocalTasks:
    """Return which Tasks can run with these settings, without opening a store. Raises as `open_task_backends` does."""
    tasks, store = settings.tasks, settings.store
    names = TableNames(store.table_prefix, store.table_names)
    access = TaskAccess(tasks.aws, own_names(settings))
    return LocalTasks(resource_map(settings, tasks.resources), access, DeclaredTables(tasks.tables, names))


def resource_map(settings: Settings, file: Path | None) -> ResourceMap:
    """Return the resource map of the project. Raises `SettingsError`, `DefinitionError`."""
    return ResourceMap() if file is None else load_resource_map(file, usable_project(settings.project))


def own_names(settings: Settings, more: Sequence[str] = ()) -> OwnNames:
    """Return the names of what belongs to Headgate itself, in the store and in the account."""
    store = settings.store
    names = TableNames(store.table_prefix, store.table_names)
    tables = (name for table in ALL_TABLES for name in (table.name, names.physical(table)))
    others = (store.blob_bucket, settings.pipelines.state_machine_arn, settings.region.authority_table)
    return OwnNames.of((*tables, *others, *more))


class TaskClients:
    """Clients of AWS for Tasks, with the role and the endpoint of the settings. Safe to use from many threads."""

    def __init__(self, settings: Settings) -> None:
        tasks, store = settings.tasks, settings.store
        self._region = tasks.aws_region or store.aws_region
        self._endpoint_url = tasks.aws_endpoint_url or store.aws_endpoint_url
        self._role = tasks.aws_role

    def client(self, service: str, *, read_seconds: float, tries: int) -> Any:  # noqa: ANN401 - a client of boto3
        """Return a client. Raises `SettingsError`; `ValueError` for a service that boto3 does not have."""
        clients, names = self._opened
        if service not in names:
            raise ValueError(service)
        return clients.client(names[service], read_seconds=read_seconds, tries=tries)

    @functools.cached_property
    def _opened(self) -> tuple[AwsClients, dict[str, str]]:
        """The clients, and the names of services as boto3 has them, by those without hyphens."""
        try:
            import boto3
        except ModuleNotFoundError as exc:
            raise SettingsError(
                "tasks.aws: boto3 is not installed, and calls of AWS need it; run: pip install 'headgate[aws]'"
            ) from exc
        session = boto3.Session(region_name=self._region)
        services = session.get_available_services()
        names = {form: name for name in services for form in (name, name.replace("-", ""))}
        if self._role is not None:
            session = _with_role(session, self._role, self._region, self._endpoint_url)
        return AwsClients(region=self._region, endpoint_url=self._endpoint_url, session=session), names


def _with_role(source: boto3.Session, role: str, region: str | None, endpoint_url: str | None) -> boto3.Session:
    """Return a session with the credentials of a role, which are renewed before they expire."""
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.session import Session

    make: Any = source.client
    fetcher = AssumeRoleCredentialFetcher(
        # The credentials it is given are those of the session that makes the client.
        client_creator=lambda service, **_: make(service, region_name=region, endpoint_url=endpoint_url),
        source_credentials=source.get_credentials(),
        role_arn=role,
        extra_args={"RoleSessionName": _ROLE_SESSION},
    )
    assumed: Any = Session()
    assumed._credentials = DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")
    return boto3.Session(botocore_session=assumed, region_name=region)
