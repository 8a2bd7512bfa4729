"""Signal API: read and update signals, one or many; history, and hourly volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from litestar import Response
from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate.auth import rules
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.errors import (
    DatasetNotFoundError,
    HeadgateError,
    InvalidPayloadError,
    NotFoundError,
    PreconditionFailedError,
    StoreBusyError,
    UserError,
)
from headgate.health.model import enums, timestamps
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import ANY_VERSION, SignalUpdate, Snapshot, UpdateResult, UpdateVerdict, no_update
from headgate.health.model.volume_counts import DAYS, DAYS_MAX
from headgate.health.resets import Reset
from headgate.health.service import HealthService
from headgate.health.signals.volumes import VolumeHistory
from headgate.health.signals.writer import BATCH_MAX
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag, if_match
from headgate.serve.http.problem import Problem, response
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rest.health.models import PageSize, SignalUpdateIn, SignalView, Text, signal_view
from headgate.serve.rest.parameters import PageToken, Timestamp

_ALL: Final = "/datasets/{dataset_urn}/signals"
_ONE: Final = f"{_ALL}/{{signal_type}}"
_READ: Final = rules.named(Permission.SIGNAL_READ, "path.dataset_urn")
_WRITE: Final = rules.named(Permission.SIGNAL_WRITE, "path.dataset_urn")
# A reset lifts what blocks a dataset, as an override does.
_RESET: Final = rules.named(Permission.GATE_OVERRIDE, "path.dataset_urn")
_VOLUMES: Final = "/datasets/{dataset_urn}/volume-history"
_DAYS_SHOWN: Final = 30
# Other refusals are conflicts, and carry the current signal.
_ERRORS: Final[Mapping[UpdateVerdict, type[HeadgateError]]] = {
    UpdateVerdict.DATASET_NOT_FOUND: DatasetNotFoundError,
    UpdateVerdict.UNAVAILABLE: StoreBusyError,
    UpdateVerdict.INVALID: InvalidPayloadError,
}


class SignalBatch(Struct, forbid_unknown_fields=True):
    """Updates, independent of each other."""

    updates: Annotated[list[SignalUpdateIn], Meta(min_length=1, max_length=BATCH_MAX)]


class ResetBody(Struct, forbid_unknown_fields=True):
    """Reason of the reset."""

    reason: Text


class ConsistentQuery(Struct, forbid_unknown_fields=True):
    """Whether to read from the store instead of the cache."""

    consistent: bool = False


class BreachQuery(Struct, forbid_unknown_fields=True):
    """Filter by state and tier."""

    state: list[str] = []
    tier: str | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 50


class HistoryQuery(Struct, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    """Time range; the last thirty days by default."""

    since: Timestamp | None = None
    until: Timestamp | None = None


class VolumeQuery(Struct, forbid_unknown_fields=True):
    """Number of days."""

    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = DAYS


class SignalList(Struct, frozen=True):
    """Signals of a dataset."""

    signals: list[SignalView]


class SignalPage(Struct, frozen=True):
    """A page of signals."""

    items: list[SignalView]
    next_page_token: str | None = None


class History(Struct, frozen=True):
    """Transitions of a signal, oldest first."""

    snapshots: list[Snapshot]


class SignalResult(Struct, frozen=True, kw_only=True):
    """Outcome of an update."""

    success: bool
    new_version: int | None
    duplicate: bool
    error_code: str | None
    error_message: str | None
    current: SignalView | None


class BatchResult(Struct, frozen=True, kw_only=True):
    """Outcomes of a batch, in order."""

    results: list[SignalResult]
    success_count: int
    failure_count: int


def signal_operations(health: HealthService) -> list[Operation]:
    """Return the operations on signals."""
    return _Signals(health).operations()


class _Signals:
    def __init__(self, health: HealthService) -> None:
        self._health = health
        self._signals = health.signals
        self._read = NamedDatasets(health, Permission.SIGNAL_READ)
        self._written = NamedDatasets(health, Permission.SIGNAL_WRITE)

    def operations(self) -> list[Operation]:
        refused = {404: Problem, 409: Problem, 412: Problem}
        listed = Rule(Permission.SIGNAL_READ, Reach.FILTERED)
        many = Rule(Permission.SIGNAL_WRITE, Reach.FOUND)
        return [
            Operation(
                "GET",
                "/signals",
                "List signals that are not OK",
                self.breaches,
                {200: SignalPage},
                query=BreachQuery,
                rule=listed,
            ),
            Operation(
                "POST",
                "/signals/batch",
                "Update many signals",
                self.batch,
                {200: BatchResult},
                body=SignalBatch,
                rule=many,
            ),
            Operation("GET", _ALL, "List signals of a dataset", self.ls, {200: SignalList}, rule=_READ),
            Operation(
                "POST",
                f"{_ALL}/reset",
                "Reset the signals of a dataset",
                self.reset,
                {200: Reset},
                body=ResetBody,
                rule=_RESET,
            ),
            Operation("GET", _ONE, "Show a signal", self.show, {200: SignalView}, query=ConsistentQuery, rule=_READ),
            Operation(
                "PUT",
                _ONE,
                "Update a signal",
                self.update,
                {200: SignalResult, **refused},
                body=SignalUpdateIn,
                rule=_WRITE,
            ),
            Operation(
                "GET",
                f"{_ONE}/history",
                "List transitions of a signal",
                self.history,
                {200: History},
                query=HistoryQuery,
                rule=_READ,
            ),
            Operation(
                "GET",
                _VOLUMES,
                "Show hourly event volumes of a dataset",
                self.volumes,
                {200: VolumeHistory},
                query=VolumeQuery,
                rule=_READ,
            ),
        ]

    def reset(self, call: Call[ResetBody, NoQuery]) -> Answer:
        urn = self._read.seen(call.path["dataset_urn"], call.principal)
        return Answer(self._health.resets.reset(urn, actor=call.principal.name, reason=call.body.reason))

    def ls(self, call: Call[None, NoQuery]) -> Answer:
        found = self._signals.of_dataset(self._read.seen(call.path["dataset_urn"], call.principal))
        return Answer(SignalList([signal_view(each) for each in found]))

    def show(self, call: Call[None, ConsistentQuery]) -> Answer:
        signal_type = enums.signal_type(call.path["signal_type"])
        urn = self._read.seen(call.path["dataset_urn"], call.principal)
        found = self._signals.get(urn, signal_type, consistent=call.query.consistent)
        if found is None:
            raise NotFoundError(no_update(urn, signal_type))
        return Answer(signal_view(found), headers=etag(found.version))

    def breaches(self, call: Call[None, BreachQuery]) -> Answer:
        query = call.query
        states = [enums.signal_state(each) for each in query.state] or [SignalState.CRITICAL, SignalState.WARNING]
        if SignalState.OK in states:
            raise UserError("state OK: healthy signals are listed by dataset; filter by CRITICAL, WARNING or UNKNOWN")
        page = self._signals.breaches(
            states=list(dict.fromkeys(states)),
            tier=None if query.tier is None else enums.tier(query.tier),
            limit=query.page_size,
            cursor=query.page_token,
        )
        seen = [signal_view(each) for each in page.signals if call.principal.reaches(each.dataset_urn)]
        return Answer(SignalPage(seen, page.cursor))

    def update(self, call: Call[SignalUpdateIn, NoQuery]) -> Answer | Response[bytes]:
        urn, body = call.path["dataset_urn"], call.body
        signal_type = enums.signal_type(call.path["signal_type"])
        if body.dataset_urn and self._health.registered(body.dataset_urn) != urn:
            raise InvalidPayloadError(f"dataset_urn {body.dataset_urn[:80]!r}: the path has {urn}")
        if body.signal_type and enums.signal_type(body.signal_type) != signal_type:
            raise InvalidPayloadError(f"signal_type {body.signal_type[:80]!r}: the path has {signal_type}")
        given = None if body.expected_version == ANY_VERSION else body.expected_version
        versions = if_match(call.headers)
        if versions is not None and given is not None and given not in versions:
            raise InvalidPayloadError(f"If-Match is {versions} but expected_version is {given}; send one of them")
        wanted = [ANY_VERSION if given is None else given] if versions is None else versions
        if not wanted:
            raise PreconditionFailedError("If-Match: no tag can match; read the signal again")
        for version in wanted:
            update = body.update(urn, signal_type)
            result = self._health.update_signal(replace(update, expected_version=version))
            if result.verdict is not UpdateVerdict.VERSION_CONFLICT:
                break
        error = _ERRORS.get(result.verdict)
        if error is not None:
            raise error(result.message)
        if not result.is_success:
            return _conflict(result, is_precondition=versions is not None)
        return Answer(_result(result), headers={} if result.signal is None else etag(result.signal.version))

    def batch(self, call: Call[SignalBatch, NoQuery]) -> Answer:
        # All or none: a request that names a forbidden dataset fails as a whole.
        self._written.require((each.dataset_urn for each in call.body.updates), call.principal)
        results: list[SignalResult | None] = []
        sound: list[SignalUpdate] = []
        for each in call.body.updates:
            try:
                sound.append(each.update(each.dataset_urn, each.signal_type))
                results.append(None)
            except UserError as exc:
                results.append(_refused(exc.message))
        taken = iter(self._signals.update_many(sound))
        outcomes = [each if each is not None else _result(next(taken)) for each in results]
        good = sum(each.success for each in outcomes)
        return Answer(BatchResult(results=outcomes, success_count=good, failure_count=len(outcomes) - good))

    def history(self, call: Call[None, HistoryQuery]) -> Answer:
        now_ms = int(self._health.clock.seconds() * 1000)
        since, until = call.query.since, call.query.until
        month = timestamps.instant(now_ms - _DAYS_SHOWN * 86_400_000)
        found = self._signals.history(
            call.path["dataset_urn"],
            enums.signal_type(call.path["signal_type"]),
            month if since is None else timestamps.moment(since, field="from"),
            timestamps.instant(now_ms) if until is None else timestamps.moment(until, field="to"),
        )
        return Answer(History(found))

    def volumes(self, call: Call[None, VolumeQuery]) -> Answer:
        return Answer(self._health.volumes.history(call.path["dataset_urn"], call.query.days))


def _result(result: UpdateResult) -> SignalResult:
    return SignalResult(
        success=result.is_success,
        new_version=result.signal.version if result.is_success and result.signal is not None else None,
        duplicate=result.verdict is UpdateVerdict.DUPLICATE,
        error_code=None if result.is_success else result.verdict.value,
        error_message=result.message or None,
        current=None if result.signal is None else signal_view(result.signal),
    )


def _conflict(result: UpdateResult, *, is_precondition: bool) -> Response[bytes]:
    """Return the problem of a rejected update, with the current signal."""
    failed = result.verdict is UpdateVerdict.VERSION_CONFLICT and is_precondition
    current = result.signal
    problem = Problem.of(
        412 if failed else 409,
        PreconditionFailedError.code if failed else result.verdict.value.lower(),
        result.message,
        current_version=None if current is None else current.version,
        current=None if current is None else signal_view(current),
    )
    return response(problem)


def _refused(message: str) -> SignalResult:
    return SignalResult(
        success=False,
        new_version=None,
        duplicate=False,
        error_code=UpdateVerdict.INVALID.value,
        error_message=message,
        current=None,
    )
