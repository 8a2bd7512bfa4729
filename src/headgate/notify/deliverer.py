"""Alert deliverer: sends alerts to channels, records the result, and reroutes alerts of failing channels.

Every channel has its own subscription, circuit breaker and time-outs, so that a slow or failing one affects no other.
A delivery out of retries is a dead letter of that subscription and can be redelivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Filter
from headgate.durable.model.failures import NonRetryable
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.errors import NotFoundError, ThrottledError, TransientError
from headgate.ids import IdMaker
from headgate.notify.alert_rows import Alert, Delivery, delivery_name
from headgate.notify.alerts import DELIVER, Alerts, DeliveryOrder, with_pending
from headgate.notify.enums import INFRASTRUCTURE, AlertAction, AlertStatus, DefaultRoute, DeliveryState, Severity
from headgate.notify.messages import Channel, Message, NotYetError, line, link_of, message_of, trial_message
from headgate.notify.metrics import AlertMeters, DeliveryObserver
from headgate.notify.notices import NEWS_FIELD, TYPE_PREFIX, Notice, event_type
from headgate.notify.notifier import Notifier
from headgate.notify.routes import Route, fallback_channels
from headgate.store.resilience.circuit_breaker import BreakerLimits, BreakerState, CircuitBreaker

CHANNEL_FAILED: Final = "ALERT_CHANNEL_FAILED"
CHANNEL_RECOVERED: Final = "ALERT_CHANNEL_RECOVERED"
SUBSCRIPTION: Final = "headgate.notify"
# Alerts have a queue of their own, so that the watchdog can deliver them without the work of the server.
QUEUE: Final = "headgate.alerts"
# Nine attempts within about two hours.
RETRY: Final = Retry(attempts=9, first=2.0, factor=4.0, most=1800.0)
LIMITS: Final = BreakerLimits(failures_min=5, failure_rate=0.5, window_seconds=60.0, open_seconds=60.0, probes=1)
# Attempts after which a channel is reported as failing.
REPORTED_AFTER: Final = 2
# Throttling only delays messages, so that it is reported later.
THROTTLED_REPORTED_AFTER: Final = 5
_TIMEOUT_SECONDS: Final = 180.0
_SOURCE: Final = "/headgate/notify"
# Reference of deliveries that became unnecessary.
_NOT_NEEDED: Final = "not needed"
_log = structlog.get_logger("headgate.notify")


class Deliverer:
    """Sends alerts to channels. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        ids: IdMaker,
        bus: Bus,
        alerts: Alerts,
        channels: Mapping[str, Channel],
        *,
        link_prefix: str = "",
        public_url: str = "",
        observer: DeliveryObserver | None = None,
    ) -> None:
        self._observer = AlertMeters() if observer is None else observer
        self._clock = clock
        self._ids = ids
        self._bus = bus
        self._alerts = alerts
        self._channels = dict(channels)
        self._link_prefix = link_prefix
        self._public_url = public_url
        self._breakers = {name: CircuitBreaker(f"channel {name}", clock, LIMITS) for name in channels}

    def deliver(self, event: Event) -> None:
        """Execute a delivery order from the bus. Idempotent.

        Raises `TransientError` for a retry and `NonRetryable` for a final failure, after recording it and rerouting the
        alert.
        """
        order = event.data_as(DeliveryOrder)
        alert = self._alerts.find(order.pipeline_id, order.at_ms, order.alert_id)
        channel = self._channels.get(order.channel)
        if alert is None or channel is None:
            raise NonRetryable(f"alert {order.alert_id} to {order.channel}: the alert or the channel no longer exists")
        delivery = alert.delivery(order.channel, order.action)
        if delivery is None or delivery.state is DeliveryState.SENT:
            return
        if order.action not in channel.actions or _is_obsolete(alert, order):
            skipped = replace(delivery, state=DeliveryState.SENT, at_ms=self._now_ms(), reference=_NOT_NEEDED)
            self._record(alert, order, skipped)
            return
        try:
            reference = self._send(channel, alert, order)
        except NotYetError:
            raise
        except (TransientError, NonRetryable) as exc:
            self._observer.on_failed(order.channel, order.action)
            self._failed(alert, order, exc)
            raise
        self._observer.on_sent(order.channel, order.action)
        done = replace(
            delivery,
            state=DeliveryState.SENT,
            attempts=delivery.attempts + 1,
            at_ms=self._now_ms(),
            reference=reference[:256],
            error="",
        )
        self._record(alert, order, done)
        self._recovered(order.channel)

    def send_test(self, name: str) -> str:
        """Send a test message now, and return the channel's id of it.

        Raises `NotFoundError` if the channel does not exist, and errors of the channel.
        """
        if name not in self._channels:
            raise NotFoundError(f"channel {name}: there is none; there are {sorted(self._channels)}")
        message = trial_message(name, self._now_ms(), message_id=self._ids.make("test"))
        return self._channels[name].send(message)

    def failing(self) -> tuple[str, ...]:
        """Return the channels whose circuit breaker is open in this process."""
        return tuple(name for name, each in self._breakers.items() if each.state is not BreakerState.CLOSED)

    def _send(self, channel: Channel, alert: Alert, order: DeliveryOrder) -> str:
        breaker = self._breakers[channel.name]
        message = self._message(channel.name, alert, order.action)
        ticket = breaker.admit()
        try:
            reference = channel.send(message)
        except NotYetError:
            breaker.abandoned(ticket)
            raise
        except (ThrottledError, NonRetryable):
            # The service is up: it throttles, or rejects this message.
            breaker.succeeded(ticket)
            raise
        except TransientError:
            breaker.failed(ticket)
            raise
        except BaseException:
            breaker.abandoned(ticket)
            raise
        breaker.succeeded(ticket)
        return reference

    def _message(self, channel: str, alert: Alert, action: AlertAction) -> Message:
        link = f"{self._link_prefix}{alert.alert_id}" if self._link_prefix else link_of(alert, self._public_url)
        open_alerts = self._alerts.thread(alert.thread).open if alert.thread else {}
        others = [each for each in open_alerts if each != alert.alert_id and channel in open_alerts[each].channels]
        message = message_of(alert, action, link=link, others_open=len(others))
        trigger = alert.delivery(channel, AlertAction.TRIGGER)
        if action is AlertAction.TRIGGER or trigger is None:
            return message
        return replace(message, began_as=trigger.reference)

    def _record(self, alert: Alert, order: DeliveryOrder, delivery: Delivery) -> Alert:
        name = delivery_name(order.channel, order.action)

        def with_delivery(current: Alert) -> Alert | None:
            if name not in current.deliveries:
                return None
            return replace(current, deliveries={**current.deliveries, name: delivery})

        return self._alerts.change(alert, with_delivery, lambda _after: ())

    def _failed(self, alert: Alert, order: DeliveryOrder, error: TransientError | NonRetryable) -> None:
        """Record a failed attempt; report the channel and reroute the alert if the failure persists."""
        before = alert.delivery(order.channel, order.action) or Delivery()
        attempts = before.attempts + 1
        is_over = isinstance(error, NonRetryable) or attempts >= RETRY.attempts
        failed = replace(
            before,
            state=DeliveryState.FAILED if is_over else DeliveryState.PENDING,
            attempts=attempts,
            at_ms=self._now_ms(),
            error=line(error),
        )
        _log.warning("channel_failed", channel=order.channel, alert=alert.alert_id, attempts=attempts, error=str(error))
        alert = self._record(alert, order, failed)
        reported_after = THROTTLED_REPORTED_AFTER if isinstance(error, ThrottledError) else REPORTED_AFTER
        if not is_over and attempts < reported_after and order.channel not in self.failing():
            return
        self._report_failure(alert, order, line(error))
        if order.action is AlertAction.TRIGGER:
            self._reroute(alert, order.channel)

    def _report_failure(self, alert: Alert, order: DeliveryOrder, error: str) -> None:
        notice = Notice(
            event=CHANNEL_FAILED,
            event_id=f"{CHANNEL_FAILED}#{order.channel}#{alert.alert_id}",
            severity=Severity.CRITICAL,
            route=DefaultRoute.PAGE,
            alerts=True,
            is_news=True,
            text=f"alerts do not reach the channel {order.channel}: {error}",
            dedup_key=failure_key(order.channel),
            at_ms=self._now_ms(),
            message=f"not delivered: {alert.text}",
            hint="fix the channel, test it with 'headgate alert test', then redeliver its dead letters",
            detail={"channel": order.channel, "error": error, "alert_id": alert.alert_id},
            avoid=tuple({order.channel: None, **dict.fromkeys(self.failing())}),
        )
        self._emit(notice)

    def _reroute(self, alert: Alert, failed: str) -> None:
        """Send an alert to the other channels if it has no other working one."""
        tried = [name.rpartition("#")[0] for name in alert.deliveries if name.endswith(f"#{AlertAction.TRIGGER}")]
        channels = fallback_channels(failed, tried, self.failing(), list(self._channels))
        if not channels:
            return
        now_ms = self._now_ms()

        def rerouted(current: Alert) -> Alert | None:
            if all(current.delivery(name, AlertAction.TRIGGER) is not None for name in channels):
                return None
            return with_pending(current, channels, AlertAction.TRIGGER)

        self._alerts.change(
            alert, rerouted, lambda after: self._alerts.order_writes(after, channels, AlertAction.TRIGGER, now_ms)
        )
        self._bus.on_committed()

    def _recovered(self, channel: str) -> None:
        """Resolve the alert about a channel that works again."""
        latest = self._alerts.latest_alerts([failure_key(channel)])[0]
        if latest is None:
            return
        notice = Notice(
            event=CHANNEL_RECOVERED,
            event_id=f"{CHANNEL_RECOVERED}#{channel}#{latest.alert_id}",
            severity=Severity.INFO,
            route=DefaultRoute.LOG,
            alerts=False,
            is_news=True,
            text=f"alerts reach the channel {channel} again",
            dedup_key=f"{CHANNEL_RECOVERED}#{channel}",
            at_ms=self._now_ms(),
            resolves=(failure_key(channel),),
            detail={"channel": channel},
        )
        self._emit(notice)

    def _emit(self, notice: Notice) -> None:
        self._bus.emit(
            Event(
                id=notice.event_id,
                type=event_type(notice.event),
                source=_SOURCE,
                subject=INFRASTRUCTURE,
                # Plain values: subscription filters match them.
                data=msgspec.to_builtins(notice),
            )
        )

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def failure_key(channel: str) -> str:
    """Return the dedup key of a failing channel."""
    return f"{CHANNEL_FAILED}#{channel}"


def register(
    app: App, notifier: Notifier, deliverer: Deliverer, channels: Sequence[str], routes: Sequence[Route]
) -> None:
    """Subscribe the notifier to pipeline events, and each channel to its orders."""
    news, others = Filter(data={NEWS_FIELD: True}), Filter(data={NEWS_FIELD: False})
    app.on_event(f"{TYPE_PREFIX}*", name=SUBSCRIPTION, filter=news, queue=QUEUE)(notifier.handle)
    types = routed_types(routes)
    if types:
        app.on_event(*types, name=f"{SUBSCRIPTION}.routed", filter=others, queue=QUEUE)(notifier.handle)
    for channel in channels:
        app.on_event(
            DELIVER,
            name=subscription_name(channel),
            filter=Filter(subject=channel),
            retry=RETRY,
            timeout=_TIMEOUT_SECONDS,
            queue=QUEUE,
        )(deliverer.deliver)


def subscription_name(channel: str) -> str:
    return f"{SUBSCRIPTION}.channel.{channel}"


def routed_types(routes: Sequence[Route]) -> tuple[str, ...]:
    """Return the event types that routes name, including those that are not alerts by default."""
    patterns = [pattern for route in routes for pattern in route.events]
    if any("*" in pattern or "?" in pattern or "[" in pattern for pattern in patterns):
        return (f"{TYPE_PREFIX}*",)
    return tuple(dict.fromkeys(event_type(pattern) for pattern in patterns))


def _is_obsolete(alert: Alert, order: DeliveryOrder) -> bool:
    """Whether an order is obsolete: the alert was resolved before it was sent, or the channel never received it.

    Raises `NotYetError` while the alert itself is still being sent: its resolution must not arrive first.
    """
    if order.action is AlertAction.TRIGGER:
        return alert.status is AlertStatus.RESOLVED and alert.severity is not Severity.INFO
    trigger = alert.delivery(order.channel, AlertAction.TRIGGER)
    if trigger is not None and trigger.state is DeliveryState.PENDING:
        raise NotYetError(f"alert {alert.alert_id}: it has not been sent to {order.channel} yet")
    # A failed attempt may have arrived nevertheless.
    is_skipped = trigger is not None and trigger.reference == _NOT_NEEDED and not trigger.attempts
    return trigger is None or trigger.state is DeliveryState.FAILED or is_skipped
