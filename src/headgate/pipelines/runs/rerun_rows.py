"""Rows of reruns: what was asked for, what became of it, and which budget it is charged to.

A request is a row of its period, so that a period has at most one that waits. The rerun itself is kept as the truth
under its own id and as a copy in the list of its pipeline, and stays when the request is overwritten by a later one.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import RerunReason
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import PIPELINES, RERUN_COPY, RERUN_REQUEST, RERUN_STATE
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key

PREFIX: Final = "rerun"


class Budget(enum.StrEnum):
    """What reruns are charged to."""

    DRIFT = "drift"
    MANUAL = "manual"
    RETRY = "retry"


BUDGETS: Final[Mapping[RerunReason, Budget]] = {
    RerunReason.DATA_DRIFT: Budget.DRIFT,
    RerunReason.LATE_DATA: Budget.DRIFT,
    RerunReason.MANUAL: Budget.MANUAL,
    RerunReason.JOB_FAIL_RETRY: Budget.RETRY,
}


class RerunStatus(enum.StrEnum):
    """Where a rerun stands."""

    REQUESTED = "REQUESTED"
    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def is_open(self) -> bool:
        """Whether something is still to come of it."""
        return self in (RerunStatus.REQUESTED, RerunStatus.ACCEPTED)


class Rerun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A period that someone wants done again, and what became of that."""

    rerun_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    reason: RerunReason
    status: RerunStatus
    version: int
    requested_at_ms: int
    by: str = ""
    # The reason in the words of who asked.
    note: str = ""
    # Done even if the budget is spent, the day excluded or nothing new. It still counts.
    is_forced: bool = False
    detail: dict[str, Json] = {}
    decided_at_ms: int | None = None
    # Why it was rejected, by the name of the rule and in a sentence.
    rule: str = ""
    decision: str = ""
    # The execution that accepted it: to any other, it is taken.
    execution: str = ""
    run_id: str = ""
    ended_at_ms: int | None = None

    @property
    def slot(self) -> Slot:
        """The period it is about."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)

    @property
    def budget(self) -> Budget:
        """What it is charged to."""
        return BUDGETS[self.reason]


def reason_of(text: str) -> RerunReason:
    """Return the reason that a text stands for. Whatever is not one of ours is manual: new words are no new budget."""
    try:
        return RerunReason(text.strip().lower())
    except ValueError:
        return RerunReason.MANUAL


def rerun_key(rerun_id: str) -> Key:
    """Return where the truth about a rerun is kept."""
    return RERUN_STATE.key(rerun_id=rerun_id)


def request_key(slot: Slot) -> Key:
    """Return where the request of a period is kept."""
    return RERUN_REQUEST.key(pipeline_id=slot.pipeline_id, schedule_id=slot.schedule_id, date=slot.date)


def rerun_writes(rerun: Rerun, *, replaces: int | None = None) -> list[Put]:
    """Return the writes of a rerun, truth first: a new one, or one that replaces the version it was read at."""
    copy = RERUN_COPY.key(pipeline_id=rerun.pipeline_id, rerun_id=rerun.rerun_id)
    index = RERUN_STATE.index_attributes(rerun_id=rerun.rerun_id)
    condition = absent() if replaces is None else version_is(replaces)
    return [
        Put(PIPELINES, row(rerun_key(rerun.rerun_id), rerun, **index), condition),
        Put(PIPELINES, row(copy, rerun)),
    ]


def rerun_of(item: Mapping[str, Any]) -> Rerun:
    """Return the rerun that a row, or its copy, stands for."""
    return struct_of(item, Rerun)


def request_item(rerun: Rerun) -> dict[str, Any]:
    """Return the request of a rerun as it is stored."""
    asked = {
        "rerun_id": rerun.rerun_id,
        "reason": rerun.note or rerun.reason.value,
        "requestedAt": rerun.requested_at_ms,
    }
    return {**PIPELINES.key_attributes(request_key(rerun.slot)), **asked}


def slot_of_request(key: Key) -> Slot:
    """Return the period that a request's key names."""
    _, schedule_id, date = str(key.sort).split("#", 2)
    return Slot(str(key.partition).removeprefix("PIPELINE#"), schedule_id, date)


def foreign_rerun_id(item: Mapping[str, Any]) -> str:
    """Return the id of the rerun that a request stands for, also of one that was put there by others.

    The same row always gives the same id, so that a row which is told of twice is asked for once. One that is put
    again asks again if it says something else, such as another `requestedAt`.
    """
    if isinstance(given := item.get("rerun_id"), str):
        return given
    named = "\x00".join(f"{name}={item[name]!r}" for name in sorted(item) if name not in ("ttl", "version"))
    return f"{PREFIX}_{hashlib.blake2b(named.encode(), digest_size=13).hexdigest()}"
