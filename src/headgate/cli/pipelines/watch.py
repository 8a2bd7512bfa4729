"""`headgate run watch` and `headgate backfill watch`: poll a run, a period or a backfill until it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.pipelines.views import Row, milliseconds_text, reason_text
from headgate.cli.screen import Screen, Step, open_screen
from headgate.cli.times import duration_text
from headgate.errors import NotFoundError, TransientError
from headgate.exit_codes import ExitCode
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.readiness.explain import PeriodState

if TYPE_CHECKING:
    from headgate.clock import Clock

# Interval of the polls: it grows while nothing changes.
_POLL_SECONDS_MIN: Final = 0.5
_POLL_SECONDS_MAX: Final = 5.0
_POLL_GROWTH: Final = 1.5
# How long a server may not answer, such as during a restart.
_OUTAGE_SECONDS: Final = 60.0
# Periods of a backfill that are explained, the earliest started first.
_EXPLAINED_MAX: Final = 3
# Shown for a period that has no run.
_WAITING: Final = "WAITING"
_NOT_WAITING: Final = frozenset(
    {PeriodState.RUNNING, PeriodState.DONE, PeriodState.FAILED, PeriodState.CANCELLED, PeriodState.SKIPPED}
)


class Look(NamedTuple):
    """What one poll has found. `exit_code` is set once the followed thing has ended."""

    state: Row
    status: str
    text: str
    notes: tuple[str, ...] = ()
    done: int = 0
    total: int = 0
    exit_code: ExitCode | None = None
    # Why it does not go on by itself.
    stall: str = ""

    @property
    def shown(self) -> tuple[object, ...]:
        """What makes a change: a heartbeat changes the state alone."""
        return self._replace(state={})


class Followed(Protocol):
    """A run, a period or a backfill on a server."""

    id: str
    is_counted: bool

    def look(self) -> Look:
        """Read its state. Raises as `Api.request` does."""


def follow(followed: Followed, *, timeout_seconds: float | None, as_json: bool, clock: Clock) -> ExitCode:
    """Show each change until the end, and return the exit code. None as timeout means no limit."""
    with open_screen([followed.id], as_json=as_json, is_counted=followed.is_counted) as screen:
        look = _follow_until_end(followed, screen, timeout_seconds, clock, with_notes=not as_json)
    if look is None or look.exit_code is None:
        typer.echo(f"{followed.id}: has not ended after {duration_text(timeout_seconds)}", err=True)
        return ExitCode.TRY_AGAIN
    if followed.is_counted and not as_json:
        # The bar is gone.
        typer.echo(f"{followed.id}  {look.status}  {look.text}")
    if look.stall:
        typer.echo(f"stalled: {look.stall}", err=True)
    return look.exit_code


def _follow_until_end(
    followed: Followed, screen: Screen, timeout_seconds: float | None, clock: Clock, *, with_notes: bool
) -> Look | None:
    """Show each change until the end or the timeout, and return the last look."""
    deadline = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
    last: Look | None = None
    answered_at = clock.monotonic()
    pause_seconds = _POLL_SECONDS_MIN
    while True:
        try:
            look = followed.look()
            answered_at = clock.monotonic()
        except TransientError:
            if last is None or clock.monotonic() - answered_at >= _OUTAGE_SECONDS:
                raise
            look = last
        if last is None or look.shown != last.shown:
            known = () if last is None else last.notes
            for note in look.notes if with_notes else ():
                if note not in known:
                    screen.message(note)
            screen.show(_step(followed.id, look, clock))
            pause_seconds = _POLL_SECONDS_MIN
        last = look
        if look.exit_code is not None:
            return look
        left_seconds = math.inf if deadline is None else deadline - clock.monotonic()
        if left_seconds <= 0:
            return look
        clock.sleep(min(pause_seconds, left_seconds))
        pause_seconds = min(_POLL_SECONDS_MAX, pause_seconds * _POLL_GROWTH)


def _step(followed_id: str, look: Look, clock: Clock) -> Step:
    return Step(
        id=followed_id,
        moment=f"{clock.now():%H:%M:%S}",
        status=look.status,
        text=look.text,
        done=look.done,
        total=look.total,
        is_ended=look.exit_code is not None,
        state=look.state,
    )


class FollowedRun:
    """One run. Until it has ended, the text is the explanation of its period."""

    is_counted = False

    def __init__(self, api: Api, run_id: str) -> None:
        self.id = run_id
        self._api = api

    def look(self) -> Look:
        run = self._api.get(at("runs", self.id))
        exit_code = _exit_code(RunStatus(run["status"]))
        if exit_code is not None:
            text = " ".join(part for part in (milliseconds_text(run["duration_ms"]), reason_text(run)) if part)
            return Look({"run": run, "why": None}, run["status"], text, exit_code=exit_code)
        why = _why(self._api, run["pipeline_id"], run["date"], run["schedule_id"])
        return Look({"run": run, "why": why}, run["status"], why["sentence"])


class FollowedPeriod:
    """A period of a pipeline, also before its first run; it ends when no attempt follows."""

    is_counted = False

    def __init__(self, api: Api, pipeline: str, date: str | None, schedule: str | None) -> None:
        why = api.get(at("pipelines", pipeline, "why"), date=date, schedule=schedule)
        # The current period stays the one that is followed.
        self._pipeline, self._date, self._schedule = pipeline, why["date"], why["schedule_id"]
        self.id = f"{pipeline} of {self._date}"
        self._api = api

    def look(self) -> Look:
        log = self._log()
        why = _why(self._api, self._pipeline, self._date, self._schedule)
        # The label of a line is the period, with which the sentence begins.
        text = why["sentence"].removeprefix(f"{self.id} ")
        if log is None or (log["status"] == RunStatus.PENDING and not log["run_id"]):
            state = {"run": None, "why": why}
            if why["standing"] == PeriodState.EXCLUDED:
                return Look(state, _WAITING, text, exit_code=ExitCode.STALLED, stall=why["sentence"])
            return Look(state, _WAITING, text)
        status = RunStatus(log["status"])
        run = self._api.get(at("runs", log["run_id"])) if log["run_id"] else None
        exit_code = None if log["is_rerun_due"] or self._is_retried(log) else _exit_code(status)
        return Look({"run": run, "why": why}, status.value, text, exit_code=exit_code)

    def _log(self) -> Row | None:
        try:
            log: Row = self._api.get(at("pipelines", self._pipeline, "run-logs", self._date), schedule=self._schedule)
        except NotFoundError:
            # Nothing has started yet.
            return None
        return log

    def _is_retried(self, log: Row) -> bool:
        """Whether another attempt follows a failed run. The event is written together with the failure."""
        if log["status"] != RunStatus.FAILED or not log["run_id"]:
            return False
        path = at("pipelines", self._pipeline, "events")
        events = self._api.entries(path, "events", None, name="RETRY_SCHEDULED", since=log["begun_at"])
        return any(each["run_id"] == log["run_id"] for each in events)


class FollowedBackfill:
    """A backfill, with the explanations of its periods that wait."""

    is_counted = True

    def __init__(self, api: Api, backfill_id: str) -> None:
        self.id = backfill_id
        self._api = api

    def look(self) -> Look:
        from headgate.cli.pipelines.backfill import progress_text

        found: dict[str, Any] = self._api.get(at("backfills", self.id))
        # A backfill may have thousands of them; `backfill show --json` prints them.
        found.pop("dates")
        explained = [
            _why(self._api, found["pipeline_id"], date, found["schedule_id"])
            for date in found["running"][:_EXPLAINED_MAX]
        ]
        waits = [each["sentence"] for each in explained if each["standing"] not in _NOT_WAITING]
        failures = [f"failed: {date}: {reason}" for date, reason in found["failed"].items()]
        exit_code = _backfill_exit_code(found)
        is_stalled = exit_code is ExitCode.STALLED
        return Look(
            {**found, "why": waits},
            found["state"],
            progress_text(found),
            notes=(*failures, *waits),
            done=found["taken"] - len(found["running"]),
            total=found["dates_count"],
            exit_code=exit_code,
            stall=f"{found['reason']}; 'headgate backfill resume {self.id}' continues it" if is_stalled else "",
        )


def _backfill_exit_code(found: Mapping[str, Any]) -> ExitCode | None:
    """Return the exit code of a backfill that has ended, or that stopped at a failure; None if it goes on."""
    if found["running"]:
        return None
    if found["state"] == "PAUSED" and found["stop_on_failure"] and found["failed"]:
        return ExitCode.STALLED
    if found["state"] == "COMPLETED":
        return ExitCode.FAILED if found["failed"] else ExitCode.OK
    return ExitCode.FAILED if found["state"] == "CANCELLED" else None


def _exit_code(status: RunStatus) -> ExitCode | None:
    if status.is_done:
        return ExitCode.OK
    return ExitCode.FAILED if status.is_terminal else None


def _why(api: Api, pipeline: str, date: str, schedule: str) -> Row:
    """Return the explanation of a period without the checks behind it."""
    found: dict[str, Any] = api.get(at("pipelines", pipeline, "why"), date=date, schedule=schedule)
    found.pop("tree")
    return found
