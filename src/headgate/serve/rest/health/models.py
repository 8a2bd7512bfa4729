"""Request and response structs shared by the health API."""

from __future__ import annotations

from functools import cache
from types import NoneType
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from headgate.auth.principals import Principal, may
from headgate.auth.roles import Permission
from headgate.health.audit import field_encryption as fields
from headgate.health.model import enums, timestamps
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.incidents import Incident, Notification
from headgate.health.model.signals import ANY_VERSION, Metrics, Producer, Signal, SignalUpdate, SignalValue
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import PageToken, Timestamp
from headgate.telemetry import correlation_id

PageSize = Annotated[int, Meta(ge=1, le=100)]
Name = Annotated[str, Meta(max_length=512)]
FullName = Annotated[str, Meta(max_length=512, extra_json_schema={"minLength": 1})]
# Required, and recorded in the audit log.
FullReason = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 1024})]
Text = Annotated[str, Meta(max_length=16_384)]
_PLAIN: Final = frozenset({str, int, float, bool, NoneType})


def complete(value: Any) -> Any:  # noqa: ANN401 - any part of an answer
    """Return a response with every field of its structs, defaults and tags included."""
    # Most parts are plain values, which need no call.
    if isinstance(value, Struct):
        tag, names = _shape(type(value))
        return tag | {name: part if type(part := getattr(value, name)) in _PLAIN else complete(part) for name in names}
    if isinstance(value, list | tuple):
        return [part if type(part) in _PLAIN else complete(part) for part in value]
    if isinstance(value, dict):
        return {key: part if type(part) in _PLAIN else complete(part) for key, part in value.items()}
    return value


@cache
def _shape(kind: type[Struct]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tag of a struct and the names of its fields."""
    config = kind.__struct_config__
    return {} if config.tag_field is None else {config.tag_field: config.tag}, kind.__struct_fields__


class PageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Paging."""

    page_token: PageToken | None = None
    page_size: PageSize = 50


class ProducerIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """The producer thought to be the cause."""

    producer_id: Name
    version: Name = ""
    confidence: str | None = None
    deployed_at: Timestamp | None = None

    def read(self) -> Producer:
        return Producer(
            producer_id=self.producer_id,
            version=self.version,
            confidence=None if self.confidence is None else enums.confidence(self.confidence),
            deployed_at=None if self.deployed_at is None else timestamps.moment(self.deployed_at, field="deployed_at"),
        )


class MetricsIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Counts of the window."""

    evidence_count: int = 0
    pass_count: int = 0
    fail_count: int = 0

    def read(self) -> Metrics:
        return Metrics(evidence_count=self.evidence_count, pass_count=self.pass_count, fail_count=self.fail_count)


class SignalValueIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Value of a signal at the end of a window.

    For VOLUME, `metrics.evidence_count` is the number of events in the window; without metrics it is unknown.
    """

    state: str
    score: float
    window_start: Timestamp
    window_end: Timestamp
    slo_threshold: float = 0.0
    window_type: str = ""
    metrics: MetricsIn | None = None
    breach_start: Timestamp | None = None
    failure_signature: str | None = None
    message: str | None = None
    top_producer: ProducerIn | None = None
    evidence_sample: list[str] = []
    incident_id: str | None = None

    def read(self) -> SignalValue:
        """Parse in canonical vocabulary. Raises `InvalidPayloadError` naming the field."""
        breach_start = self.breach_start
        return SignalValue(
            state=enums.signal_state(self.state),
            score=self.score,
            window_start=timestamps.moment(self.window_start, field="window_start"),
            window_end=timestamps.moment(self.window_end, field="window_end"),
            slo_threshold=self.slo_threshold,
            window_type=self.window_type,
            metrics=Metrics() if self.metrics is None else self.metrics.read(),
            breach_start=None if breach_start is None else timestamps.moment(breach_start, field="breach_start"),
            failure_signature=self.failure_signature or None,
            message=self.message or None,
            top_producer=None if self.top_producer is None else self.top_producer.read(),
            evidence_sample=tuple(self.evidence_sample),
            incident_id=self.incident_id or None,
        )


class SignalUpdateIn(SignalValueIn, forbid_unknown_fields=True, kw_only=True):
    """A signal update; `expected_version` 0: none exists yet, -1: any, the default."""

    dataset_urn: str = ""
    signal_type: str = ""
    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] = ANY_VERSION

    def update(self, dataset_urn: str, signal_type: str) -> SignalUpdate:
        """Return the signal update. Raises `InvalidPayloadError`."""
        return SignalUpdate(
            dataset_urn=dataset_urn,
            signal_type=enums.signal_type(signal_type),
            value=self.read(),
            expected_version=self.expected_version,
            is_counted=self.metrics is not None,
            correlation_id=correlation_id(),
        )


class SignalView(Struct, frozen=True, kw_only=True):
    """A signal."""

    dataset_urn: str
    signal_type: str
    state: SignalState
    previous_state: SignalState | None
    # The end of the window in which the state changed, and when the change was stored.
    state_changed_at: str
    detected_at: str | None
    # The end of the latest window in which it was OK.
    last_ok_at: str | None
    score: float
    slo_threshold: float
    breach_start: str | None
    window_start: str
    window_end: str
    window_type: str
    metrics: Metrics
    failure_signature: str | None
    failure_signatures: list[str]
    message: str | None
    top_producer: Producer | None
    evidence_sample: list[str]
    incident_id: str | None
    tier: Tier
    owner_team: str
    last_updated: str
    version: int
    stale: bool
    age_seconds: float


def signal_view(signal: Signal) -> SignalView:
    """Return the view of a signal."""
    return shown(SignalView, signal, signal.value)


def incident_view(incident: Incident, principal: Principal) -> Incident:
    """Return an incident with on-call user and notification ids masked unless the principal may read them."""
    if may(principal, Permission.SECRET_FIELDS_READ, incident.primary_dataset_urn):
        return incident
    notification = incident.notification_state
    return replace(
        incident,
        oncall_user=None if incident.oncall_user is None else fields.mask(incident.oncall_user),
        notification_state=None
        if notification is None
        else Notification(
            **{name: None if text is None else fields.mask(text) for name, text in asdict(notification).items()}
        ),
    )
