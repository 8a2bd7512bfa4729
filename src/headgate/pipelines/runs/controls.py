"""Controls: whether a pipeline may begin anything, by what people said and by how often it failed in a row."""

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
# How many pauses that are over are remembered.
PAUSES_MAX: Final = 20
# Someone wants this very run, knowing that the pipeline is stopped.
_BY_HAND: Final = frozenset({Cause.MANUAL, Cause.REPLAY})


class EndedPause(Struct, frozen=True):
    """A time in which nothing was to begin."""

    since_ms: int
    until_ms: int


class Control(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said about a pipeline. Version 0: nothing ever was."""

    pipeline_id: str
    state: ControlState = ControlState.ACTIVE
    version: int = 0
    reason: str = ""
    by: str = ""
    since_ms: int = 0
    # A pause that ends by itself.
    until_ms: int | None = None
    failures_in_a_row: int = 0
    last_failed_run_id: str = ""
    # Those that are over, the last ones: what was due in them was not missed, whenever that is looked at.
    pauses: tuple[EndedPause, ...] = ()

    def state_at(self, now_ms: int) -> ControlState:
        """Return what holds at a moment: a pause may be over."""
        is_over = self.state is ControlState.PAUSED and self.until_ms is not None and now_ms >= self.until_ms
        return ControlState.ACTIVE if is_over else self.state


# What goes into the same transaction: writes, or what makes them from the control as it was and as it will be.
Also = Sequence[Write] | Callable[[Control, Control], Sequence[Write]]


def refusal(control: Control, cause: Cause, now_ms: int, *, while_paused: bool = False) -> str:
    """Return why a run may not begin, or nothing if it may. What someone begins by hand always may.

    `while_paused` is for a backfill that was allowed to go on in a pause; it does not go on after the breaker opened.
    """
    state = control.state_at(now_ms)
    if state is ControlState.ACTIVE or cause in _BY_HAND:
        return ""
    if state is ControlState.TRIPPED:
        return f"{control.failures_in_a_row} failures in a row have stopped it; resume it when the cause is mended"
    return "" if while_paused else f"{control.by} paused it: {control.reason}"


def after_run(control: Control, status: RunStatus, run_id: str, threshold: int, now_ms: int) -> Control:
    """Return the control once a run has ended so. The same object: it changes nothing.

    A threshold of 0 never trips. What people paused stays paused, and a success does not bring back what has tripped.
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
    # One change, which counts and trips.
    as_read = replace(counted, version=control.version)
    return _said(as_read, ControlState.TRIPPED, "breaker", reason, now_ms, None, now_ms)


class Controls:
    """The controls of one store. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, pipeline_id: str) -> Control:
        """Return what was said about a pipeline."""
        item = self._store.get(PIPELINES, control_key(pipeline_id), consistent=True)
        return Control(pipeline_id=pipeline_id) if item is None else control_of(item)

    def ls(self) -> list[Control]:
        """Return the controls of all pipelines about which anything was ever said."""
        found: list[Control] = []
        cursor: str | None = None
        while True:
            page = self._store.query(Query(table=PIPELINES, index="GSI1", partition="CONTROLS", cursor=cursor))
            found += map(control_of, page.items)
            cursor = page.cursor
            if cursor is None:
                return found

    def pause(self, pipeline_id: str, *, by: str, reason: str, until_ms: int | None = None, also: Also = ()) -> Control:
        """Let nothing begin by itself, until someone resumes the pipeline or a moment has come.

        A pipeline that the breaker has stopped stays stopped. Pausing it again in the same words changes nothing.
        Raises `InvalidPayloadError` without a name or a reason.
        """
        by, reason = required(pipeline_id, "by", by), required(pipeline_id, "reason", reason)

        def paused(control: Control, now_ms: int) -> Control:
            is_said = control.by == by and control.reason == reason and control.until_ms == until_ms
            state = control.state_at(now_ms)
            if state is ControlState.TRIPPED or (state is ControlState.PAUSED and is_said):
                return control
            since_ms = control.since_ms if state is ControlState.PAUSED else now_ms
            return _said(control, ControlState.PAUSED, by, reason, since_ms, until_ms, now_ms)

        return self._change(pipeline_id, paused, also)

    def resume(self, pipeline_id: str, *, by: str, reason: str, also: Also = ()) -> Control:
        """Let the pipeline begin runs again, with no failure held against it.

        One that is active stays as it is. Raises `InvalidPayloadError` without a name or a reason.
        """
        by, reason = required(pipeline_id, "by", by), required(pipeline_id, "reason", reason)

        def resumed(control: Control, now_ms: int) -> Control:
            if control.state is ControlState.ACTIVE:
                return control
            return replace(_said(control, ControlState.ACTIVE, by, reason, now_ms, None, now_ms), failures_in_a_row=0)

        return self._change(pipeline_id, resumed, also)

    def outcome_writes(
        self, pipeline_id: str, status: RunStatus, run_id: str, threshold: int
    ) -> tuple[Control, list[Write]]:
        """Return the control after a run that ended so, and the writes for the transaction in which it ends.

        They are refused if the control was changed meanwhile: ask for them again.
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
        raise ConflictError(f"pipeline {pipeline_id}: its control keeps changing; try again")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def control_key(pipeline_id: str) -> Key:
    """Return where the control of a pipeline is kept."""
    return PIPELINE_CONTROL.key(pipeline_id=pipeline_id)


def control_of(item: Mapping[str, Any]) -> Control:
    """Return the control that a row stands for."""
    return struct_of(item, Control)


def _said(
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
    """Return the pauses that are over once something else is said."""
    if control.state is not ControlState.PAUSED:
        return control.pauses
    until_ms = now_ms if control.until_ms is None else min(control.until_ms, now_ms)
    return (*control.pauses, EndedPause(control.since_ms, until_ms))[-PAUSES_MAX:]


def _put(control: Control) -> Put:
    index = PIPELINE_CONTROL.index_attributes(pipeline_id=control.pipeline_id)
    replaced = control.version - 1
    condition = version_is(replaced) if replaced else absent()
    return Put(PIPELINES, row(control_key(control.pipeline_id), control, **index), condition)
