"""Controls: whether a pipeline may start runs, from operators' pauses and the circuit breaker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError
from headgate.pipelines.enums import Cause, ControlState, RunStatus
from headgate.pipelines.row_codec import required, row, struct_of
from headgate.store.catalogue.tables import PIPELINE_CONTROL, PIPELINES
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

_RACES_MAX: Final = 10
# How many ended pauses are stored.
PAUSES_MAX: Final = 20
# An operator wants this run although the pipeline is stopped.
_MANUAL_CAUSES: Final = frozenset({Cause.MANUAL, Cause.REPLAY})


class EndedPause(Struct, frozen=True):
    """An ended pause."""

    since_ms: int
    until_ms: int


class Control(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The control state of a pipeline. Version 0: the default, nothing is stored."""

    pipeline_id: str
    state: ControlState = ControlState.ACTIVE
    version: int = 0
    reason: str = ""
    by: str = ""
    since_ms: int = 0
    # The end of a timed pause.
    until_ms: int | None = None
    failures_in_a_row: int = 0
    last_failed_run_id: str = ""
    # The latest ended pauses: expectations that fell due in them are waived.
    pauses: tuple[EndedPause, ...] = ()

    def state_at(self, now_ms: int) -> ControlState:
        """Return the state at a time: a timed pause may be over."""
        is_over = self.state is ControlState.PAUSED and self.until_ms is not None and now_ms >= self.until_ms
        return ControlState.ACTIVE if is_over else self.state


# Writes for the same transaction, or a function that makes them from the control before and after.
Also = Sequence[Write] | Callable[[Control, Control], Sequence[Write]]


def refusal(control: Control, cause: Cause, now_ms: int, *, while_paused: bool = False) -> str:
    """Return why a run may not start; empty if it may. Manual starts always may.

    `while_paused` is for backfills that may run in a pause; they stop when the breaker opens.
    """
    state = control.state_at(now_ms)
    if state is ControlState.ACTIVE or cause in _MANUAL_CAUSES:
        return ""
    if state is ControlState.TRIPPED:
        return f"{control.failures_in_a_row} failures in a row have stopped it; resume it when the cause is fixed"
    return "" if while_paused else f"{control.by} paused it: {control.reason}"


def after_run(control: Control, status: RunStatus, run_id: str, threshold: int, now_ms: int) -> Control:
    """Return the control after a run has ended. The same object: nothing changes.

    A threshold of 0 never trips. A pause stays in force, and a success does not reset a tripped breaker.
    """
    if status.is_done and control.failures_in_a_row:
        return replace(control, version=control.version + 1, failures_in_a_row=0)
    if status is not RunStatus.FAILED:
        return control
    counted = replace(
        control,
        version=control.version + 1,
        failures_in_a_row=control.failures_in_a_row + 1,
        last_failed_run_id=run_id,
    )
    if not 0 < threshold <= counted.failures_in_a_row or control.state_at(now_ms) is not ControlState.ACTIVE:
        return counted
    reason = f"{counted.failures_in_a_row} failures in a row, the last of run {run_id}"
    # One change that counts and trips.
    as_read = replace(counted, version=control.version)
    return _changed(as_read, ControlState.TRIPPED, "breaker", reason, now_ms, None, now_ms)


class Controls:
    """Stores controls. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, pipeline_id: str) -> Control:
        """Return the control of a pipeline."""
        item = self._store.get(PIPELINES, control_key(pipeline_id), consistent=True)
        return Control(pipeline_id=pipeline_id) if item is None else control_of(item)

    def ls(self) -> list[Control]:
        """Return the stored controls of all pipelines."""
        controls: list[Control] = []
        cursor: str | None = None
        while True:
            page = self._store.query(Query(table=PIPELINES, index="GSI1", partition="CONTROLS", cursor=cursor))
            controls += map(control_of, page.items)
            cursor = page.cursor
            if cursor is None:
                return controls

    def pause(self, pipeline_id: str, *, by: str, reason: str, until_ms: int | None = None, also: Also = ()) -> Control:
        """Start no runs by schedule or data, until the pipeline is resumed or a time is reached.

        A tripped pipeline stays tripped. Repeating a pause with the same values changes nothing. Raises
        `InvalidPayloadError` without an author or a reason.
        """
        by, reason = required(pipeline_id, "by", by), required(pipeline_id, "reason", reason)

        def paused(control: Control, now_ms: int) -> Control:
            is_said = control.by == by and control.reason == reason and control.until_ms == until_ms
            state = control.state_at(now_ms)
            if state is ControlState.TRIPPED or (state is ControlState.PAUSED and is_said):
                return control
            since_ms = control.since_ms if state is ControlState.PAUSED else now_ms
            return _changed(control, ControlState.PAUSED, by, reason, since_ms, until_ms, now_ms)

        return self._change(pipeline_id, paused, also)

    def resume(self, pipeline_id: str, *, by: str, reason: str, also: Also = ()) -> Control:
        """Start runs again, and reset the failure count.

        An active pipeline stays as it is. Raises `InvalidPayloadError` without an author or a reason.
        """
        by, reason = required(pipeline_id, "by", by), required(pipeline_id, "reason", reason)

        def resumed(control: Control, now_ms: int) -> Control:
            if control.state is ControlState.ACTIVE:
                return control
            return replace(
                _changed(control, ControlState.ACTIVE, by, reason, now_ms, None, now_ms), failures_in_a_row=0
            )

        return self._change(pipeline_id, resumed, also)

    def outcome_writes(
        self, pipeline_id: str, status: RunStatus, run_id: str, threshold: int
    ) -> tuple[Control, list[Write]]:
        """Return the control after a run has ended, and the writes for the transaction that ends it.

        They are refused if the control changed meanwhile: ask for them again.
        """
        control = self.get(pipeline_id)
        after = after_run(control, status, run_id, threshold, self._now_ms())
        return after, [] if after is control else [_put(after)]

    def _change(self, pipeline_id: str, decide: Callable[[Control, int], Control], also: Also) -> Control:
        for _ in range(_RACES_MAX):
            before = self.get(pipeline_id)
            after = decide(before, self._now_ms())
            if after is before:
                return before
            more = also(before, after) if callable(also) else also
            try:
                self._store.transact([_put(after), *more])
            except ConflictError as exc:
                if 0 not in exc.failures:
                    raise
            else:
                return after
        raise ConflictError(f"pipeline {pipeline_id}: concurrent changes of its control keep winning; try again")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def control_key(pipeline_id: str) -> Key:
    """Return the key of a control's row."""
    return PIPELINE_CONTROL.key(pipeline_id=pipeline_id)


def control_of(item: Mapping[str, Any]) -> Control:
    """Decode a control from its row."""
    return struct_of(item, Control)


def _changed(
    control: Control,
    state: ControlState,
    by: str,
    reason: str,
    since_ms: int,
    until_ms: int | None,
    now_ms: int,
) -> Control:
    is_same_pause = state is ControlState.PAUSED and control.state_at(now_ms) is ControlState.PAUSED
    return replace(
        control,
        version=control.version + 1,
        state=state,
        by=by,
        reason=reason,
        since_ms=since_ms,
        until_ms=until_ms,
        pauses=control.pauses if is_same_pause else _ended_pauses(control, now_ms),
    )


def _ended_pauses(control: Control, now_ms: int) -> tuple[EndedPause, ...]:
    """Return the ended pauses once the state changes."""
    if control.state is not ControlState.PAUSED:
        return control.pauses
    until_ms = now_ms if control.until_ms is None else min(control.until_ms, now_ms)
    return (*control.pauses, EndedPause(control.since_ms, until_ms))[-PAUSES_MAX:]


def _put(control: Control) -> Put:
    index = PIPELINE_CONTROL.index_attributes(pipeline_id=control.pipeline_id)
    replaced = control.version - 1
    condition = version_is(replaced) if replaced else absent()
    return Put(PIPELINES, row(control_key(control.pipeline_id), control, **index), condition)
