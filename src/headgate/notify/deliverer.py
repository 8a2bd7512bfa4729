"""Delivering: tells a channel what it was ordered to tell, writes down how that went, and tells others if it fails.

Every channel has a subscription, a breaker and time-outs of its own, so that one which hangs or fails holds up nothing
but itself. What fails for good is a dead letter of that subscription and can be redelivered.
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
from headgate.notify.alerts import DELIVER, Alerts, DeliveryOrder, ordered
from headgate.notify.enums import INFRASTRUCTURE, Action, AlertStatus, DefaultRoute, DeliveryState, Severity
from headgate.notify.messages import Channel, NotYetError, line, message_of, trial_message
from headgate.notify.notices import NEWS, TYPE_PREFIX, Notice, event_type
from headgate.notify.notifier import Notifier
from headgate.notify.routes import Route, remaining
from headgate.store.resilience.circuit_breaker import Breaker, BreakerLimits, BreakerState

CHANNEL_FAILED: Final = "ALERT_CHANNEL_FAILED"
CHANNEL_RECOVERED: Final = "ALERT_CHANNEL_RECOVERED"
SUBSCRIPTION: Final = "headgate.notify"
# Nine attempts within some two hours.
RETRY: Final = Retry(attempts=9, first=2.0, factor=4.0, most=1800.0)
LIMITS: Final = BreakerLimits(failures_min=5, failure_rate=0.5, window_seconds=60.0, open_seconds=60.0, probes=1)
# After so many attempts at one message the others are told that the channel fails.
TOLD_AFTER: Final = 2
# A channel that wants fewer messages gets them later, which is nothing to tell of until it takes long.
THROTTLED_TOLD_AFTER: Final = 5
_TIMEOUT_SECONDS: Final = 180.0
_SOURCE: Final = "/headgate/notify"
# What is noted of a delivery that nobody has to make any more.
_NOT_NEEDED: Final = "not needed"
_log = structlog.get_logger("headgate.notify")


class Deliverer:
    """Tells channels. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        ids: IdMaker,
        bus: Bus,
        alerts: Alerts,
        channels: Mapping[str, Channel],
        *,
        link_prefix: str = "",
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._bus = bus
        self._alerts = alerts
        self._channels = dict(channels)
        self._link_prefix = link_prefix
        self._breakers = {name: Breaker(f"channel {name}", clock, LIMITS) for name in channels}

    def deliver(self, event: Event) -> None:
        """Carry out an order that came over the bus. Done before, it changes nothing.

        Raises `TransientError` for what is to be tried again and `NonRetryable` for what is not, once it is written
        down and the other channels have been asked to tell it.
        """
        order = event.data_as(DeliveryOrder)
        alert = self._alerts.find(order.pipeline_id, order.at_ms, order.alert_id)
        channel = self._channels.get(order.channel)
        if alert is None or channel is None:
            raise NonRetryable(f"alert {order.alert_id} to {order.channel}: the alert or the channel is gone")
        delivery = alert.delivery(order.channel, order.action)
        if delivery is None or delivery.state is DeliveryState.SENT:
            return
        if order.action not in channel.actions or _is_moot(alert, order):
            spared = replace(delivery, state=DeliveryState.SENT, at_ms=self._now_ms(), reference=_NOT_NEEDED)
            self._record(alert, order, spared)
            return
        try:
            reference = self._send(channel, alert, order)
        except NotYetError:
            raise
        except (TransientError, NonRetryable) as exc:
            self._failed(alert, order, exc)
            raise
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
        """Send a message that says it is a test, now, and return what the channel calls it.

        Raises `NotFoundError` if there is no such channel, and what the channel raises if it cannot tell it.
        """
        if name not in self._channels:
            raise NotFoundError(f"channel {name}: there is none; there are {sorted(self._channels)}")
        message = trial_message(name, self._now_ms(), message_id=self._ids.make("test"))
        return self._channels[name].send(message)

    def failing(self) -> tuple[str, ...]:
        """Return the channels that this process leaves alone for now because they kept failing."""
        return tuple(name for name, each in self._breakers.items() if each.state is not BreakerState.CLOSED)

    def _send(self, channel: Channel, alert: Alert, order: DeliveryOrder) -> str:
        breaker = self._breakers[channel.name]
        link = f"{self._link_prefix}{alert.alert_id}" if self._link_prefix else ""
        ticket = breaker.admit()
        try:
            reference = channel.send(message_of(alert, order.action, link=link))
        except NotYetError:
            breaker.abandoned(ticket)
            raise
        except (ThrottledError, NonRetryable):
            # It answers, if only that it wants less, or not this one.
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

    def _record(self, alert: Alert, order: DeliveryOrder, delivery: Delivery) -> Alert:
        name = delivery_name(order.channel, order.action)

        def noted(current: Alert) -> Alert | None:
            if name not in current.deliveries:
                return None
            return replace(current, deliveries={**current.deliveries, name: delivery})

        return self._alerts.change(alert, noted, lambda _after: ())

    def _failed(self, alert: Alert, order: DeliveryOrder, error: TransientError | NonRetryable) -> None:
        """Write down that it went wrong, and let the others know if it looks as if it goes on."""
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
        told_after = THROTTLED_TOLD_AFTER if isinstance(error, ThrottledError) else TOLD_AFTER
        if not is_over and attempts < told_after and order.channel not in self.failing():
            return
        self._tell_others(alert, order, line(error))
        if order.action is Action.TRIGGER:
            self._reroute(alert, order.channel)

    def _tell_others(self, alert: Alert, order: DeliveryOrder, error: str) -> None:
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
            message=f"not told there: {alert.text}",
            hint="mend the channel, try it with 'headgate alert test', then redeliver its dead letters",
            detail={"channel": order.channel, "error": error, "alert_id": alert.alert_id},
            avoid=tuple({order.channel: None, **dict.fromkeys(self.failing())}),
        )
        self._emit(notice)

    def _reroute(self, alert: Alert, failed: str) -> None:
        """Have another channel tell an alert that no other was asked to."""
        tried = [name.rpartition("#")[0] for name in alert.deliveries if name.endswith(f"#{Action.TRIGGER}")]
        channels = remaining(failed, tried, self.failing(), list(self._channels))
        if not channels:
            return
        now_ms = self._now_ms()

        def rerouted(current: Alert) -> Alert | None:
            if all(current.delivery(name, Action.TRIGGER) is not None for name in channels):
                return None
            return ordered(current, channels, Action.TRIGGER)

        self._alerts.change(
            alert, rerouted, lambda after: self._alerts.order_writes(after, channels, Action.TRIGGER, now_ms)
        )
        self._bus.on_committed()

    def _recovered(self, channel: str) -> None:
        """Put an end to the alert about a channel that tells again."""
        twin = self._alerts.twins([failure_key(channel)])[0]
        if twin is None:
            return
        notice = Notice(
            event=CHANNEL_RECOVERED,
            event_id=f"{CHANNEL_RECOVERED}#{channel}#{twin.alert_id}",
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
                # Plain values: subscriptions filter by what is in them.
                data=msgspec.to_builtins(notice),
            )
        )

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def failure_key(channel: str) -> str:
    """Return the key of the trouble that a channel fails."""
    return f"{CHANNEL_FAILED}#{channel}"


def register(
    app: App, notifier: Notifier, deliverer: Deliverer, channels: Sequence[str], routes: Sequence[Route]
) -> None:
    """Subscribe the notifier to the events of pipelines, and each channel to its orders."""
    app.on_event(f"{TYPE_PREFIX}*", name=SUBSCRIPTION, filter=Filter(data={NEWS: True}))(notifier.handle)
    types = routed_types(routes)
    if types:
        app.on_event(*types, name=f"{SUBSCRIPTION}.routed", filter=Filter(data={NEWS: False}))(notifier.handle)
    for channel in channels:
        app.on_event(
            DELIVER,
            name=subscription_name(channel),
            filter=Filter(subject=channel),
            retry=RETRY,
            timeout=_TIMEOUT_SECONDS,
        )(deliverer.deliver)


def retire_others(bus: Bus, channels: Sequence[str]) -> list[str]:
    """Retire the subscriptions of channels that are no longer there, and return their names."""
    ours = {subscription_name(channel) for channel in channels}
    begins = subscription_name("")
    gone = [
        each.subscription.name
        for each in bus.refresh()
        if each.retired_at is None and each.subscription.name.startswith(begins) and each.subscription.name not in ours
    ]
    for name in gone:
        bus.retire(name)
    return gone


def subscription_name(channel: str) -> str:
    return f"{SUBSCRIPTION}.channel.{channel}"


def routed_types(routes: Sequence[Route]) -> tuple[str, ...]:
    """Return the types of events that routes ask for by name, so that those which nobody is told of are seen too."""
    patterns = [pattern for route in routes for pattern in route.events]
    if any("*" in pattern or "?" in pattern or "[" in pattern for pattern in patterns):
        return (f"{TYPE_PREFIX}*",)
    return tuple(dict.fromkeys(event_type(pattern) for pattern in patterns))


def _is_moot(alert: Alert, order: DeliveryOrder) -> bool:
    """Whether a channel need not be told: of what is over before it heard of it, or of the end of what it never heard.

    Raises `NotYetError` while it is still being told of what has ended: the end must not come first.
    """
    if order.action is Action.TRIGGER:
        return alert.status is AlertStatus.RESOLVED and alert.severity is not Severity.INFO
    begun = alert.delivery(order.channel, Action.TRIGGER)
    if begun is not None and begun.state is DeliveryState.PENDING:
        raise NotYetError(f"alert {alert.alert_id}: {order.channel} has not been told of it yet")
    # An attempt that failed may have been heard all the same.
    is_spared = begun is not None and begun.reference == _NOT_NEEDED and not begun.attempts
    return begun is None or begun.state is DeliveryState.FAILED or is_spared
