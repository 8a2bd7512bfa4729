"""Check API: the checks of datasets with their results, and the expected bands. Checks cannot be defined here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, to_builtins

from headgate.auth import rules
from headgate.auth.principals import may
from headgate.auth.roles import Permission
from headgate.checks.model import SIGNAL_TYPES, Outcome
from headgate.checks.service import DAYS_MAX, CheckService, CheckStatus, ExpectedHours
from headgate.checks.state import NEVER_MS
from headgate.health.model.enums import SignalState
from headgate.health.results.model import PastResult
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation

_OF_DATASET: Final = "/datasets/{dataset_urn}/checks"
_ONE: Final = f"{_OF_DATASET}/{{check}}"


class CheckQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter of checks."""

    dataset_urn: Annotated[str, Meta(max_length=512)] | None = None
    state: SignalState | None = None


class DaysQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Number of days."""

    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = 7


class BacktestBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Number of stored days to judge."""

    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = 28


class RunCheckBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Reason of the request."""

    reason: Annotated[str, Meta(max_length=1024)] = ""


class CheckView(Struct, frozen=True, kw_only=True):
    """A check and its last result. `state` is null before the first; `since` is when that state began."""

    dataset_urn: str
    id: str
    kind: str
    signal_type: str
    description: str
    severity: str
    source: str
    every_seconds: float | None
    after_runs: bool
    state: SignalState | None
    reason: str
    at: str | None
    since: str | None
    duration_ms: int
    next_at: str | None
    is_running: bool
    history: list[PastResult]


class CheckDetail(CheckView, frozen=True, kw_only=True):
    """A check with its definition, without secrets."""

    definition: dict[str, Any]


class CheckList(Struct, frozen=True):
    """Checks, by dataset and id.

    Of one dataset, `not_evaluated` names the constraints of its fields that no check of its table evaluates.
    """

    checks: list[CheckView]
    not_evaluated: list[str] = []


class OutcomeView(Struct, frozen=True, kw_only=True):
    """The outcome of a check that was tried. Nothing was stored."""

    dataset_urn: str
    id: str
    state: SignalState
    reason: str
    value: float | None
    window_start: str
    window_end: str
    duration_ms: int


class RequestedCheck(Struct, frozen=True, kw_only=True):
    """A check that is due now."""

    dataset_urn: str
    id: str


def check_operations(checks: CheckService) -> list[Operation]:
    """Return the operations on checks."""
    return _Checks(checks).operations()


class _Checks:
    def __init__(self, checks: CheckService) -> None:
        self._checks = checks

    def operations(self) -> list[Operation]:
        reads = rules.named(Permission.SIGNAL_READ, "path.dataset_urn")
        writes = rules.named(Permission.SIGNAL_WRITE, "path.dataset_urn")
        listed = rules.filtered(Permission.SIGNAL_READ, "query.dataset_urn")
        return [
            Operation("GET", "/checks", "List checks", self.ls_all, {200: CheckList}, query=CheckQuery, rule=listed),
            Operation("GET", _OF_DATASET, "List checks of a dataset", self.ls, {200: CheckList}, rule=reads),
            Operation("GET", _ONE, "Show a check", self.show, {200: CheckDetail}, rule=reads),
            Operation(
                "POST", f"{_ONE}/run", "Run a check now", self.run, {202: RequestedCheck}, body=RunCheckBody,
                rule=writes, repeatable=True,
            ),
            Operation(
                "POST", f"{_ONE}/try", "Run a check now without storing the result", self.try_check,
                {200: OutcomeView}, rule=writes,
            ),
            Operation(
                "POST", f"{_ONE}/backtest", "Judge stored history by the expected bands of a check", self.backtest,
                {200: ExpectedHours}, body=BacktestBody, rule=reads,
            ),
            Operation(
                "GET", "/datasets/{dataset_urn}/expected-volumes", "Show expected hourly volumes of a dataset",
                self.expected, {200: ExpectedHours}, query=DaysQuery, rule=reads,
            ),
        ]  # fmt: skip

    def ls_all(self, call: Call[None, CheckQuery]) -> Answer:
        found = [
            each
            for each in self._checks.ls(call.query.dataset_urn)
            if may(call.principal, Permission.SIGNAL_READ, each.dataset_urn)
        ]
        shown = [view_of(each) for each in found]
        wanted = call.query.state
        return Answer(CheckList([each for each in shown if wanted is None or each.state is wanted]))

    def ls(self, call: Call[None, NoQuery]) -> Answer:
        urn = call.path["dataset_urn"]
        return Answer(CheckList([view_of(each) for each in self._checks.ls(urn)], self._checks.not_evaluated(urn)))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        status = self._checks.get(call.path["dataset_urn"], call.path["check"])
        file = status.known.file
        # Secrets are references, so that the definition has none.
        definition = to_builtins(status.known.check, enc_hook=float)
        if file.source is not None:
            definition["source"] = to_builtins(file.source, enc_hook=float)
        return Answer(CheckDetail(**_fields(status), definition=definition))

    def run(self, call: Call[RunCheckBody, NoQuery]) -> Answer:
        urn, name = call.path["dataset_urn"], call.path["check"]
        self._checks.request(urn, name, call.principal.name)
        return Answer(RequestedCheck(dataset_urn=urn, id=name), status=202)

    def try_check(self, call: Call[None, NoQuery]) -> Answer:
        urn, name = call.path["dataset_urn"], call.path["check"]
        return Answer(outcome_view(urn, name, self._checks.try_check(urn, name)))

    def backtest(self, call: Call[BacktestBody, NoQuery]) -> Answer:
        return Answer(self._checks.backtest(call.path["dataset_urn"], call.path["check"], call.body.days))

    def expected(self, call: Call[None, DaysQuery]) -> Answer:
        return Answer(self._checks.expected_volumes(call.path["dataset_urn"], call.query.days))


def outcome_view(dataset_urn: str, check_id: str, outcome: Outcome) -> OutcomeView:
    """Return an outcome for answers."""
    return OutcomeView(
        dataset_urn=dataset_urn,
        id=check_id,
        state=outcome.state,
        reason=outcome.reason,
        value=outcome.value,
        window_start=_iso(outcome.window_start_ms),
        window_end=_iso(outcome.window_end_ms),
        duration_ms=outcome.duration_ms,
    )


def view_of(status: CheckStatus) -> CheckView:
    """Return a check for answers."""
    return CheckView(**_fields(status))


def _fields(status: CheckStatus) -> dict[str, Any]:
    check, file, state, result = status.known.check, status.known.file, status.state, status.result
    has_run = state is not None and state.last_state is not None
    due_ms = NEVER_MS if state is None or state.claimed_by else state.due_at_ms
    return {
        "dataset_urn": status.dataset_urn,
        "id": check.id,
        "kind": check.kind,
        "signal_type": SIGNAL_TYPES[check.kind],
        "description": check.description,
        "severity": check.severity.value,
        "source": status.known.source,
        "every_seconds": None if file.every is None else float(file.every),
        "after_runs": file.after_runs,
        "state": state.last_state if state is not None and has_run else None,
        "reason": state.last_reason if state is not None else "",
        "at": _iso(state.last_at_ms) if state is not None and has_run else None,
        "since": None if result is None else result.since,
        "duration_ms": 0 if state is None else state.duration_ms,
        "next_at": None if due_ms == NEVER_MS else _iso(due_ms),
        "is_running": state is not None and bool(state.claimed_by),
        "history": [] if result is None else list(result.history),
    }


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
