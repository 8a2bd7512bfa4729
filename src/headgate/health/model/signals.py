"""Signal values: a signal, its updates and their results, its history, and the validation of an update."""

from __future__ import annotations

import enum
import hashlib
import re
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.health.model import enums, timestamps, urns
from headgate.health.model.enums import STATE_OK, Confidence, SignalState, Tier
from headgate.health.model.timestamps import instant, is_canonical
from headgate.health.model.urns import is_evidence_id
from headgate.health.model.volume_counts import VolumeHour
from headgate.store.model.schema import Key

SAMPLES_MAX: Final = 10
TEXT_MAX: Final = 256
# The error text of a failure, and the failures that one signal names.
MESSAGE_MAX: Final = 2_000
SIGNATURES_MAX: Final = 50
# An update whose window ends in the future would make every later, correct one stale.
FUTURE_MS_MAX: Final = 10 * 60 * 1000
# As `expected_version` of an update: no version check, only the order of windows decides.
ANY_VERSION: Final = -1
_SIGNATURE: Final = re.compile(r"[^\s#:\x00-\x1f\x7f]+(:[^#\x00-\x1f\x7f]+)?")
_COUNT_MAX: Final = 2**53 - 1
# The range that every backend stores; smaller numbers are rounded to zero.
_NUMBER_MAX: Final = 1e100
_NUMBER_MIN: Final = 1e-100


class Metrics(Struct, frozen=True, kw_only=True, gc=False):
    """Counts of the window."""

    evidence_count: int = 0
    pass_count: int = 0
    fail_count: int = 0

    @property
    def compliance_rate(self) -> float | None:
        """The share that passed, or None without results."""
        judged = self.pass_count + self.fail_count
        return None if judged == 0 else self.pass_count / judged


class Producer(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The producer that probably caused a breach."""

    producer_id: str
    version: str = ""
    confidence: Confidence | None = None
    deployed_at: str | None = None


class SignalValue(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state and score of a signal at the end of a window.

    `message` is the error text of a failure. A signal that adds up several results, such as those of tests, names every
    failure in `failure_signatures`, the worst first; then one incident has all of them.
    """

    state: SignalState
    score: float
    window_start: str
    window_end: str
    slo_threshold: float = 0.0
    window_type: str = ""
    metrics: Metrics = Metrics()
    breach_start: str | None = None
    failure_signature: str | None = None
    failure_signatures: tuple[str, ...] = ()
    message: str | None = None
    top_producer: Producer | None = None
    evidence_sample: tuple[str, ...] = ()
    incident_id: str | None = None

    @property
    def digest(self) -> str:
        """A hash that tells two values of one window apart. It leaves out the incident, which is linked later."""
        seen = replace(self, incident_id=None) if self.incident_id is not None else self
        return hashlib.blake2b(_encode(seen), digest_size=12).hexdigest()


class SignalUpdate(Struct, frozen=True, kw_only=True, gc=False):
    """A new value of a signal. `expected_version` 0: the signal must not exist yet; -1: any version.

    `is_counted`: the sender gave the metrics; otherwise they are zero by default. `of_timer`: the freshness timer made
    it, because no report came in time or the need for one ended. `correlation_id` is that of the request, for the log:
    another request's thread may apply the update.
    """

    dataset_urn: str
    signal_type: str
    value: SignalValue
    expected_version: int = 0
    is_counted: bool = True
    of_timer: bool = False
    correlation_id: str | None = None


class Signal(Struct, frozen=True, kw_only=True, gc=False):
    """A signal. `stale`: it came from the cache while the store was unavailable.

    `ok_until` is the end of the latest OK window, kept while the signal is not OK. `volume` is set for VOLUME only: the
    windows so far of the hour of the latest count.
    """

    dataset_urn: str
    signal_type: str
    value: SignalValue
    tier: Tier
    owner_team: str
    version: int
    digest: str
    last_updated: str
    state_changed_at: str
    previous_state: SignalState | None = None
    ok_until: str | None = None
    # When the current state was first stored. None: an earlier release stored it.
    detected_at: str | None = None
    volume: VolumeHour | None = None
    stale: bool = False
    age_seconds: float = 0.0

    @property
    def state(self) -> SignalState:
        return self.value.state

    @property
    def since(self) -> str:
        """Since when the state is known. The window, which it describes, may be much older."""
        return self.detected_at or self.state_changed_at

    @property
    def last_ok_at(self) -> str | None:
        """The end of the latest OK window, if there was one."""
        return self.value.window_end if self.value.state is STATE_OK else self.ok_until


class Snapshot(Struct, frozen=True, kw_only=True):
    """A transition in a signal's history. `late`: the window arrived after a later one and was not applied."""

    state: SignalState
    window_start: str
    window_end: str
    changed_at: str
    version: int
    previous_state: SignalState | None = None
    score: float | None = None
    failure_signature: str | None = None
    incident_id: str | None = None
    late: bool = False


class UpdateVerdict(enum.StrEnum):
    """The result code of an update. All but the first two are error codes on the wire."""

    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    STALE_WINDOW = "STALE_WINDOW"
    DATASET_NOT_FOUND = "DATASET_NOT_FOUND"
    INVALID = "VALIDATION_ERROR"
    REPEATED_KEY = "REPEATED_KEY"
    UNAVAILABLE = "UNAVAILABLE"

    @property
    def is_success(self) -> bool:
        return self is UpdateVerdict.APPLIED or self is UpdateVerdict.DUPLICATE


# As a constant, because an attribute of an enum class is slow to read.
APPLIED: Final = UpdateVerdict.APPLIED


class UpdateResult(Struct, frozen=True, gc=False):
    """The result of an update. `signal` is the current signal, if there is one."""

    verdict: UpdateVerdict
    signal: Signal | None = None
    message: str = ""
    is_transition: bool = False

    @property
    def is_success(self) -> bool:
        return self.verdict.is_success


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def checked(update: SignalUpdate, now_ms: int) -> SignalUpdate:
    """Return the update in canonical form. Raises `InvalidPayloadError` or `InvalidIdError`, naming every field."""
    canonical = update if _is_plain(update, now_ms) else _canonical(update, now_ms)
    urns.dataset_urn(update.dataset_urn)
    signal_type = enums.signal_type(update.signal_type)
    return canonical if signal_type == update.signal_type else replace(canonical, signal_type=signal_type)


def no_update(dataset_urn: str, signal_type: str) -> str:
    """Return the message for a signal that does not exist, with the type that a misspelled one stands for."""
    meant = enums.intended_type(signal_type)
    hint = "" if meant is None else f"; did you mean {meant}?"
    return f"signal {signal_type} of {dataset_urn}: no update received yet{hint}"


def is_signature(text: str) -> bool:
    """Whether a text is a valid failure signature."""
    return len(text) <= TEXT_MAX and _SIGNATURE.fullmatch(text) is not None


def _canonical(update: SignalUpdate, now_ms: int) -> SignalUpdate:
    """Return the update with a value in canonical form. Raises `InvalidPayloadError`, naming every field."""
    canonical = replace(update, value=_canonical_value(update.value))
    problems = _problems(canonical, now_ms)
    if problems:
        raise InvalidPayloadError(f"signal {update.dataset_urn[:80]} {update.signal_type[:64]}: {'; '.join(problems)}")
    return canonical


def _canonical_value(value: SignalValue) -> SignalValue:
    """Return a value with its timestamps in canonical form, in which they are compared."""
    producer = value.top_producer
    if producer is not None and producer.deployed_at is not None:
        deployed_at = timestamps.moment(producer.deployed_at, field="top_producer.deployed_at")
        producer = replace(producer, deployed_at=deployed_at)
    return replace(
        value,
        score=0.0 if abs(value.score) < _NUMBER_MIN else value.score,
        slo_threshold=0.0 if abs(value.slo_threshold) < _NUMBER_MIN else value.slo_threshold,
        window_start=timestamps.moment(value.window_start, field="window_start"),
        window_end=timestamps.moment(value.window_end, field="window_end"),
        breach_start=None if not value.breach_start else timestamps.moment(value.breach_start, field="breach_start"),
        failure_signature=value.failure_signature or None,
        message=value.message or None,
        top_producer=producer,
        # Health assigns incidents; a sender cannot.
        incident_id=None,
    )


def _is_plain(update: SignalUpdate, now_ms: int) -> bool:
    """Whether an update is surely canonical and without problems, for the common case. False means unknown."""
    value = update.value
    metrics = value.metrics
    return (
        value.state is STATE_OK
        and _NUMBER_MIN < value.score <= 1
        and _NUMBER_MIN < value.slo_threshold <= _NUMBER_MAX
        and is_canonical(value.window_start)
        and is_canonical(value.window_end)
        and value.window_start <= value.window_end <= instant(now_ms + FUTURE_MS_MAX)
        and update.expected_version >= ANY_VERSION
        and metrics.pass_count >= 0
        and metrics.fail_count >= 0
        and metrics.pass_count + metrics.fail_count <= metrics.evidence_count <= _COUNT_MAX
        and value.failure_signature is None
        and not value.failure_signatures
        and value.message is None
        and value.breach_start is None
        and value.incident_id is None
        and value.top_producer is None
        and not value.evidence_sample
        and len(value.window_type) <= TEXT_MAX
    )


def _problems(update: SignalUpdate, now_ms: int) -> list[str]:
    value, found = update.value, []
    if not 0 <= value.score <= 1:
        found.append(f"score {value.score}: Score must be between 0 and 1")
    if not 0 <= value.slo_threshold <= _NUMBER_MAX:
        found.append(f"slo_threshold {value.slo_threshold}: must be a number that is not negative")
    if value.window_start > value.window_end:
        found.append(f"window_start {value.window_start} is after window_end {value.window_end}")
    if value.window_end > instant(now_ms + FUTURE_MS_MAX):
        found.append(f"window_end {value.window_end} lies in the future; it is {instant(now_ms)}")
    if update.expected_version < ANY_VERSION:
        found.append(f"expected_version {update.expected_version}: 0 (none yet), -1 (any), or the version you read")
    found += _count_problems(value.metrics)
    found += _text_problems(value)
    return found


def _count_problems(metrics: Metrics) -> list[str]:
    total, passed, failed = counts = (metrics.evidence_count, metrics.pass_count, metrics.fail_count)
    if not (0 <= total <= _COUNT_MAX and 0 <= passed <= _COUNT_MAX and 0 <= failed <= _COUNT_MAX):
        return [f"metrics {counts}: counts must not be negative"]
    if passed + failed > total:
        return [f"metrics {counts}: pass_count and fail_count are more than evidence_count"]
    return []


def _text_problems(value: SignalValue) -> list[str]:
    found = []
    signature = value.failure_signature
    if value.state.is_breach and not signature:
        found.append("failure_signature required for WARNING/CRITICAL states")
    if signature and not is_signature(signature):
        found.append(f"failure_signature {signature[:40]!r}: write REASON_CODE:FIELD, at most {TEXT_MAX} characters")
    if len(value.failure_signatures) > SIGNATURES_MAX or not all(map(is_signature, value.failure_signatures)):
        found.append(f"failure_signatures: at most {SIGNATURES_MAX}, each REASON_CODE:FIELD")
    if value.message is not None and len(value.message) > MESSAGE_MAX:
        found.append(f"message: {len(value.message)} characters, at most {MESSAGE_MAX}")
    if len(value.evidence_sample) > SAMPLES_MAX:
        found.append(f"evidence_sample: {len(value.evidence_sample)} ids, at most {SAMPLES_MAX} are kept")
    if value.evidence_sample and not all(map(is_evidence_id, value.evidence_sample)):
        found.append("evidence_sample: an id has another form than evd-01HQXY8MNP4QR7ST9VW2XYZ456")
    producer = value.top_producer
    longest = max(len(producer.producer_id), len(producer.version)) if producer is not None else 0
    if len(value.window_type) > TEXT_MAX or longest > TEXT_MAX:
        found.append(f"window_type or top_producer: a text is longer than {TEXT_MAX} characters")
    return found


def signal_key(dataset_urn: str, signal_type: str) -> Key:
    """Return the key of a signal's row."""
    return Key(dataset_urn, signal_type)
