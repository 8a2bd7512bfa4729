"""Evidence cache: recent results of checks, sampled, bounded, pinned by incidents, and archived.

A row lives for 24 hours, longer while an incident pins it; afterwards it is read by id from the archive. `sampling`
decides what is stored, `limits` what is shed under load, `writes` how it is written, `archive` how it is found later,
`pins` how incidents keep it, and `contrast` which success a failure is compared with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import CorruptionError, HeadgateError, InvalidIdError, UserError
from headgate.health.evidence.archive import WAIT_SECONDS, Archive, Archiver
from headgate.health.evidence.contrast import INDEX, Contrast, Contrasts, between, pages
from headgate.health.evidence.limits import Limits, Stats
from headgate.health.evidence.pins import KEEP_SECONDS, Pins
from headgate.health.evidence.rows import PREFIX, Evidence, Result, archived_evidence, evidence_of
from headgate.health.evidence.sampling import SAMPLED_OUT, Admission, Offers, Rates, Sampler
from headgate.health.evidence.writes import Decision, EvidenceWrites, Kept, Put
from headgate.health.model.urns import dataset_urn, is_evidence_id
from headgate.ids import IdMaker
from headgate.store.blobs.folder import Blobs
from headgate.store.catalogue.tables import EVIDENCE_CACHE
from headgate.store.model.requests import Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

LIMIT_MAX: Final = 1000
# The retention of incidents, and a little more.
ARCHIVE_SECONDS: Final = 400 * 86_400

__all__ = [
    "Contrast", "Decision", "Evidence", "EvidenceCache", "EvidencePage", "Found", "Limits", "Offers", "Put", "Rates",
]  # fmt: skip


class Found(Struct, frozen=True):
    """Evidence by id. `unreadable` are ids that may be in an unreadable part of the archive, and why."""

    evidence: dict[str, Evidence]
    missing: tuple[str, ...] = ()
    unreadable: dict[str, str] = {}


class EvidencePage(Struct, frozen=True):
    """A page of evidence of a dataset. `shed` is how much of it this server has shed since it started."""

    evidence: list[Evidence]
    cursor: str | None = None
    shed: int = 0


class EvidenceCache:
    """Evidence of all datasets. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        blobs: Blobs,
        *,
        limits: Limits | None = None,
        rates: Rates | None = None,
        intake_shed_count: Callable[[str], int] = lambda _urn: 0,
    ) -> None:
        self.stats = Stats()
        self._intake_shed_count = intake_shed_count
        self._store = store
        self._clock = clock
        self._ids = ids
        limits = limits or Limits()
        self._sampler = Sampler(rates or Rates(), limits, self.stats)
        self._lock = threading.Lock()
        self._writes = EvidenceWrites(store, ids, hot_seconds=limits.hot_seconds)
        archive = Archive(blobs)
        self._archive = archive
        self._archiver = Archiver(store, clock, archive, self.stats)
        self._pins = Pins(store, clock, ids, archive)
        self._contrasts = Contrasts(store, lambda each: self.get_many([each]).evidence.get(each))

    def put(self, evidence: Evidence) -> Put:
        """Store one item of evidence.

        Raises `AlreadyExistsError` if its id has other content (the first stays), and a validation error for an
        invalid item; items that are sampled out are not validated.
        """
        [answer] = self.put_many([evidence])
        if answer.error is not None:
            raise answer.error
        return answer

    def put_many(self, offered: Sequence[Evidence]) -> list[Put]:
        """Store many items of evidence, and return the outcome of each in order.

        If the store fails, some may be stored: offer them again, and those are duplicates.
        """
        evidence_ids = [each.evidence_id or self.new_id() for each in offered]
        results = [each.validation.result for each in offered]
        offers = Offers(
            evidence_ids,
            results,
            [each.dataset_urn for each in offered],
            offered,
            {place: offered[place].signature for place, outcome in enumerate(results) if outcome is not _PASS},
        )
        answers = [_SAMPLED_OUT] * len(offered)
        admitted: list[tuple[Kept, Admission]] = []
        places: list[int] = []
        for place, admission in self.admit_many(offers).items():
            evidence_id = evidence_ids[place]
            if isinstance(admission, UserError):
                answers[place] = Put(Decision.REFUSED, evidence_id, error=admission)
            elif admission.is_shed:
                answers[place] = _SHED
            else:
                kept = Kept(evidence_id, offered[place], is_good_on_record=admission.is_good_on_record)
                admitted.append((kept, admission))
                places.append(place)
        self._take_in(admitted)
        for place, (kept, _) in zip(places, admitted, strict=True):
            answers[place] = kept.answered
        return answers

    def admit(
        self,
        evidence_id: str,
        result: str,
        dataset_urn: str,
        *,
        offered: Evidence | Callable[[], Evidence] | None = None,
        signature: str = "",
    ) -> Admission:
        """Decide on evidence before it is fully decoded; `put_admitted` then stores what is kept.

        `evidence_id` is its future id (`new_id` makes one). `offered` is remembered for a PASS and stored with the next
        first FAIL: the evidence, or a function that decodes it then, such as a partial with the bytes of the message,
        so that nothing else stays in memory. Raises `InvalidIdError` without an id, and `InvalidPayloadError` for an
        unknown result.
        """
        offers = Offers((evidence_id,), (result,), (dataset_urn,), (offered,), {0: signature})
        found = self.admit_many(offers).get(0, SAMPLED_OUT)
        if isinstance(found, UserError):
            raise found
        return found

    def admit_many(self, offers: Offers) -> dict[int, Admission | UserError]:
        """Decide on many items as `admit` does, in order.

        Return by index the decisions on items that are not sampled out, or the errors of invalid ones. Raises
        `InvalidIdError` if one has no id.
        """
        if "" in offers.evidence_ids:
            raise InvalidIdError("evidence_id is empty; get one from new_id() first")
        with self._lock:
            # Monotonic: sampling and limits measure durations, whatever happens to the wall clock.
            found = self._sampler.admit_many(offers, int(self._clock.monotonic() * 1000))
            self.stats.offered += len(offers.evidence_ids)
            self.stats.sampled_out += len(offers.evidence_ids) - len(found)
            self.stats.refused += sum(isinstance(each, UserError) for each in found.values())
        return found

    def put_admitted(self, admitted: Sequence[tuple[Evidence, Admission]]) -> list[Put]:
        """Store admitted items, and the last good item before each first failure. Raises as `put_many`."""
        kept = [
            (Kept(each.evidence_id or self.new_id(), each, is_good_on_record=admission.is_good_on_record), admission)
            for each, admission in admitted
        ]
        self._take_in(kept)
        return [each.answered for each, _ in kept]

    def count_refused(self) -> None:
        """Count an admitted item that is invalid and not passed to `put_admitted`."""
        with self._lock:
            self.stats.refused += 1

    def new_id(self) -> str:
        """Return a new evidence id."""
        return f"{PREFIX}{self._ids.ulid()}"

    def get(self, evidence_id: str, *, include_archived: bool = True) -> Evidence | None:
        """Return an item of evidence, or None. Raises `CorruptionError` if it may be in a corrupt blob."""
        row = self._store.get(EVIDENCE_CACHE, Key(evidence_id)) if is_evidence_id(evidence_id) else None
        if row is not None:
            return evidence_of(row)
        found = self.get_many([evidence_id], include_archived=include_archived)
        if evidence_id in found.unreadable:
            raise CorruptionError(f"evidence {evidence_id}: may be unreadable: {found.unreadable[evidence_id]}")
        return found.evidence.get(evidence_id)

    def get_many(self, evidence_ids: Sequence[str], *, include_archived: bool = True) -> Found:
        """Return the evidence of some ids: from rows, then from the archive. Invalid ids count as missing."""
        wanted = [each for each in dict.fromkeys(evidence_ids) if is_evidence_id(each)]
        found = self._rows(wanted, consistent=False)
        # Consistent: an id that was just returned may not be on every replica yet.
        found |= self._rows([each for each in wanted if each not in found], consistent=True)
        unreadable: dict[str, str] = {}
        if include_archived and len(found) < len(wanted):
            archived, unreadable = self._archived([each for each in wanted if each not in found])
            found |= archived
        missing = [each for each in dict.fromkeys(evidence_ids) if each not in found and each not in unreadable]
        return Found({each: found[each] for each in wanted if each in found}, tuple(missing), unreadable)

    def of_dataset(
        self,
        urn: str,
        since: str | None = None,
        until: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        result: Result | None = None,
    ) -> EvidencePage:
        """Return the rows of a dataset, newest first. Reads an index that may lag briefly.

        With a `result`, a page may be short or empty although its cursor is set.
        """
        query = Query(
            table=EVIDENCE_CACHE,
            index=INDEX,
            partition=dataset_urn(urn),
            sort=between(since, until),
            limit=max(1, min(limit, LIMIT_MAX)),
            cursor=cursor,
            descending=True,
        )
        found: list[Evidence] = []
        for page in pages(self._store, query):
            evidence = [evidence_of(item) for item in page.items]
            found = [each for each in evidence if result is None or each.validation.result is result]
            cursor = page.cursor
            if found:
                break
        return EvidencePage(found, cursor, self.shed_of(urn))

    def shed_of(self, urn: str) -> int:
        """Return how much evidence of a dataset this server has shed over the limits."""
        with self._lock:
            here = self._sampler.shed_of(urn)
        return here + self._intake_shed_count(urn)

    def shed_by_dataset(self) -> dict[str, int]:
        """Return how much this process has shed, by dataset."""
        with self._lock:
            return self._sampler.shed_by_dataset()

    def first_bad_and_last_good(
        self, urn: str, *, since: str | None = None, until: str | None = None, signature: str | None = None
    ) -> Contrast:
        """Return the first failure since a time (such as the start of a breach), and the last success before it.

        With a `signature`, the first failure with that reason. An old success comes from the archive. Without a
        failure, the latest success is returned.
        """
        return self._contrasts.find(urn, since, until, signature)

    def pin_writes(self, evidence_ids: Sequence[str], incident_id: str, now_ms: int) -> list[Write]:
        """Return the writes that pin evidence to an incident, for the incident's transaction.

        Expired evidence is restored from the archive; missing evidence is left out. A write conflicts only if another
        incident pins the same evidence while it expires: then call it again.
        """
        return self._pins.writes(evidence_ids, incident_id, now_ms)

    def unpin(
        self,
        evidence_ids: Sequence[str],
        incident_id: str,
        keep_seconds: float = KEEP_SECONDS,
        *,
        taken_until: str | None = None,
    ) -> None:
        """Unpin evidence: see `Pins.unpin`."""
        self._pins.unpin(evidence_ids, incident_id, keep_seconds, taken_until=taken_until)

    def archive(self, *, wait_seconds: float = WAIT_SECONDS, stop: Callable[[], bool] = lambda: False) -> int:
        """Archive the spool if it is due, and return how many items were archived. Call it about every minute."""
        return self._archiver.archive(wait_seconds=wait_seconds, stop=stop)

    def purge_archive(self, *, kept_seconds: float = ARCHIVE_SECONDS, limit: int = 1_000) -> int:
        """Delete up to `limit` expired blobs of the archive, and return their count."""
        return self._archive.purge(int(1000 * (self._clock.seconds() - kept_seconds)), limit=limit)

    def oldest_waits_seconds(self) -> float:
        """Return the age of the oldest spooled row in seconds (high: `archive` is not called), or -1 if none is."""
        return self._archiver.oldest_waits_seconds()

    def _take_in(self, admitted: Sequence[tuple[Kept, Admission]]) -> None:
        """Store admitted items, each after the last good one before it, and set their outcomes."""
        kept: list[Kept] = []
        for each, admission in admitted:
            good = None if admission.last_good is None else _decoded(admission.last_good)
            if good is not None:
                kept.append(Kept(good.evidence_id or self.new_id(), good, is_good_on_record=True))
            kept.append(each)
        if not kept:
            return
        now_ms = int(self._clock.seconds() * 1000)
        try:
            self._writes.store(kept, now_ms)
            self._count(kept)
            self._contrasts.record(kept, now_ms)
        except HeadgateError:
            with self._lock:
                for each in kept:
                    if each.is_good_on_record:
                        self._sampler.give_back(each.evidence.dataset_urn)
            raise

    def _count(self, kept: Sequence[Kept]) -> None:
        decisions = [each.answered.decision for each in kept]
        with self._lock:
            self.stats.stored += decisions.count(Decision.STORED)
            self.stats.duplicates += decisions.count(Decision.DUPLICATE)
            self.stats.refused += decisions.count(Decision.REFUSED)

    def _rows(self, evidence_ids: Sequence[str], *, consistent: bool) -> dict[str, Evidence]:
        if not evidence_ids:
            return {}
        rows = self._store.get_many(EVIDENCE_CACHE, [Key(each) for each in evidence_ids], consistent=consistent)
        return {each: evidence_of(row) for each, row in zip(evidence_ids, rows, strict=True) if row is not None}

    def _archived(self, evidence_ids: Sequence[str]) -> tuple[dict[str, Evidence], dict[str, str]]:
        archived = self._archive.read(evidence_ids)
        found: dict[str, Evidence] = {}
        unreadable = dict(archived.unreadable)
        for each, line in archived.lines.items():
            try:
                found[each] = archived_evidence(line)
            except msgspec.DecodeError as exc:
                unreadable[each] = f"invalid line in the archive: {exc}"
        return found, unreadable


_PASS: Final = Result.PASS
_SAMPLED_OUT: Final = Put(Decision.SAMPLED_OUT)
_SHED: Final = Put(Decision.SHED)


def _decoded(last_good: object) -> Evidence | None:
    """Return the remembered last good item, or None if it is invalid: it is validated here for the first time."""
    try:
        found = last_good() if callable(last_good) else last_good
    except UserError:
        return None
    return found if isinstance(found, Evidence) else None
