"""Alert API: list and acknowledge alerts, mute them, and test channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.clock import Clock
from headgate.durable.model.duration import seconds
from headgate.durable.model.failures import NonRetryable
from headgate.errors import InvalidPayloadError, UserError
from headgate.notify.acknowledgements import InboundAcks
from headgate.notify.alert_rows import Alert
from headgate.notify.alerts import Alerts
from headgate.notify.deliverer import Deliverer
from headgate.notify.enums import AlertStatus, DeliveryState, Severity
from headgate.notify.mutes import Mute, Mutes
from headgate.serve.http.operations import (
    PREFIX,
    AccessPolicy,
    Answer,
    Auditing,
    Call,
    NoQuery,
    Operation,
    operation_routes,
)
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import Cursor, Duration, Limit, Moment, Name, Reason, UlidId
from headgate.serve.rest.pipelines.inbound import inbound_operations
from headgate.serve.runtime.thread_pool import WorkPool

# Alerts are notifications of events: the permissions of events apply.
_POLICY: Final = AccessPolicy(Permission.EVENT_READ, Permission.EVENT_WRITE)
Pattern = Annotated[str, Meta(min_length=1, max_length=200)]


class AlertsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter and page of alerts."""

    pipeline: Name | None = None
    status: AlertStatus | None = None
    since: Moment | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class AckBody(Struct, forbid_unknown_fields=True):
    """Note of the person who acknowledges."""

    note: Reason = ""


class MuteBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Alerts to mute, until a time or for a duration, and the reason. Patterns have `*` and `?`."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]
    until: Moment | None = None
    duration: Duration | None = None
    event: Pattern = "*"
    pipeline: Pattern = "*"
    owner: Pattern = "*"
    severity_max: Severity = Severity.CRITICAL


class UnmuteQuery(Struct, forbid_unknown_fields=True):
    """Reason for ending a mute early."""

    reason: Reason = ""


class DeliveryView(Struct, frozen=True, kw_only=True):
    """Outcome of a delivery to one channel."""

    channel: str
    action: str
    state: DeliveryState
    attempts: int
    at: str | None
    error: str
    reference: str


class AlertView(Struct, frozen=True, kw_only=True):
    """One alert and its notifications."""

    alert_id: str
    pipeline_id: str
    event: str
    severity: Severity
    status: AlertStatus
    text: str
    at: str
    last_at: str
    count: int
    schedule_id: str
    date: str
    run_id: str
    incident_id: str
    message: str
    hint: str
    owner: str
    labels: dict[str, str]
    detail: dict[str, Any]
    channels: tuple[str, ...]
    deliveries: list[DeliveryView]
    muted_by: str
    acknowledged_by: str
    acknowledged_at: str | None
    note: str
    resolved_by: str
    resolved_at: str | None
    escalated: int


class AlertViews(Struct, frozen=True):
    """A page of alerts, latest first. A page may be short or empty and still have a cursor."""

    alerts: list[AlertView]
    cursor: str | None = None


class MuteView(Struct, frozen=True, kw_only=True):
    """A mute: its patterns, expiry, author and reason."""

    mute_id: str
    event: str
    pipeline: str
    owner: str
    severity_max: Severity
    at: str
    until: str
    by: str
    reason: str


class MuteViews(Struct, frozen=True):
    """Active mutes, oldest first."""

    mutes: list[MuteView]


class ChannelView(Struct, frozen=True):
    """A channel, and whether its circuit breaker is open."""

    name: str
    failing: bool


class ChannelViews(Struct, frozen=True):
    """The notification channels."""

    channels: list[ChannelView]


class TestedView(Struct, frozen=True):
    """Confirmation that a channel accepted a message, with the channel's message id."""

    channel: str
    reference: str


def alert_routes(
    alerts: Alerts,
    mutes: Mutes,
    deliverer: Deliverer,
    clock: Clock,
    pool: WorkPool,
    *,
    channels: Sequence[str],
    inbound: InboundAcks | None = None,
    auditing: Auditing | None = None,
) -> list[ControllerRouterHandler]:
    """Return the routes of alerts. `channels` are the names of the deliverer's channels.

    With `inbound`, Slack and PagerDuty can acknowledge them.
    """
    served = _Alerts(alerts, mutes, deliverer, clock, channels)
    operations = [*served.operations(), *([] if inbound is None else inbound_operations(inbound))]
    return operation_routes(
        operations, pool, _POLICY, namespace="alerts.", auditing=auditing, path_types={"alert_id": UlidId}
    )


class _Alerts:
    def __init__(
        self, alerts: Alerts, mutes: Mutes, deliverer: Deliverer, clock: Clock, channels: Sequence[str]
    ) -> None:
        self._alerts = alerts
        self._mutes = mutes
        self._deliverer = deliverer
        self._clock = clock
        self._channels = tuple(sorted(channels))

    def operations(self) -> list[Operation]:
        one = "/alerts/{alert_id}"
        return [
            Operation("GET", "/alerts", "List alerts, latest first", self.ls, {200: AlertViews}, query=AlertsQuery),
            Operation("GET", one, "Show an alert", self.show, {200: AlertView}),
            Operation("POST", f"{one}/ack", "Acknowledge an alert", self.ack, {200: AlertView}, body=AckBody),
            Operation("GET", "/alert-mutes", "List mutes", self.mutes, {200: MuteViews}),
            Operation("POST", "/alert-mutes", "Mute matching alerts", self.mute, {201: MuteView}, body=MuteBody),
            Operation(
                "DELETE",
                "/alert-mutes/{mute_id}",
                "End a mute",
                self.unmute,
                {204: None},
                query=UnmuteQuery,
            ),
            Operation("GET", "/alert-channels", "List channels", self.channels, {200: ChannelViews}),
            Operation(
                "POST",
                "/alert-channels/{name}/test",
                "Send a test message",
                self.test,
                {200: TestedView},
            ),
        ]

    def ls(self, call: Call[None, AlertsQuery]) -> Answer:
        query = call.query
        since_ms = 0 if query.since is None else max(0, round(query.since.timestamp() * 1000))
        page = self._alerts.ls(query.pipeline, since_ms=since_ms, limit=query.limit, cursor=query.cursor)
        wanted = [each for each in page.alerts if query.status in (None, each.status)]
        return Answer(AlertViews([alert_view(each) for each in wanted], page.cursor))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(alert_view(self._alerts.get(call.path["alert_id"])))

    def ack(self, call: Call[AckBody, NoQuery]) -> Answer:
        by = call.principal.name
        return Answer(alert_view(self._alerts.acknowledge(call.path["alert_id"], by=by, note=call.body.note)))

    def mutes(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(MuteViews([mute_view(each) for each in self._mutes.ls()]))

    def mute(self, call: Call[MuteBody, NoQuery]) -> Answer:
        body = call.body
        made = self._mutes.add(
            until_ms=self._until_ms(body),
            by=call.principal.name,
            reason=body.reason,
            event=body.event,
            pipeline=body.pipeline,
            owner=body.owner,
            severity_max=body.severity_max,
        )
        return Answer(mute_view(made), 201, {"location": f"{PREFIX}/alert-mutes/{made.mute_id}"})

    def unmute(self, call: Call[None, UnmuteQuery]) -> Answer:
        self._mutes.remove(call.path["mute_id"], by=call.principal.name, reason=call.query.reason)
        return Answer(status=204)

    def channels(self, _call: Call[None, NoQuery]) -> Answer:
        failing = self._deliverer.failing()
        return Answer(ChannelViews([ChannelView(name, name in failing) for name in self._channels]))

    def test(self, call: Call[None, NoQuery]) -> Answer:
        name = call.path["name"]
        try:
            return Answer(TestedView(name, self._deliverer.send_test(name)))
        except NonRetryable as exc:
            raise UserError(f"channel {name}: the message was not accepted: {exc}; correct its settings") from exc

    def _until_ms(self, body: MuteBody) -> int:
        if (body.until is None) == (body.duration is None):
            raise InvalidPayloadError("mute: set one of until and duration, such as 2h")
        if body.until is not None:
            return round(body.until.timestamp() * 1000)
        assert body.duration is not None
        return round((self._clock.seconds() + seconds(body.duration, name="duration")) * 1000)


def alert_view(alert: Alert) -> AlertView:
    """Return an alert as it is shown."""
    return shown(AlertView, alert, deliveries=_deliveries(alert))


def mute_view(mute: Mute) -> MuteView:
    """Return a mute as it is shown."""
    return shown(MuteView, mute)


def _deliveries(alert: Alert) -> list[DeliveryView]:
    found = []
    for name, delivery in sorted(alert.deliveries.items()):
        channel, _, action = name.rpartition("#")
        found.append(shown(DeliveryView, delivery, channel=channel, action=action))
    return found
