"""Lineage API: writers, readers, upstream and downstream; OpenLineage events and dbt artifacts."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from headgate import typed_decode
from headgate.auth import rules
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.errors import InvalidPayloadError, PayloadTooLargeError
from headgate.health.ingest.inbox import DeadEvent, Receipt
from headgate.health.ingest.service import DbtReport
from headgate.health.lineage.blast_radius import BlastRadius
from headgate.health.lineage.rows import LineageEntry
from headgate.health.lineage.service import Applied, ProducerLineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model import urns
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation, json_object
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rest.health.lineage_specs import SpecIn, read_spec, registered_spec
from headgate.serve.rest.health.models import Name, PageQuery, complete

# Manifests of large projects are this large, and compress to a tenth.
ARTIFACTS_BYTES_MAX: Final = 128 * 1024 * 1024
_DATASET: Final = "/datasets/{dataset_urn}"
_READ: Final = rules.named(Permission.LINEAGE_READ, "path.dataset_urn")
_COLUMN: Final = Rule(Permission.LINEAGE_READ, Reach.FOUND)
_EVERY: Final = Rule(Permission.LINEAGE_READ, Reach.ALL)
# Event senders may name any dataset, also unregistered ones.
_INGEST: Final = Rule(Permission.LINEAGE_WRITE, Reach.ALL)
_SPEC: Final = Rule(Permission.LINEAGE_WRITE, Reach.FOUND)


class LineagePage(Struct, frozen=True):
    """A page of writers or readers."""

    items: list[LineageEntry]
    next_page_token: str | None = None


class SpecQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Filter of specs by commit or producer."""

    commit: Name = ""
    producer_id: Name = ""


class SpecPage(Struct, frozen=True):
    """A page of specs."""

    items: list[LineageSpec]
    next_page_token: str | None = None


class DeadEventPage(Struct, frozen=True):
    """A page of failed events."""

    items: list[DeadEvent]
    next_page_token: str | None = None


class DbtUpload(Struct, forbid_unknown_fields=True, kw_only=True):
    """Artifacts of one dbt invocation."""

    manifest: Raw
    run_results: Raw = msgspec.field(default_factory=Raw)
    sources: Raw = msgspec.field(default_factory=Raw)
    catalog: Raw = msgspec.field(default_factory=Raw)
    namespace: str = ""


class FailedEvent(Struct, frozen=True):
    """A rejected event of a batch, and whether to retry it."""

    index: int
    reason: str
    retriable: bool


class BatchSummary(Struct, frozen=True, kw_only=True):
    """Counts of a batch of events."""

    received: int
    successful: int
    failed: int
    retriable: int
    non_retriable: int


class BatchReceipt(Struct, frozen=True, kw_only=True):
    """Result of a batch of events."""

    status: str
    summary: BatchSummary
    failed_events: list[FailedEvent]


def lineage_operations(health: HealthService) -> list[Operation]:
    """Return the operations on lineage."""
    return [*_Lineage(health).operations(), *_Events(health).operations()]


class _Lineage:
    def __init__(self, health: HealthService) -> None:
        self._lineage = health.lineage
        self._registered = health.registered
        self._blast_radii = health.blast_radii
        self._read = NamedDatasets(health, Permission.LINEAGE_READ)

    def operations(self) -> list[Operation]:
        page, reach = {200: LineagePage}, {200: BlastRadius}
        return [
            Operation(
                "GET",
                f"{_DATASET}/writers",
                "List writers of a dataset",
                self.writers,
                page,
                query=PageQuery,
                rule=_READ,
            ),
            Operation(
                "GET",
                f"{_DATASET}/readers",
                "List readers of a dataset",
                self.readers,
                page,
                query=PageQuery,
                rule=_READ,
            ),
            Operation(
                "GET", f"{_DATASET}/downstream", "Show downstream of a dataset", self.downstream, reach, rule=_READ
            ),
            Operation("GET", f"{_DATASET}/upstream", "Show upstream of a dataset", self.upstream, reach, rule=_READ),
            Operation(
                "GET",
                "/columns/{column_urn}/writers",
                "List writers of a column",
                self.column_writers,
                page,
                query=PageQuery,
                rule=_COLUMN,
            ),
            Operation(
                "GET",
                "/columns/{column_urn}/readers",
                "List readers of a column",
                self.column_readers,
                page,
                query=PageQuery,
                rule=_COLUMN,
            ),
            Operation(
                "GET",
                "/lineage/producers/{producer_id}",
                "Show lineage of a producer",
                self.producer,
                {200: ProducerLineage},
                rule=_EVERY,
            ),
            Operation(
                "PUT",
                "/lineage/specs/{spec_id}",
                "Update lineage of a producer",
                self.update,
                {200: Applied},
                body_forms={"application/json": SpecIn},
                rule=_SPEC,
            ),
            Operation(
                "GET",
                "/lineage/specs",
                "List specs of a commit or producer",
                self.specs,
                {200: SpecPage},
                query=SpecQuery,
                rule=_EVERY,
            ),
            Operation("GET", "/lineage/specs/{spec_id}", "Show a spec", self.spec, {200: LineageSpec}, rule=_EVERY),
        ]

    def writers(self, call: Call[None, PageQuery]) -> Answer:
        return self._page(call, call.path["dataset_urn"], "writers")

    def readers(self, call: Call[None, PageQuery]) -> Answer:
        return self._page(call, call.path["dataset_urn"], "readers")

    def column_writers(self, call: Call[None, PageQuery]) -> Answer:
        return self._page(call, self._read.column(call.path["column_urn"], call.principal), "column_writers")

    def column_readers(self, call: Call[None, PageQuery]) -> Answer:
        return self._page(call, self._read.column(call.path["column_urn"], call.principal), "column_readers")

    def _page(self, call: Call[None, PageQuery], urn: str, question: str) -> Answer:
        ask = getattr(self._lineage, question)
        found = ask(urn, limit=call.query.page_size, cursor=call.query.page_token)
        return Answer(LineagePage(found.entries, found.cursor))

    def downstream(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._blast_radii.downstream(call.path["dataset_urn"]))

    def upstream(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._blast_radii.upstream(call.path["dataset_urn"]))

    def producer(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._lineage.by_producer(call.path["producer_id"]))

    def specs(self, call: Call[None, SpecQuery]) -> Answer:
        query = call.query
        if bool(query.commit) == bool(query.producer_id):
            raise InvalidPayloadError("specs: set one of commit and producer_id")
        ask = self._lineage.specs_of_commit if query.commit else self._lineage.specs
        page = ask(query.commit or query.producer_id, limit=query.page_size, cursor=query.page_token)
        return Answer(complete(SpecPage(page.specs, page.cursor)))

    def spec(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(complete(self._lineage.spec(call.path["spec_id"])))

    def update(self, call: Call[None, NoQuery]) -> Answer:
        spec = registered_spec(read_spec(json_object(call.content), call.path["spec_id"]), self._registered)
        for urn in (*spec.dataset_reads, *spec.dataset_writes):
            require(call.principal, Permission.LINEAGE_WRITE, urn)
        for column in (*spec.column_reads, *spec.column_writes):
            require(call.principal, Permission.LINEAGE_WRITE, urns.column(column).dataset_urn)
        return Answer(self._lineage.update(spec))


class _Events:
    """Events as OpenLineage clients send them: accepted durably, processed later."""

    def __init__(self, health: HealthService) -> None:
        self._inbox = health.ingestion.inbox
        self._ingestion = health.ingestion

    def operations(self) -> list[Operation]:
        dead = "/lineage/dead-letters"
        return [
            Operation(
                "POST",
                "/lineage",
                "Accept an OpenLineage event",
                self.accept,
                {201: Receipt},
                body_forms={"application/json": dict[str, Any]},
                rule=_INGEST,
            ),
            Operation(
                "POST",
                "/lineage/batch",
                "Accept a batch of OpenLineage events",
                self.accept_batch,
                {200: BatchReceipt},
                body_forms={"application/json": list[Any]},
                rule=_INGEST,
            ),
            Operation(
                "POST",
                "/lineage/dbt",
                "Accept dbt artifacts",
                self.dbt,
                {200: DbtReport},
                body_forms={"application/json": DbtUpload},
                rule=_INGEST,
            ),
            Operation(
                "GET",
                dead,
                "List failed events",
                self.dead,
                {200: DeadEventPage},
                query=PageQuery,
                rule=_EVERY,
            ),
            Operation(
                "POST",
                f"{dead}/{{event_id}}/redrive",
                "Retry a failed event",
                self.redrive,
                {200: Receipt},
                rule=_INGEST,
            ),
            Operation(
                "DELETE", f"{dead}/{{event_id}}", "Discard a failed event", self.discard, {204: None}, rule=_INGEST
            ),
        ]

    def accept(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._inbox.accept(_content(call)), 201)

    def accept_batch(self, call: Call[None, NoQuery]) -> Answer:
        found = self._inbox.accept_batch(_content(call))
        failed = [FailedEvent(each.index, each.reason, each.is_retriable) for each in found.refusals]
        retriable = sum(each.retriable for each in failed)
        summary = BatchSummary(
            received=found.received,
            successful=found.accepted,
            failed=len(failed),
            retriable=retriable,
            non_retriable=len(failed) - retriable,
        )
        return Answer(
            BatchReceipt(status="partial_success" if failed else "success", summary=summary, failed_events=failed)
        )

    def dbt(self, call: Call[None, NoQuery]) -> Answer:
        try:
            body = typed_decode.from_json(_content(call, ARTIFACTS_BYTES_MAX), DbtUpload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidPayloadError(f"body: {exc}") from exc
        report = self._ingestion.dbt(
            bytes(body.manifest),
            run_results=_given(body.run_results),
            sources=_given(body.sources),
            catalog=_given(body.catalog),
            namespace=body.namespace,
        )
        return Answer(report)

    def dead(self, call: Call[None, PageQuery]) -> Answer:
        found = self._inbox.dead(limit=call.query.page_size, cursor=call.query.page_token)
        return Answer(DeadEventPage(found.events, found.cursor))

    def redrive(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(self._inbox.redrive(call.path["event_id"]))

    def discard(self, call: Call[None, NoQuery]) -> Answer:
        self._inbox.discard(call.path["event_id"])
        return Answer(status=204)


def _given(part: Raw) -> bytes | None:
    content = bytes(part)
    return None if content in (b"", b"null") else content


def _content(call: Call[Any, Any], bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Decompress a body if needed. Raises `InvalidPayloadError` or `PayloadTooLargeError`."""
    encoding = call.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return call.content
    if encoding != "gzip":
        raise InvalidPayloadError(f"Content-Encoding {encoding[:20]!r}: supported are identity and gzip")
    try:
        unpacked = zlib.decompressobj(wbits=31)
        content = unpacked.decompress(call.content, bytes_max + 1)
    except (zlib.error, gzip.BadGzipFile) as exc:
        raise InvalidPayloadError(f"body: not gzip ({exc})") from exc
    if len(content) > bytes_max:
        raise PayloadTooLargeError(f"body: more than {bytes_max:,} bytes uncompressed; send less at a time")
    if not unpacked.eof:
        raise InvalidPayloadError("body: truncated gzip")
    return content
