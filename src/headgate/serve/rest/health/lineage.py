"""Lineage over HTTP: who writes and reads what, what lies downstream, and events of OpenLineage and dbt."""

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
from headgate.serve.rest.health.lineage_specs import read_spec, registered_spec
from headgate.serve.rest.health.models import Name, PageQuery, complete

# Manifests of large projects are that large, and shrink to a tenth on the way.
ARTIFACTS_BYTES_MAX: Final = 128 * 1024 * 1024
_DATASET: Final = "/datasets/{dataset_urn}"
_READ: Final = rules.named(Permission.LINEAGE_READ, "path.dataset_urn")
_COLUMN: Final = Rule(Permission.LINEAGE_READ, Reach.FOUND)
_EVERY: Final = Rule(Permission.LINEAGE_READ, Reach.ALL)
# Those who send events speak of any dataset, also of ones that nobody has registered yet.
_INGEST: Final = Rule(Permission.LINEAGE_WRITE, Reach.ALL)
_SPEC: Final = Rule(Permission.LINEAGE_WRITE, Reach.FOUND)


class LineagePage(Struct, frozen=True):
    """Some writers or readers, and the token of the next page if there are more."""

    items: list[LineageEntry]
    next_page_token: str | None = None


class SpecQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Specs of which commit, or of which producer."""

    commit: Name = ""
    producer_id: Name = ""


class SpecPage(Struct, frozen=True):
    """Some specs, and the token of the next page if there are more."""

    items: list[LineageSpec]
    next_page_token: str | None = None


class DeadEventPage(Struct, frozen=True):
    """Some events that could not be carried out, and the token of the next page if there are more."""

    items: list[DeadEvent]
    next_page_token: str | None = None


class DbtUpload(Struct, forbid_unknown_fields=True, kw_only=True):
    """Artifacts of one invocation of dbt, as it wrote them."""

    manifest: Raw
    run_results: Raw = msgspec.field(default_factory=Raw)
    sources: Raw = msgspec.field(default_factory=Raw)
    namespace: str = ""


class FailedEvent(Struct, frozen=True):
    """An event of a batch that was not accepted, and whether it is worth sending again."""

    index: int
    reason: str
    retriable: bool


class BatchSummary(Struct, frozen=True, kw_only=True):
    """How many events of a batch were accepted."""

    received: int
    successful: int
    failed: int
    retriable: int
    non_retriable: int


class BatchReceipt(Struct, frozen=True, kw_only=True):
    """What became of a batch of events."""

    status: str
    summary: BatchSummary
    failed_events: list[FailedEvent]


def lineage_operations(health: HealthService) -> list[Operation]:
    """Return what can be asked of lineage."""
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
                "List who writes a dataset",
                self.writers,
                page,
                query=PageQuery,
                rule=_READ,
            ),
            Operation(
                "GET",
                f"{_DATASET}/readers",
                "List who reads a dataset",
                self.readers,
                page,
                query=PageQuery,
                rule=_READ,
            ),
            Operation(
                "GET", f"{_DATASET}/downstream", "Show what depends on a dataset", self.downstream, reach, rule=_READ
            ),
            Operation(
                "GET", f"{_DATASET}/upstream", "Show what a dataset depends on", self.upstream, reach, rule=_READ
            ),
            Operation(
                "GET",
                "/columns/{column_urn}/writers",
                "List who writes a column",
                self.column_writers,
                page,
                query=PageQuery,
                rule=_COLUMN,
            ),
            Operation(
                "GET",
                "/columns/{column_urn}/readers",
                "List who reads a column",
                self.column_readers,
                page,
                query=PageQuery,
                rule=_COLUMN,
            ),
            Operation(
                "GET",
                "/lineage/producers/{producer_id}",
                "Show what a producer writes and reads",
                self.producer,
                {200: ProducerLineage},
                rule=_EVERY,
            ),
            Operation(
                "PUT",
                "/lineage/specs/{spec_id}",
                "Say what a producer writes and reads",
                self.update,
                {200: Applied},
                body_forms={"application/json": LineageSpec},
                rule=_SPEC,
            ),
            Operation(
                "GET",
                "/lineage/specs",
                "List the specs of a commit or of a producer",
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
        asked = call.query
        if bool(asked.commit) == bool(asked.producer_id):
            raise InvalidPayloadError("specs: give a commit or a producer_id, one of them")
        ask = self._lineage.specs_of_commit if asked.commit else self._lineage.specs
        page = ask(asked.commit or asked.producer_id, limit=asked.page_size, cursor=asked.page_token)
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
    """Events as OpenLineage's own clients send them: accepted durably at once, carried out later."""

    def __init__(self, health: HealthService) -> None:
        self._inbox = health.ingestion.inbox
        self._ingestion = health.ingestion

    def operations(self) -> list[Operation]:
        dead = "/lineage/dead-letters"
        return [
            Operation(
                "POST",
                "/lineage",
                "Take an OpenLineage event",
                self.accept,
                {201: Receipt},
                body_forms={"application/json": dict[str, Any]},
                rule=_INGEST,
            ),
            Operation(
                "POST",
                "/lineage/batch",
                "Take many OpenLineage events",
                self.accept_batch,
                {200: BatchReceipt},
                body_forms={"application/json": list[dict[str, Any]]},
                rule=_INGEST,
            ),
            Operation(
                "POST",
                "/lineage/dbt",
                "Take artifacts of dbt",
                self.dbt,
                {200: DbtReport},
                body_forms={"application/json": DbtUpload},
                rule=_INGEST,
            ),
            Operation(
                "GET",
                dead,
                "List events that could not be carried out",
                self.dead,
                {200: DeadEventPage},
                query=PageQuery,
                rule=_EVERY,
            ),
            Operation(
                "POST",
                f"{dead}/{{event_id}}/redrive",
                "Try such an event again",
                self.redrive,
                {200: Receipt},
                rule=_INGEST,
            ),
            Operation(
                "DELETE", f"{dead}/{{event_id}}", "Throw such an event away", self.discard, {204: None}, rule=_INGEST
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
    """Return a body that may have been compressed. Raises `InvalidPayloadError` or `PayloadTooLargeError`."""
    encoding = call.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return call.content
    if encoding != "gzip":
        raise InvalidPayloadError(f"Content-Encoding {encoding[:20]!r}: send it as it is, or with gzip")
    try:
        unpacked = zlib.decompressobj(wbits=31)
        content = unpacked.decompress(call.content, bytes_max + 1)
    except (zlib.error, gzip.BadGzipFile) as exc:
        raise InvalidPayloadError(f"body: it is not gzip ({exc})") from exc
    if len(content) > bytes_max:
        raise PayloadTooLargeError(f"body: more than {bytes_max:,} bytes once it is unpacked; send less at a time")
    if not unpacked.eof:
        raise InvalidPayloadError("body: the gzip is cut short")
    return content
