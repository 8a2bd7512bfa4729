"""Declared schedules: has the store agree with the schedules in the code of an app, across builds that run together.

A build is known by the digest of each declaration. The row of a declared schedule has the digest in force, and those
that it superseded: a worker of an older build, which may be restarted at any time, does not bring its own back while a
worker of the newer one is alive.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.model.duration import seconds
from headgate.durable.model.schedule_declarations import ScheduleDeclaration
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.schedules import Schedules, check_schedule_id, checked
from headgate.durable.schedules.slots import CatchUp, Overlap, Schedule, Spec
from headgate.errors import ConflictError, InvalidScheduleError, NotFoundError, UserError

# A schedule that no live worker declares is removed after this time, which outlasts a restart.
REMOVE_SECONDS: Final = 600.0
# How many earlier declarations a schedule remembers.
SUPERSEDED_MAX: Final = 20
_log = structlog.get_logger(__name__)

E = TypeVar("E", bound=enum.StrEnum)


class Verdict(enum.Enum):
    """What a worker does about one of its declarations."""

    CREATE = enum.auto()
    REPLACE = enum.auto()
    # It is in force, or a newer build has replaced it.
    KEEP = enum.auto()
    # A schedule of this id was made by hand, or by another app.
    REFUSE = enum.auto()


def judge(stored: Schedule | None, app: str, digest: str, live: Collection[str]) -> Verdict:
    """Decide about a declaration. `live` are the digests of this schedule in other live workers of the app."""
    if stored is None:
        return Verdict.CREATE
    if stored.declared_by != app:
        return Verdict.REFUSE
    if stored.declared_digest == digest:
        return Verdict.KEEP
    is_older = digest in stored.superseded
    # After a rollback, the older build declares it again once no worker of the newer one is left.
    return Verdict.KEEP if is_older and stored.declared_digest in live else Verdict.REPLACE


def superseded(stored: Schedule, digest: str) -> tuple[str, ...]:
    """Return the superseded digests of a schedule once this digest is in force."""
    others = [each for each in (*stored.superseded, stored.declared_digest) if each != digest]
    return tuple(others[-SUPERSEDED_MAX:])


class DeclaredSchedules:
    """The schedules that the app of one worker declares. For the polling thread.

    Raises `InvalidScheduleError` or another `UserError` for a declaration that is not valid.
    """

    def __init__(
        self, schedules: Schedules, clock: Clock, app: str, declarations: Sequence[ScheduleDeclaration]
    ) -> None:
        self._schedules = schedules
        self._clock = clock
        self._app = app
        self._specs = {each.schedule_id: _spec(each) for each in declarations}
        self._digests = {schedule_id: _digest(spec) for schedule_id, spec in self._specs.items()}
        # Since when a schedule of the app has been found without a declaration.
        self._missing_since: dict[str, float] = {}
        self._refused: set[str] = set()

    def entries(self) -> tuple[str, ...]:
        """Return what the row of the worker says about its declarations."""
        return tuple(f"{schedule_id}={digest}" for schedule_id, digest in sorted(self._digests.items()))

    def reconcile(self, others: Collection[str]) -> None:
        """Store what is declared here. `others` are the entries of other live workers of the app."""
        live = _by_schedule(others)
        for schedule_id, spec in self._specs.items():
            digest = self._digests[schedule_id]
            judged = partial(judge, app=self._app, digest=digest, live=live.get(schedule_id, ()))
            self._report(schedule_id, self._store(schedule_id, spec, digest, judged))

    def _store(
        self, schedule_id: str, spec: Spec, digest: str, judged: Callable[[Schedule | None], Verdict]
    ) -> Verdict:
        """Carry out the verdict on one declaration. Another worker may do the same meanwhile."""
        stored = self._schedules.find(schedule_id)
        verdict = judged(stored)
        if verdict is Verdict.CREATE:
            try:
                self._schedules.create(schedule_id, spec, declared_by=self._app, declared_digest=digest)
            except ConflictError:
                return Verdict.KEEP  # Read again in a minute.
        elif verdict is Verdict.REPLACE:

            def marked(current: Schedule) -> Schedule | None:
                if judged(current) is not Verdict.REPLACE:
                    return None
                return replace(current, declared_digest=digest, superseded=superseded(current, digest))

            try:
                self._schedules.update(schedule_id, spec, also=marked)
            except NotFoundError:
                return Verdict.KEEP
        return verdict

    def remove_undeclared(self, others: Collection[str]) -> None:
        """Delete schedules of the app that no live worker has declared for a while."""
        declared = {*self._specs, *_by_schedule(others)}
        now = self._clock.monotonic()
        found = {each.schedule_id for each in self._stored() if each.schedule_id not in declared}
        self._missing_since = {name: self._missing_since.get(name, now) for name in found}
        for schedule_id in sorted(found):
            if now - self._missing_since[schedule_id] < REMOVE_SECONDS:
                continue
            try:
                self._schedules.delete(schedule_id)
            except NotFoundError:
                continue
            _log.warning("schedule removed; no app declares it any more", schedule_id=schedule_id, app=self._app)

    def _stored(self) -> Iterator[Schedule]:
        cursor: str | None = None
        while True:
            page = self._schedules.ls(limit=500, cursor=cursor)
            yield from (each for each in page.schedules if each.declared_by == self._app)
            cursor = page.cursor
            if cursor is None:
                return

    def _report(self, schedule_id: str, verdict: Verdict) -> None:
        if verdict is Verdict.REFUSE:
            if schedule_id not in self._refused:
                self._refused.add(schedule_id)
                _log.warning(
                    "declared schedule not stored; one of this id was not made by this app: delete it, or choose "
                    "another id",
                    schedule_id=schedule_id,
                    app=self._app,
                )
            return
        self._refused.discard(schedule_id)
        if verdict is not Verdict.KEEP:
            action = "created" if verdict is Verdict.CREATE else "changed"
            _log.info(f"declared schedule {action}", schedule_id=schedule_id, app=self._app)


def _spec(declaration: ScheduleDeclaration) -> Spec:
    cron = declaration.cron
    try:
        check_schedule_id(declaration.schedule_id)
        return checked(
            Spec(
                workflow=declaration.workflow,
                recurrence=Recurrence(
                    expression=cron.expression,
                    zone=cron.zone,
                    start=cron.start,
                    end=cron.end,
                    jitter_seconds=round(seconds(cron.jitter, name="jitter")),
                ),
                input=declaration.input,
                overlap=_one_of(Overlap, "overlap", cron.overlap),
                catchup=_one_of(CatchUp, "catchup", cron.catchup),
                catchup_window_seconds=round(seconds(cron.catchup_window, name="catchup_window")),
                tags=dict(cron.tags),
            )
        )
    except UserError as exc:
        raise InvalidScheduleError(f"schedule {declaration.schedule_id}: {exc}") from exc


def _one_of(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidScheduleError(f"{name} {value!r}: use one of {[each.value for each in kind]}") from None


def _digest(spec: Spec) -> str:
    return hashlib.blake2b(msgspec.json.encode(spec, order="deterministic"), digest_size=8).hexdigest()


def _by_schedule(entries: Collection[str]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in entries:
        schedule_id, _, digest = each.rpartition("=")
        found.setdefault(schedule_id, set()).add(digest)
    return found
