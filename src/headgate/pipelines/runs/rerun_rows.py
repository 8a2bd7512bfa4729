"""Rerun rows: the request, the decision, and the budget that it counts against.

A request is a row of its period, so a period has at most one pending request. The rerun has a main row under its id and
a copy in the list of its pipeline, and stays when a later request overwrites the first.
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
    """The budget that a rerun counts against."""

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
    """The status of a rerun."""

    REQUESTED = "REQUESTED"
    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def is_open(self) -> bool:
        """Whether it is pending or running."""
        return self in (RerunStatus.REQUESTED, RerunStatus.ACCEPTED)


class Rerun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to run a period again, and its outcome."""

    rerun_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    reason: RerunReason
    status: RerunStatus
    version: int
    requested_at_ms: int
    by: str = ""
    # The requester's own text.
    note: str = ""
    # Accepted even if the budget is spent, the date excluded or nothing new. It still counts.
    is_forced: bool = False
    detail: dict[str, Json] = {}
    decided_at_ms: int | None = None
    # The rule that decided on it, and the reason of the decision or of an end without a run.
    rule: str = ""
    decision: str = ""
    # The execution that accepted it; others do not run it.
    execution: str = ""
    run_id: str = ""
    ended_at_ms: int | None = None

    @property
    def slot(self) -> Slot:
        """The period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)

    @property
    def budget(self) -> Budget:
        """The budget it counts against."""
        return BUDGETS[self.reason]


def reason_of(text: str) -> RerunReason:
    """Return the reason that a text names. An unknown text counts as manual, so that it opens no new budget."""
    try:
        return RerunReason(text.strip().lower())
    except ValueError:
        return RerunReason.MANUAL


def rerun_key(rerun_id: str) -> Key:
    """Return the key of a rerun's main row."""
    return RERUN_STATE.key(rerun_id=rerun_id)


def request_key(slot: Slot) -> Key:
    """Return the key of a period's request row."""
    return RERUN_REQUEST.key(pipeline_id=slot.pipeline_id, schedule_id=slot.schedule_id, date=slot.date)


def rerun_writes(rerun: Rerun, *, replaces: int | None = None) -> list[Put]:
    """Return the writes of a rerun, main row first: a new one, or one that replaces a version."""
    copy = RERUN_COPY.key(pipeline_id=rerun.pipeline_id, rerun_id=rerun.rerun_id)
    index = RERUN_STATE.index_attributes(rerun_id=rerun.rerun_id)
    condition = absent() if replaces is None else version_is(replaces)
    return [
        Put(PIPELINES, row(rerun_key(rerun.rerun_id), rerun, **index), condition),
        Put(PIPELINES, row(copy, rerun)),
    ]


def rerun_of(item: Mapping[str, Any]) -> Rerun:
    """Decode a rerun from its row or its copy."""
    return struct_of(item, Rerun)


def request_item(rerun: Rerun) -> dict[str, Any]:
    """Encode the request of a rerun as its row."""
    attributes = {
        "rerun_id": rerun.rerun_id,
        "reason": rerun.note or rerun.reason.value,
        "requestedAt": rerun.requested_at_ms,
    }
    return {**PIPELINES.key_attributes(request_key(rerun.slot)), **attributes}


def foreign_rerun_id(item: Mapping[str, Any]) -> str:
    """Return the rerun id of a request row, also of a row that another program wrote.

    The same row always gives the same id, so a redelivered change is one request. A row that is put again is a new
    request if a field differs, such as `requestedAt`.
    """
    if isinstance(rerun_id := item.get("rerun_id"), str):
        return rerun_id
    named = "\x00".join(f"{name}={item[name]!r}" for name in sorted(item) if name not in ("ttl", "version"))
    return f"{PREFIX}_{hashlib.blake2b(named.encode(), digest_size=13).hexdigest()}"
