"""Fan-out container: the services of the fan-out functions, opened once per process."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from headgate.aws.function_home import prepare_home
from headgate.aws.function_metrics import FunctionMetrics
from headgate.aws.function_settings import read_fanout_settings, read_settings
from headgate.bootstrap.key_check import check_function_keys
from headgate.bootstrap.store import AppService, OpenedStore, open_queue, open_store
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.embedded_metrics import store_source
from headgate.errors import InvalidPayloadError
from headgate.fanout.core.split_resumption import SplitResumption
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.rows import Fanout, timestamp
from headgate.fanout.remote.invoked_chunks import InvokedChunks
from headgate.fanout.remote.sdk import ChunkWorker
from headgate.fanout.remote.sqs import DeadLetter, recorder
from headgate.fanout.repair.retention import Purge
from headgate.fanout.submissions import MANIFEST_BYTES_MAX, manifest_id, read_manifest
from headgate.file_roots import file_roots
from headgate.pipelines.lifecycle.aws_errors import aws_request
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

# Functions read items from manifests, and no files.
_NO_FILES: Final = file_roots([], [], project=None)


class FanoutContainer:
    """The opened store and services. Each function uses one part, created on first use."""

    def __init__(
        self,
        opened: OpenedStore,
        service: AppService,
        clients: AwsClients,
        clock: Clock,
        packages: Sequence[str],
        metrics: FunctionMetrics,
    ) -> None:
        """Functions of `packages` may be chunk handlers."""
        self.metrics = metrics
        self.opened = opened
        self.service = service
        self.clients = clients
        self._clock = clock
        self._packages = tuple(packages)

    @cached_property
    def chunks(self) -> InvokedChunks:
        """Runs chunks."""
        access = LocalAccess(packages=self._packages, files=_NO_FILES)
        queue = open_queue(self.opened, self._clock)
        worker = ChunkWorker(self.service.fanouts.tracker)
        url = self.opened.settings.fanout.queue_url
        return InvokedChunks(worker, access, later=queue.postpone, queue_url=url)

    def split(self, bucket: str, key: str, sequencer: str) -> Fanout:
        """Split the fan-out of a manifest. An event that is delivered twice splits once.

        Raises `InvalidPayloadError` and `DefinitionError` for an invalid manifest, and `TransientError`.
        """
        location = f"s3://{bucket}/{key}"
        with aws_request(location):
            found = self.clients.client("s3").get_object(Bucket=bucket, Key=key)
            if found["ContentLength"] > MANIFEST_BYTES_MAX:
                raise InvalidPayloadError(f"manifest {location}: larger than {MANIFEST_BYTES_MAX:,} bytes")
            content: bytes = found["Body"].read()
        asked = read_manifest(content, location, _NO_FILES)
        run_id = asked.run_id or manifest_id(key, f"{location}\0{sequencer}\0{hashlib.sha256(content).hexdigest()}")
        return self.service.fanouts.splitter.split(asked.order, asked.source, run_id=run_id)

    def record(self, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Record dead letters on their chunks. Returns the reason for each message to keep, by message id."""
        record = recorder(self.service.fanouts.dead_letters)
        reasons = {each["messageId"]: record(_letter(each)) for each in records}
        return {message_id: reason for message_id, reason in reasons.items() if reason is not None}

    def sweep(self) -> int:
        """Maintain the open fan-outs: send what was not sent, resume splits, delete old ones. Returns their number."""
        fanouts = self.service.fanouts
        SplitResumption(fanouts.queries, fanouts.splitter, _NO_FILES, has_files=False).run_once()
        seen = fanouts.new_maintenance().run_once()
        Purge(fanouts.store, fanouts.clock).purge()
        return seen

    def close(self) -> None:
        """Close all connections."""
        self.clients.close()
        self.opened.store.close()


def _letter(record: Mapping[str, Any]) -> DeadLetter:
    attributes = record.get("attributes", {})
    first_ms = attributes.get("ApproximateFirstReceiveTimestamp")
    return DeadLetter(
        body=record["body"],
        message_id=record["messageId"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 0)),
        first_received_at=None if first_ms is None else timestamp(int(first_ms)),
    )


@functools.cache
def fanout_container() -> FanoutContainer:
    """Return the container of this process, opened from its environment.

    Raises `SettingsError`; the next invocation tries again.
    """
    # The entry point of the process: only here the environment is read.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return open_fanout_container(environ, SystemClock())


def open_fanout_container(environ: Mapping[str, str], clock: Clock) -> FanoutContainer:
    """Open the store and the services. Raises `SettingsError`, and `TransientError` for an unreachable secret."""
    functions, settings = read_fanout_settings(environ), read_settings(environ)
    clients = AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)
    prepare_home(settings, clients, keys_secret_arn=functions.keys_secret_arn)
    opened = open_store(settings, clock)
    if functions.keys_secret_arn:
        check_function_keys(opened)
    # Publishes the events of fan-outs that end here; it runs no workflow.
    service = AppService(App("headgate"), opened, clock)
    module = functions.headgate_app.partition(":")[0]
    packages = [*([module.partition(".")[0]] if module else []), *settings.fanout.handlers]
    metrics = FunctionMetrics(environ, clock, [store_source(opened.store.stats)] if functions.custom_metrics else [])
    return FanoutContainer(opened, service, clients, clock, packages, metrics)
