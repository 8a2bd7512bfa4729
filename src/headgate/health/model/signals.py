"""What a signal says about a dataset at the end of a window, and what may be said."""

from __future__ import annotations

import enum
import hashlib
import re
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.health.model import enums as vocabulary
from headgate.health.model import timestamps as moments
from headgate.health.model import urns
from headgate.health.model.enums import Confidence, SignalState, Tier
from headgate.health.model.timestamps import instant
from headgate.health.model.urns import is_evidence_id
from headgate.health.model.volume_counts import VolumeHour
from headgate.store.model.schema import Key

SAMPLES_MAX: Final = 10
TEXT_MAX: Final = 256
# A window that ends in the future would keep every honest one after it from being taken.
FUTURE_MS_MAX: Final = 10 * 60 * 1000
# `-1` of a request: the order of windows alone decides.
ANY_VERSION: Final = -1
_SIGNATURE: Final = re.compile(r"[^\s#:\x00-\x1f\x7f]+(:[^#\x00-\x1f\x7f]+)?")
_COUNT_MAX: Final = 2**53 - 1
# What every backend can keep; what is nearer to nothing than this is nothing.
_NUMBER_MAX: Final = 1e100
_NUMBER_MIN: Final = 1e-100


class Metrics(Struct, frozen=True, kw_only=True):
    """What was counted in the window."""

    evidence_count: int = 0
    pass_count: int = 0
    fail_count: int = 0

    @property
    def compliance_rate(self) -> float | None:
        """The share that passed; None if nothing was judged."""
        judged = self.pass_count + self.fail_count
        return None if judged == 0 else self.pass_count / judged


class Producer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is thought to have caused what was seen."""

    producer_id: str
    version: str = ""
    confidence: Confidence | None = None
    deployed_at: str | None = None


class SignalValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a signal was at the end of a window."""

    state: SignalState
    score: float
    window_start: str
    window_end: str
    slo_threshold: float = 0.0
    window_type: str = ""
    metrics: Metrics = Metrics()
    breach_start: str | None = None
    failure_signature: str | None = None
    top_producer: Producer | None = None
    evidence_sample: tuple[str, ...] = ()
    incident_id: str | None = None

    @property
    def digest(self) -> str:
        """What tells two values of one window apart. The incident is not of the value: it is linked later."""
        seen = replace(self, incident_id=None) if self.incident_id is not None else self
        return hashlib.blake2b(_encode(seen), digest_size=12).hexdigest()


class SignalUpdate(Struct, frozen=True, kw_only=True):
    """A value to be taken over. `expected_version` 0: there must be none yet; -1: whatever version there is.

    `is_counted`: its metrics were said, and are not merely zero for want of any.
    """

    dataset_urn: str
    signal_type: str
    value: SignalValue
    expected_version: int = 0
    is_counted: bool = True


class Signal(Struct, frozen=True, kw_only=True):
    """A signal as it stands. `stale`: it was read from memory while the store could not be asked.

    `ok_until` is the end of the latest window in which it was OK, kept while it is not; `volume` is of VOLUME alone:
    the windows so far of the hour in which the latest one was counted.
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
    volume: VolumeHour | None = None
    stale: bool = False
    age_seconds: float = 0.0

    @property
    def state(self) -> SignalState:
        return self.value.state

    @property
    def last_ok_at(self) -> str | None:
        """The end of the latest window in which it was OK, if it ever was."""
        return self.value.window_end if self.value.state is SignalState.OK else self.ok_until


class Snapshot(Struct, frozen=True, kw_only=True):
    """A transition of a signal as its history keeps it. `late`: the window came after a later one, and counted not."""

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
    """What was made of an update. The values are the error codes of the wire, but for the first two."""

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
        return self in (UpdateVerdict.APPLIED, UpdateVerdict.DUPLICATE)


class UpdateResult(Struct, frozen=True):
    """What was made of an update. `signal` is the signal as it stands now, if there is one."""

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
    value = _canonical(update.value)
    canonical = update if value is update.value else replace(update, value=value)
    problems = _problems(canonical, now_ms)
    if problems:
        raise InvalidPayloadError(f"signal {update.dataset_urn[:80]} {update.signal_type[:64]}: {'; '.join(problems)}")
    urns.dataset_urn(update.dataset_urn)
    signal_type = vocabulary.signal_type(update.signal_type)
    return canonical if signal_type == update.signal_type else replace(canonical, signal_type=signal_type)


def is_signature(text: str) -> bool:
    """Whether a text can say how something fails."""
    return len(text) <= TEXT_MAX and _SIGNATURE.fullmatch(text) is not None


def _canonical(value: SignalValue) -> SignalValue:
    """Return a value with its moments in the one form, in which they are compared."""
    if _is_canonical(value):
        return value
    producer = value.top_producer
    if producer is not None and producer.deployed_at is not None:
        deployed_at = moments.moment(producer.deployed_at, field="top_producer.deployed_at")
        producer = replace(producer, deployed_at=deployed_at)
    return replace(
        value,
        score=0.0 if abs(value.score) < _NUMBER_MIN else value.score,
        slo_threshold=0.0 if abs(value.slo_threshold) < _NUMBER_MIN else value.slo_threshold,
        window_start=moments.moment(value.window_start, field="window_start"),
        window_end=moments.moment(value.window_end, field="window_end"),
        breach_start=None if not value.breach_start else moments.moment(value.breach_start, field="breach_start"),
        failure_signature=value.failure_signature or None,
        top_producer=producer,
        # Which incident a signal belongs to is decided here, and not by who measures it.
        incident_id=None,
    )


def _is_canonical(value: SignalValue) -> bool:
    """Whether a value is as it should be, for those that nearly all are; False says nothing."""
    return (
        value.top_producer is None
        and value.incident_id is None
        and value.failure_signature != ""
        and value.score > _NUMBER_MIN
        and value.slo_threshold > _NUMBER_MIN
        and value.breach_start is None
        and moments.moment(value.window_start, field="window_start") == value.window_start
        and moments.moment(value.window_end, field="window_end") == value.window_end
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
    """Return where a signal is kept."""
    return Key(dataset_urn, signal_type)
