"""Gate decisions: a pure function from the facts about a dataset to a ruling with all its reasons."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import InvalidPayloadError
from headgate.health.gate.upstream import NAMED_MAX, UpstreamFacts, first_troubles
from headgate.health.model import freshness
from headgate.health.model.datasets import Dataset, DatasetGate, DatasetStatus, OnSilence, OnUpstream
from headgate.health.model.enums import FRESHNESS, Severity, SignalState
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.health.model.timestamps import instant, milliseconds

# How long a caller may cache a ruling.
ANSWER_SECONDS: Final = 30
# A signal whose window ended this long ago counts as unknown, unless the caller or the freshness SLO says otherwise.
AGE_SECONDS_MAX: Final = 86_400.0
AGE_SECONDS_LONGEST: Final = 366 * 86_400


class Verb(enum.StrEnum):
    """The intended use of a dataset. PUBLISH: make written data available to readers."""

    READ = "read"
    PUBLISH = "publish"


class Ruling(enum.StrEnum):
    """The ruling, from best to worst."""

    ALLOW = "allow"
    WARN = "warn"
    UNKNOWN = "unknown"
    BLOCK = "block"


class OnUnknown(enum.StrEnum):
    """The ruling for a registered dataset of unknown state. ASK leaves it to the caller: the ruling is UNKNOWN.

    A dataset that is not registered is UNKNOWN, or BLOCK if that is the ruling here.
    """

    ALLOW = "allow"
    WARN = "warn"
    BLOCK = "block"
    ASK = "unknown"


class Code(enum.StrEnum):
    """The kind of a reason."""

    SIGNAL_CRITICAL = "SIGNAL_CRITICAL"
    SIGNAL_WARNING = "SIGNAL_WARNING"
    SIGNAL_UNKNOWN = "SIGNAL_UNKNOWN"
    SIGNAL_OUTDATED = "SIGNAL_OUTDATED"
    FRESHNESS_OVERDUE = "FRESHNESS_OVERDUE"
    NO_SIGNALS = "NO_SIGNALS"
    INCIDENT_OPEN = "INCIDENT_OPEN"
    UPSTREAM_UNHEALTHY = "UPSTREAM_UNHEALTHY"
    DATASET_NOT_FOUND = "DATASET_NOT_FOUND"
    DATASET_DEPRECATED = "DATASET_DEPRECATED"
    DATASET_DELETED = "DATASET_DELETED"
    OVERRIDDEN = "OVERRIDDEN"


class Reason(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fact behind a ruling, and the ruling that it alone would give."""

    code: Code
    ruling: Ruling
    dataset_urn: str
    message: str
    signal_type: str | None = None
    incident_id: str | None = None
    since: str | None = None
    # The dataset upstream that the reason is about.
    upstream_urn: str | None = None


class Override(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's permission to use an unhealthy dataset until a time."""

    override_id: str
    dataset_urn: str
    verb: Verb
    actor: str
    reason: str
    created_at: str
    expires_at: str
    # The principal it applies to; None for all.
    principal: str | None = None
    ticket: str | None = None


class DatasetRuling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ruling on one dataset. `until` is when it changes by itself, if it does."""

    dataset_urn: str
    ruling: Ruling
    reasons: tuple[Reason, ...] = ()
    since: str | None = None
    until: str | None = None
    override_id: str | None = None


class GatePolicy(Struct, frozen=True, kw_only=True):
    """The server's policy, which holds unless a dataset has its own."""

    on_silence: OnSilence = OnSilence.CRITICAL
    upstream: OnUpstream = OnUpstream.WARN
    upstream_hops: int = 3

    def on_upstream(self, own: DatasetGate | None) -> tuple[OnUpstream, int]:
        """Return what unhealthy datasets upstream mean, and up to how many producers away, given a dataset's policy."""
        if own is None:
            return self.upstream, self.upstream_hops
        return own.upstream or self.upstream, own.upstream_hops or self.upstream_hops


class GateQuestion(Struct, frozen=True, kw_only=True):
    """A request to the gate. Raises `InvalidPayloadError` for an invalid age.

    `age_seconds_max` is counted from the end of a signal's window. None: a day, or the dataset's freshness SLO if that
    is longer.
    """

    principal: str
    verb: Verb = Verb.READ
    on_unknown: OnUnknown = OnUnknown.WARN
    age_seconds_max: float | None = None

    def __post_init__(self) -> None:
        # Phrased so that NaN, which compares false, is rejected as well.
        if self.age_seconds_max is not None and not 0 < self.age_seconds_max <= AGE_SECONDS_LONGEST:
            raise InvalidPayloadError(
                f"max_age {self.age_seconds_max}: give a time of up to {AGE_SECONDS_LONGEST:,} seconds"
            )


class DatasetFacts(Struct, frozen=True, kw_only=True):
    """The facts about a dataset."""

    dataset_urn: str
    dataset: Dataset | None
    signals: Sequence[Signal] = ()
    incidents: Sequence[Incident] = ()
    overrides: Sequence[Override] = ()
    upstream: UpstreamFacts = UpstreamFacts()


_RANK: Final = {ruling: rank for rank, ruling in enumerate(Ruling)}


def worst(rulings: Sequence[Ruling]) -> Ruling:
    """Return the worst of some rulings; ALLOW if there are none."""
    return max(rulings, key=_RANK.__getitem__, default=Ruling.ALLOW)


_SERVER_DEFAULTS: Final = GatePolicy()


def judge(
    known: DatasetFacts, question: GateQuestion, now_ms: int, policy: GatePolicy = _SERVER_DEFAULTS
) -> DatasetRuling:
    """Return the ruling on a dataset."""
    promise = _promise(known, policy)
    reasons = [
        *_of_dataset(known, question),
        *_of_signals(known, question, promise, now_ms),
        *_of_incidents(known, question),
        *_of_upstream(known, policy),
    ]
    ruling = worst([each.ruling for each in reasons])
    override = _override(known.overrides, question, now_ms) if ruling in (Ruling.BLOCK, Ruling.UNKNOWN) else None
    if override is not None:
        message = f"{override.actor} allows it until {override.expires_at}: {override.reason}"
        reasons.append(
            Reason(
                code=Code.OVERRIDDEN,
                ruling=Ruling.ALLOW,
                dataset_urn=known.dataset_urn,
                message=message,
                since=override.created_at,
            )
        )
    against = [each for each in reasons if each.ruling is ruling and ruling is not Ruling.ALLOW]
    return DatasetRuling(
        dataset_urn=known.dataset_urn,
        ruling=ruling if override is None else Ruling.WARN,
        reasons=tuple(sorted(reasons, key=lambda each: -_RANK[each.ruling])),
        since=min((each.since for each in against if each.since is not None), default=None),
        until=None if override is None else override.expires_at,
        override_id=None if override is None else override.override_id,
    )


def _of_dataset(known: DatasetFacts, question: GateQuestion) -> list[Reason]:
    urn, dataset = known.dataset_urn, known.dataset
    if dataset is None:
        # A misspelled name must not pass, whatever the caller makes of a dataset without signals.
        ruling = worst([Ruling.UNKNOWN, _unknown(question)])
        return [_reason(Code.DATASET_NOT_FOUND, ruling, urn, not_registered(urn))]
    if dataset.status is DatasetStatus.DELETED:
        message = f"{urn} was deleted on {dataset.updated_at}; use its replacement"
        return [_reason(Code.DATASET_DELETED, Ruling.BLOCK, urn, message, since=dataset.updated_at)]
    found = []
    if dataset.status is DatasetStatus.DEPRECATED:
        message = f"{urn} is deprecated; ask {dataset.owner_team} for its replacement"
        found.append(_reason(Code.DATASET_DEPRECATED, Ruling.WARN, urn, message, since=dataset.updated_at))
    if not known.signals:
        message = f"{urn} has no health signals yet"
        found.append(_reason(Code.NO_SIGNALS, _unknown(question), urn, message))
    return found


def not_registered(urn: str) -> str:
    """Return the reason for a dataset that the registry does not have, with the remedy."""
    return f"{urn} is not registered; correct the name, or run 'headgate dataset register {urn}'"


def _promise(known: DatasetFacts, policy: GatePolicy) -> freshness.Promise | None:
    """Return the freshness promise of a dataset in use, or None."""
    dataset = known.dataset
    if dataset is None or dataset.slos is None or dataset.status is DatasetStatus.DELETED:
        return None
    return freshness.promise_of(dataset.slos.freshness, policy.on_silence)


def _of_signals(
    known: DatasetFacts, question: GateQuestion, promise: freshness.Promise | None, now_ms: int
) -> list[Reason]:
    overdue = None if promise is None else _overdue(known, question, promise, now_ms)
    # A finding of the SLO timer says the same as the reason for overdue reports.
    judged = [each for each in known.signals if overdue is None or each.signal_type != FRESHNESS or not _is_late(each)]
    found = [overdue, *(_of_signal(signal, question) for signal in judged)]
    # A signal of an old window describes the past, whatever its state and whenever it was written.
    found += [
        _outdated(signal, question)
        for signal in known.signals
        if _is_outdated(signal, question.age_seconds_max, promise, now_ms)
    ]
    return [each for each in found if each is not None]


def _is_late(signal: Signal) -> bool:
    return signal.state.is_breach and freshness.is_overdue_finding(signal.value)


def _is_outdated(signal: Signal, age_seconds_max: float | None, promise: freshness.Promise | None, now_ms: int) -> bool:
    age_ms = now_ms - milliseconds(signal.value.window_end)
    if age_seconds_max is not None:
        return age_ms > age_seconds_max * 1000
    if promise is not None and signal.signal_type == FRESHNESS:
        return False
    promised_ms = 0 if promise is None else promise.broken_ms
    return age_ms > max(AGE_SECONDS_MAX * 1000, promised_ms) + freshness.interval_ms(signal.value)


def _outdated(signal: Signal, question: GateQuestion) -> Reason:
    window_end = signal.value.window_end
    message = (
        f"{signal.signal_type} of {signal.dataset_urn} describes a window that ended at {window_end}; "
        "check that its engine still runs"
    )
    return _signal_reason(Code.SIGNAL_OUTDATED, _unknown(question), signal, message, window_end)


def _overdue(known: DatasetFacts, question: GateQuestion, promise: freshness.Promise, now_ms: int) -> Reason | None:
    """Return the reason for facts on freshness that are older than the SLO promises, or None.

    A FRESHNESS signal that its engine reported as CRITICAL is a reason already.
    """
    held = next((each for each in known.signals if each.signal_type == FRESHNESS), None)
    if held is not None and held.state is SignalState.CRITICAL and not freshness.is_overdue_finding(held.value):
        return None
    report = freshness.newest_report(known.signals)
    since = _promised_since(known) if report is None else report.window_end
    expected_ms = milliseconds(since) if report is None else report.expected_ms
    state = freshness.state_of(promise, expected_ms, now_ms)
    if state is SignalState.OK:
        return None
    if question.verb is Verb.PUBLISH:
        # Publishing is what repairs a late dataset.
        ruling = Ruling.WARN
    elif state is SignalState.CRITICAL:
        ruling = Ruling.BLOCK
    elif freshness.is_broken(promise, expected_ms, now_ms):
        ruling = worst([Ruling.WARN, _unknown(question)])
    else:
        ruling = Ruling.WARN
    what = "there is no report since" if report is None else "the newest report is on a window that ended at"
    message = (
        f"freshness of {known.dataset_urn} is overdue: {what} {since}, and the SLO allows "
        f"{promise.broken_ms / 1000:g} s; check that its engine still runs"
    )
    return Reason(
        code=Code.FRESHNESS_OVERDUE,
        ruling=ruling,
        dataset_urn=known.dataset_urn,
        message=message,
        signal_type=FRESHNESS,
        incident_id=None if held is None else held.value.incident_id,
        since=instant(expected_ms + promise.warning_ms),
    )


def _promised_since(known: DatasetFacts) -> str:
    assert known.dataset is not None
    return known.dataset.updated_at or known.dataset.created_at or instant(0)


def _of_signal(signal: Signal, question: GateQuestion) -> Reason | None:
    named, value = f"{signal.signal_type} of {signal.dataset_urn}", signal.value
    since = signal.since
    window = f"window {value.window_start} to {value.window_end}"
    if value.state is SignalState.CRITICAL:
        # Publishing is what repairs a late dataset.
        is_cure = question.verb is Verb.PUBLISH and signal.signal_type == FRESHNESS
        message = f"{named} is CRITICAL since {since}, {window}: {value.failure_signature}"
        return _signal_reason(Code.SIGNAL_CRITICAL, Ruling.WARN if is_cure else Ruling.BLOCK, signal, message, since)
    if value.state is SignalState.WARNING:
        message = f"{named} is WARNING since {since}, {window}: {value.failure_signature}"
        return _signal_reason(Code.SIGNAL_WARNING, Ruling.WARN, signal, message, since)
    if value.state is SignalState.UNKNOWN:
        message = f"{named} could not be evaluated since {since}"
        return _signal_reason(Code.SIGNAL_UNKNOWN, _unknown(question), signal, message, since)
    return None


def _of_incidents(known: DatasetFacts, question: GateQuestion) -> list[Reason]:
    not_ok = {each.value.incident_id for each in known.signals if each.state is not SignalState.OK}
    found = []
    for incident in known.incidents:
        # An incident whose signals are all OK resolves soon; one that a person opened stays until it is resolved.
        is_recovering = bool(incident.links) and incident.incident_id not in not_ok
        blocks = incident.severity is Severity.SEV_1 and not is_recovering and question.verb is Verb.READ
        ruling = Ruling.BLOCK if blocks else Ruling.WARN
        message = f"{incident.incident_id} is {incident.status} ({incident.severity}): {incident.title}"
        found.append(
            Reason(
                code=Code.INCIDENT_OPEN,
                ruling=ruling,
                dataset_urn=known.dataset_urn,
                message=message,
                incident_id=incident.incident_id,
                since=incident.episode_started_at or incident.created_at,
            )
        )
    return found


def _of_upstream(known: DatasetFacts, policy: GatePolicy) -> list[Reason]:
    meaning, _ = policy.on_upstream(None if known.dataset is None else known.dataset.gate)
    if meaning is OnUpstream.IGNORE:
        return []
    ruling = Ruling.BLOCK if meaning is OnUpstream.HOLD else Ruling.WARN
    return [
        Reason(
            code=Code.UPSTREAM_UNHEALTHY,
            ruling=ruling,
            dataset_urn=known.dataset_urn,
            message=f"{known.dataset_urn} is fed by {each.trouble.dataset_urn}, {_hops(each.distance)} upstream: "
            f"{each.trouble.message}",
            signal_type=each.trouble.signal_type,
            incident_id=each.trouble.incident_id,
            since=each.trouble.since,
            upstream_urn=each.trouble.dataset_urn,
        )
        for each in first_troubles(known.upstream, NAMED_MAX)
    ]


def _hops(distance: int) -> str:
    return "1 hop" if distance == 1 else f"{distance} hops"


def _override(overrides: Sequence[Override], question: GateQuestion, now_ms: int) -> Override | None:
    fitting = [
        each
        for each in overrides
        if each.verb is question.verb
        and each.principal in (None, question.principal)
        and milliseconds(each.expires_at) > now_ms
    ]
    return max(fitting, key=lambda each: each.expires_at, default=None)


def _unknown(question: GateQuestion) -> Ruling:
    return Ruling(question.on_unknown.value)


def _reason(code: Code, ruling: Ruling, urn: str, message: str, since: str | None = None) -> Reason:
    return Reason(code=code, ruling=ruling, dataset_urn=urn, message=message, since=since)


def _signal_reason(code: Code, ruling: Ruling, signal: Signal, message: str, since: str) -> Reason:
    return Reason(
        code=code,
        ruling=ruling,
        dataset_urn=signal.dataset_urn,
        message=message,
        signal_type=signal.signal_type,
        incident_id=signal.value.incident_id,
        since=since,
    )
