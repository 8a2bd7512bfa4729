"""Trigger registry: all kinds of triggers behind the contract that pipelines use.

It takes orders with the config as defined, fills in templates and secrets, calls the kind, and removes secrets from
everything that comes back.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.client.client import Client
from headgate.errors import DefinitionError, NotFoundError, SettingsError
from headgate.fanout.service import FanoutService
from headgate.triggers import templates
from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.aws.emr import EmrKind
from headgate.triggers.aws.emr_serverless import EmrServerlessKind
from headgate.triggers.aws.glue import GlueKind
from headgate.triggers.aws.lambda_function import LambdaKind
from headgate.triggers.aws.step_function import StepFunctionKind
from headgate.triggers.config import read
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobOutput,
    PollResult,
    Started,
    TriggerFailedError,
    TriggerKind,
    TriggerOrder,
    scrubbed,
)
from headgate.triggers.http.airflow import AirflowKind
from headgate.triggers.http.client import TriggerHttpClient
from headgate.triggers.http.databricks import DatabricksKind
from headgate.triggers.http.request import HttpKind
from headgate.triggers.kinds import check_config, late_names
from headgate.triggers.local.command import CommandKind
from headgate.triggers.local.fanout import FanoutKind
from headgate.triggers.local.workflow import WorkflowKind
from headgate.triggers.plugins import TriggerTools, open_triggers
from headgate.triggers.project_paths import with_project_paths
from headgate.triggers.secret_sources import SecretSources


class TriggerKinds:
    """All kinds of triggers by name; implements `contract.Trigger`. Safe to use from many threads."""

    def __init__(
        self, kinds: Iterable[TriggerKind[Any]], secrets: SecretSources, *, project: Path | None = None
    ) -> None:
        """`project` is the folder that relative paths mean; None: there is none."""
        self._kinds = {kind.name: kind for kind in kinds}
        self._secrets = secrets
        self._project = project

    @property
    def names(self) -> tuple[str, ...]:
        """The types that a definition may name."""
        return tuple(sorted(self._kinds))

    def is_local(self, type: str) -> bool:
        """Whether triggers of a type may come from the project folder only. Raises `DefinitionError`."""
        return self._kind(type).is_local

    def check(self, type: str, config: dict[str, Any], *, date_example: str | None = None) -> None:
        """Raise `DefinitionError` for a trigger that could never be started, naming the field and the allowed values.

        `date_example` is a date of the pipeline's period; with it, date parts that such dates lack are refused.
        """
        check_config(self._kind(type), config, self._secrets, date_example=date_example)

    def start(self, order: TriggerOrder) -> Started:
        """Start a job, or find the one that was started for this key. Raises `TriggerFailedError`.

        A local trigger starts only from a definition of the project folder: the row may have been altered since it was
        stored.
        """
        job = self._job(order)
        if self._kinds[order.type].is_local and not order.is_from_folder:
            raise TriggerFailedError(
                f"run {order.key}: a trigger of type {order.type} runs a program on the server, and the definition of "
                f"pipeline {order.pipeline} was not loaded from its project folder; put its file there and reload the "
                "server",
                FailureCategory.PERMANENT,
            )
        with _without(job.secrets):
            started = self._kinds[order.type].start(job)
        clean = {name: scrubbed(value, job.secrets) for name, value in started.metadata.items()}
        return replace(started, metadata=clean)

    def poll(self, order: TriggerOrder, metadata: Mapping[str, str]) -> PollResult:
        """Return the state of a job. Raises `TriggerFailedError` if it is unknown: the job may be running."""
        job = self._job(order)
        with _without(job.secrets):
            polled = self._kinds[order.type].poll(job, metadata)
        return replace(polled, reason=scrubbed(polled.reason, job.secrets))

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        """Cancel a job; one that has ended is left alone. Raises `TriggerFailedError`."""
        job = self._job(order)
        with _without(job.secrets):
            self._kinds[order.type].cancel(job, metadata)

    def read_output(self, order: TriggerOrder, *, offset: int, limit: int) -> JobOutput:
        """Return a part of the output of a job, without its secrets. A negative offset counts from the end.

        Raises `NotFoundError` if the output is not on this machine, `TriggerFailedError` if a secret of a running job
        cannot be read, so that it could not be removed.
        """
        kind = self._kind(order.type)
        if not isinstance(kind, CommandKind):
            raise NotFoundError(f"run {order.run_id}: the output of {order.type} jobs is not on this server")
        found = kind.read_output(order.key, lambda: self._job(order).secrets, offset=offset, limit=limit)
        if found is None:
            raise NotFoundError(
                f"run {order.run_id}: its job has no output on this machine; it has not started, ran on another "
                "machine, or ended too long ago"
            )
        return found

    def _kind(self, type: str) -> TriggerKind[Any]:
        kind = self._kinds.get(type)
        if kind is None:
            raise DefinitionError(f"trigger type {type[:40]!r}: there is none; use one of {', '.join(self.names)}")
        return kind

    def _job(self, order: TriggerOrder) -> Job[Any]:
        """Return the order with its config filled in. Errors are those of the definition, so they are PERMANENT."""
        try:
            kind = self._kind(order.type)
            late = late_names(kind)
            templates.check(order.config, kind.secret_fields, self._secrets, late=late)
            values = templates.order_values(order) | {name: f"${{{name}}}" for name in late}
            filled, secrets = templates.render(order.config, values, self._secrets.read)
            if order.callback_token:
                secrets = (*secrets, order.callback_token)
        except DefinitionError as exc:
            raise TriggerFailedError(f"run {order.key}: {exc}", FailureCategory.PERMANENT) from exc
        try:
            if self._project is not None:
                filled = with_project_paths(kind.name, filled, self._project)
            config = read(kind.name, kind.config_type, filled)
        except DefinitionError as exc:
            # Not chained: the cause may quote a secret.
            reason = scrubbed(f"run {order.key}: {exc}", secrets)
            raise TriggerFailedError(reason, FailureCategory.PERMANENT) from None
        return Job(order, config, secrets)


def trigger_kinds(  # noqa: PLR0913 - what the kinds need is joined here
    *,
    clock: Clock,
    environ: Mapping[str, str],
    secrets: SecretSources,
    commands_folder: Path,
    destinations: Destinations,
    aws: AwsClients,
    client: Client | None = None,
    fanouts: FanoutService | None = None,
    outbound: TriggerHttpClient | None = None,
    project: Path | None = None,
) -> TriggerKinds:
    """Return all kinds of triggers. Without `client` or `fanouts`, there are no workflow or fan-out triggers.

    Relative paths in their configs mean the `project` folder.
    """
    requests = outbound if outbound is not None else open_outbound(clock, destinations)
    kinds: list[TriggerKind[Any]] = [
        CommandKind(clock, commands_folder, environ),
        HttpKind(requests, clock),
        AirflowKind(requests),
        DatabricksKind(requests),
        GlueKind(aws),
        EmrKind(aws),
        EmrServerlessKind(aws),
        StepFunctionKind(aws),
        LambdaKind(aws),
    ]
    if client is not None:
        kinds.append(WorkflowKind(client))
    if fanouts is not None:
        kinds.append(FanoutKind(fanouts))
    kinds += open_triggers(TriggerTools(clock, requests), reserved=[kind.name for kind in kinds])
    return TriggerKinds(kinds, secrets, project=project)


def open_outbound(
    clock: Clock, destinations: Destinations, *, resolve: Resolve = system_resolve, tls: ssl.SSLContext | None = None
) -> TriggerHttpClient:
    """Return the HTTP client of triggers for the allowed destinations."""
    return TriggerHttpClient(clock, destinations, resolve=resolve, tls=tls)


@contextmanager
def _without(secrets: tuple[str, ...]) -> Iterator[None]:
    """Remove secrets from the error that the block raises, and drop its cause, which may quote them."""
    try:
        yield
    except TriggerFailedError as exc:
        clean = scrubbed(str(exc), secrets)
        if not secrets:
            raise
        raise TriggerFailedError(clean, exc.category, was_started=exc.was_started) from None
    except SettingsError as exc:
        raise TriggerFailedError(scrubbed(str(exc), secrets), FailureCategory.PERMANENT) from exc
