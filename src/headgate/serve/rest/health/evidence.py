"""Evidence API: put evidence, read it from cache or archive, and list it by dataset."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate.auth import rules
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.errors import NotFoundError, UserError
from headgate.health.evidence.cache import Contrast
from headgate.health.evidence.rows import Evidence, from_outside, result
from headgate.health.evidence.writes import Decision, Put
from headgate.health.model import timestamps
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation, json_object
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rest.health.models import PageSize, complete
from headgate.serve.rest.parameters import PageToken, Timestamp

BATCH_MAX: Final = 1000
_OF_DATASET: Final = "/datasets/{dataset_urn}/evidence"


class EvidenceBatch(Struct, forbid_unknown_fields=True):
    """Evidence to put, independently of each other."""

    evidence: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=BATCH_MAX)]


class EvidenceQuery(Struct, forbid_unknown_fields=True):
    """Whether to search the archive, too."""

    include_archived: bool = True


class OfDatasetQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """Filter by time and result, and page."""

    since: Timestamp | None = None
    until: Timestamp | None = None
    result: str | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 50


class EvidenceList(Struct, frozen=True):
    """A page of evidence, and how many rows were shed since the server started."""

    items: list[Evidence]
    next_page_token: str | None = None
    shed: int = 0


class Taken(Struct, frozen=True, kw_only=True):
    """Outcome of one put."""

    stored: bool
    decision: Decision
    evidence_id: str
    expires_at: str | None
    error: str | None


class TakenBatch(Struct, frozen=True, kw_only=True):
    """Outcomes of a batch, in order."""

    results: list[Taken]
    stored: int
    sampled_out: int
    failed: int


def evidence_operations(health: HealthService) -> list[Operation]:
    """Return the operations on evidence."""
    return _Evidence(health).operations()


class _Evidence:
    def __init__(self, health: HealthService) -> None:
        self._health = health
        self._evidence = health.evidence
        self._written = NamedDatasets(health, Permission.EVIDENCE_WRITE)

    def operations(self) -> list[Operation]:
        offered = Rule(Permission.EVIDENCE_WRITE, Reach.FOUND)
        listed = rules.named(Permission.EVIDENCE_READ, "path.dataset_urn")
        return [
            Operation(
                "POST",
                "/evidence",
                "Put evidence",
                self.put,
                {201: Taken, 200: Taken},
                body_forms={"application/json": Evidence},
                rule=offered,
            ),
            Operation(
                "POST",
                "/evidence/batch",
                "Put a batch of evidence",
                self.batch,
                {200: TakenBatch},
                body=EvidenceBatch,
                rule=offered,
            ),
            Operation(
                "GET",
                "/evidence/{evidence_id}",
                "Show evidence",
                self.show,
                {200: Evidence},
                query=EvidenceQuery,
                rule=Rule(Permission.EVIDENCE_READ, Reach.FOUND),
            ),
            Operation(
                "GET",
                _OF_DATASET,
                "List evidence of a dataset",
                self.ls,
                {200: EvidenceList},
                query=OfDatasetQuery,
                rule=listed,
            ),
            Operation(
                "GET",
                f"{_OF_DATASET}/contrast",
                "Show the first failure and the last success before it",
                self.contrast,
                {200: Contrast},
                query=OfDatasetQuery,
                rule=listed,
            ),
        ]

    def put(self, call: Call[None, NoQuery]) -> Answer:
        evidence = self._renamed(from_outside(json_object(call.content)))
        require(call.principal, Permission.EVIDENCE_WRITE, evidence.dataset_urn)
        done = self._evidence.put(evidence)
        return Answer(_taken(done), 201 if done.stored else 200)

    def batch(self, call: Call[EvidenceBatch, NoQuery]) -> Answer:
        # All or none: a request that names a forbidden dataset fails as a whole.
        named = (each.get("dataset_urn") for each in call.body.evidence)
        self._written.require((each for each in named if isinstance(each, str)), call.principal)
        outcomes: list[Taken | None] = []
        sound: list[Evidence] = []
        for given in call.body.evidence:
            try:
                evidence = self._renamed(from_outside(given))
                require(call.principal, Permission.EVIDENCE_WRITE, evidence.dataset_urn)
                sound.append(evidence)
                outcomes.append(None)
            except UserError as exc:
                outcomes.append(_refused(given, exc.message))
        done = iter(self._evidence.put_many(sound))
        results = [each if each is not None else _taken(next(done)) for each in outcomes]
        return Answer(
            TakenBatch(
                results=results,
                stored=sum(each.stored for each in results),
                sampled_out=sum(each.decision is Decision.SAMPLED_OUT for each in results),
                failed=sum(each.error is not None for each in results),
            )
        )

    def _renamed(self, evidence: Evidence) -> Evidence:
        """Return evidence with the registered name of its dataset."""
        urn = self._health.registered(evidence.dataset_urn)
        return evidence if urn == evidence.dataset_urn else replace(evidence, dataset_urn=urn)

    def show(self, call: Call[None, EvidenceQuery]) -> Answer:
        evidence_id = call.path["evidence_id"]
        found = self._evidence.get(evidence_id, include_archived=call.query.include_archived)
        if found is None:
            raise NotFoundError(f"evidence {evidence_id[:80]}: not found in cache or archive")
        require(call.principal, Permission.EVIDENCE_READ, found.dataset_urn)
        return Answer(complete(found))

    def ls(self, call: Call[None, OfDatasetQuery]) -> Answer:
        query = call.query
        since, until = _span(query)
        page = self._evidence.of_dataset(
            call.path["dataset_urn"],
            since,
            until,
            query.page_size,
            query.page_token,
            result=None if query.result is None else result(query.result),
        )
        return Answer(complete(EvidenceList(page.evidence, page.cursor, page.shed)))

    def contrast(self, call: Call[None, OfDatasetQuery]) -> Answer:
        since, until = _span(call.query)
        return Answer(self._evidence.first_bad_and_last_good(call.path["dataset_urn"], since=since, until=until))


def _span(query: OfDatasetQuery) -> tuple[str | None, str | None]:
    since, until = query.since, query.until
    return (
        None if since is None else timestamps.moment(since, field="from"),
        None if until is None else timestamps.moment(until, field="to"),
    )


def _taken(done: Put) -> Taken:
    return Taken(
        stored=done.stored,
        decision=done.decision,
        evidence_id=done.evidence_id,
        expires_at=done.expires_at,
        error=None if done.error is None else done.error.message,
    )


def _refused(given: dict[str, Any], message: str) -> Taken:
    named = given.get("evidence_id")
    return Taken(
        stored=False,
        decision=Decision.REFUSED,
        evidence_id=named if isinstance(named, str) else "",
        expires_at=None,
        error=message,
    )
