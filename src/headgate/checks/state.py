"""Check states: one row for each check with its due time, lease and last result; the due index finds what to run.

A check is claimed before it runs, so that one process runs it at a time; the claim fences its result. While it is
claimed it is due again when the lease ends, so that a crashed process leaves nothing behind. A request to run a check
moves its due time to now, also while it is running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError, StoreBusyError
from headgate.health.model.enums import SignalState
from headgate.pipelines.row_codec import row, struct_of
from headgate.store.catalogue.tables import CHECK_STATE, PIPELINES
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

# A state that is not renewed for this long belongs to a check that was removed.
RETENTION_SECONDS: Final = 400 * 86_400
# A claim outlives the time-out of the check by this much.
GRACE_SECONDS: Final = 30.0
# The due time of a check that runs on request only: it is not in the index.
NEVER_MS: Final = 0
_ATTEMPTS_MAX: Final = 20
# Transactions with a single disk sync.
_PLANNED_MAX: Final = 500
_INDEX: Final = "GSI1"


class CheckKey(Struct, frozen=True, order=True):
    """A dataset as the check file names it, and the id of a check."""

    dataset: str
    check_id: str

    def __str__(self) -> str:
        return f"{self.dataset} {self.check_id}"


class CheckState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The schedule, claim and last result of a check. `version` counts changes."""

    dataset: str
    check_id: str
    version: int
    due_at_ms: int
    # The digest of the definition that set the due time.
    definition: str = ""
    # Why it is due now: the run that wrote the dataset, or a request.
    cause: str = ""
    claimed_by: str = ""
    claimed_until_ms: int = 0
    # The version of the last claim; a result of another claim is dropped.
    claim: int = 0
    last_state: SignalState | None = None
    last_reason: str = ""
    last_at_ms: int = 0
    last_value: float | None = None
    duration_ms: int = 0
    # By pipeline that writes the dataset: its last run that had completed when the last measurement began.
    measured: dict[str, str] = {}

    @property
    def key(self) -> CheckKey:
        return CheckKey(self.dataset, self.check_id)

    @property
    def indexed_at_ms(self) -> int:
        """When the poller reads it next: when it is due, or when its lease ends."""
        return self.claimed_until_ms if self.claimed_by else self.due_at_ms


class CheckPlan(Struct, frozen=True, kw_only=True):
    """The due time of a new or changed check. `covered` are the runs that a new one is not owed for."""

    key: CheckKey
    state: CheckState | None
    definition: str
    due_at_ms: int
    covered: Mapping[str, str] = {}


class CheckStates:
    """The states of checks in a store. Safe to use from many processes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def of(self, keys: Sequence[CheckKey]) -> dict[CheckKey, CheckState]:
        """Return the states of checks that have one."""
        found: dict[CheckKey, CheckState] = {}
        for start in range(0, len(keys), 100):
            some = keys[start : start + 100]
            items = self._store.get_many(PIPELINES, [_key(each) for each in some], consistent=True)
            found |= {
                key: struct_of(item, CheckState) for key, item in zip(some, items, strict=True) if item is not None
            }
        return found

    def due(self, *, limit: int) -> list[CheckState]:
        """Return checks that are due, or whose lease has ended, earliest first."""
        end = f"{epoch_ms(self._clock):013d}#~"
        page = self._store.query(
            Query(table=PIPELINES, index=_INDEX, partition="CHECKS", sort=Sort(Range.AT_MOST, end), limit=limit)
        )
        # An index answer is a hint: the claim decides.
        return [struct_of(item, CheckState) for item in page.items]

    def plan(self, checks: Sequence[CheckPlan]) -> None:
        """Give new or changed checks their due times. A concurrent change wins."""
        puts: list[list[Write]] = []
        for each in checks:
            held = each.state or CheckState(
                dataset=each.key.dataset,
                check_id=each.key.check_id,
                version=0,
                due_at_ms=NEVER_MS,
                measured=dict(each.covered),
            )
            planned = replace(held, version=held.version + 1, due_at_ms=each.due_at_ms, definition=each.definition)
            puts.append([self._write(planned, each.state)])
        for start in range(0, len(puts), _PLANNED_MAX):
            for error in self._store.transact_many(puts[start : start + _PLANNED_MAX]):
                if error is not None and not isinstance(error, ConflictError):
                    raise error

    def request(self, key: CheckKey, cause: str, definition: str) -> None:
        """Make a check due now. The request is durable when this returns. Raises `StoreBusyError`."""
        now_ms = epoch_ms(self._clock)
        for _ in range(_ATTEMPTS_MAX):
            state = self.of([key]).get(key)
            requested = (
                CheckState(
                    dataset=key.dataset,
                    check_id=key.check_id,
                    version=1,
                    due_at_ms=now_ms,
                    definition=definition,
                    cause=cause,
                )
                if state is None
                else replace(state, version=state.version + 1, due_at_ms=now_ms, cause=cause)
            )
            try:
                self._put(requested, state)
            except ConflictError:
                continue
            return
        raise StoreBusyError(f"check {key}: {_ATTEMPTS_MAX} conflicts with other writers; try again")

    def claim(self, state: CheckState, by: str, lease_seconds: float) -> CheckState | None:
        """Claim a due check under the version that was read. None: another process has it."""
        now_ms = epoch_ms(self._clock)
        claimed = replace(
            state,
            version=state.version + 1,
            claim=state.version + 1,
            claimed_by=by,
            claimed_until_ms=now_ms + round((lease_seconds + GRACE_SECONDS) * 1000),
            # A request that arrives from now on makes it due again.
            due_at_ms=NEVER_MS,
        )
        try:
            self._put(claimed, state)
        except ConflictError:
            return None
        return claimed

    def is_claimed(self, claimed: CheckState) -> bool:
        """Whether a claim is still the last one of its check."""
        state = self.of([claimed.key]).get(claimed.key)
        return state is not None and state.claim == claimed.claim and bool(state.claimed_by)

    def finish(self, claimed: CheckState, result: CheckState, next_at_ms: int) -> bool:
        """End a claim with a result. False: the lease has ended and another process has it. Raises `StoreBusyError`."""
        for _ in range(_ATTEMPTS_MAX):
            state = self.of([claimed.key]).get(claimed.key)
            if state is None or state.claim != claimed.claim or not state.claimed_by:
                return False
            # A request during the run is due at once.
            is_requested = state.due_at_ms != NEVER_MS
            finished = replace(
                result,
                version=state.version + 1,
                claim=state.claim,
                claimed_by="",
                claimed_until_ms=0,
                due_at_ms=state.due_at_ms if is_requested else next_at_ms,
                cause=state.cause if is_requested else "",
                definition=claimed.definition,
            )
            try:
                self._put(finished, state)
            except ConflictError:
                continue
            return True
        raise StoreBusyError(f"check {claimed.key}: {_ATTEMPTS_MAX} conflicts with other writers; try again")

    def forget(self, state: CheckState) -> None:
        """Take a check that no definition has any more out of the due index."""
        try:
            self._put(replace(state, version=state.version + 1, due_at_ms=NEVER_MS, claimed_by=""), state)
        except ConflictError:
            return

    def _put(self, state: CheckState, before: CheckState | None) -> None:
        self._store.transact([self._write(state, before)])

    def _write(self, state: CheckState, before: CheckState | None) -> Put:
        condition = absent() if before is None else version_is(before.version)
        return Put(PIPELINES, self._item(state), condition, quiet=True)

    def _item(self, state: CheckState) -> Item:
        ttl = int(self._clock.seconds()) + RETENTION_SECONDS
        at_ms = state.indexed_at_ms
        index: dict[str, str] = {}
        if at_ms != NEVER_MS:
            index = CHECK_STATE.index_attributes(due_at_ms=at_ms, dataset=state.dataset, check_id=state.check_id)
        return row(_key(state.key), state, ttl=ttl, **index)


def _key(key: CheckKey) -> Key:
    return CHECK_STATE.key(dataset=key.dataset, check_id=key.check_id)
