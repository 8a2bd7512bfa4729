"""Alerts bootstrap: reads the alert configuration, and builds channels, notifier and deliverer."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from headgate.auth.audit_entry import AuditEntry
from headgate.bootstrap.store import AppService, OpenedStore
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.errors import SettingsError, TransientError
from headgate.feedback import incident_alerts
from headgate.feedback.incident_alerts import IncidentAlerts
from headgate.health.service import HealthService
from headgate.ids import IdMaker
from headgate.notify.acknowledgements import InboundAcks
from headgate.notify.alerts import Alerts
from headgate.notify.channels.factory import ChannelDependencies, inbound_secret, open_channels
from headgate.notify.configuration import NOTIFY, NotifyConfig, PagerDutySpec, SlackSpec, parse_config
from headgate.notify.deliverer import Deliverer, register
from headgate.notify.delivery_lease import DeliveryLeases
from headgate.notify.metrics import AlertMeters
from headgate.notify.mutes import AlertAudit, Commit, Mutes
from headgate.notify.notices import NO_AUDIENCE, Audience, Notice
from headgate.notify.notifier import Notifier
from headgate.pipelines.events.catalogue import CATALOGUE
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.service import PipelineService
from headgate.settings import Settings
from headgate.store.port import Store

NOTIFY_FILE: Final = "notify.toml"
# The deployments that can share tables: the servers with their watchdogs, and the functions.
SERVERS: Final = "servers"
FUNCTIONS: Final = "functions"
# For about twelve hours, which covers an outage of one night.
_RETRY: Final = Retry(attempts=60, first=1.0, factor=3.0, most=900.0)
_log = structlog.get_logger(__name__)


class AlertDuty:
    """Whether this deployment delivers alerts. Deployments that share tables hold a lease for it."""

    def __init__(self, settings: Settings, leases: DeliveryLeases) -> None:
        pipelines = settings.pipelines
        is_beside_functions = pipelines.state_machine_arn is not None
        # By settings alone: beside functions, they deliver.
        self.is_wanted = pipelines.deliver_alerts == "always" or (
            pipelines.deliver_alerts == "auto" and not is_beside_functions
        )
        # A SQLite file has one deployment.
        self._leases = leases if settings.store.backend != "sqlite" else None
        self._refused_by = ""

    def take(self) -> bool:
        """Take or extend the lease. False if this deployment does not deliver, or another one does."""
        if not self.is_wanted or self._leases is None:
            return self.is_wanted
        refused_by = self._leases.take()
        if refused_by and refused_by != self._refused_by:
            _log.warning(
                "alerts are left to another deployment with another alert configuration; give both the same, or set "
                "pipelines.deliver_alerts",
                deliverer=refused_by,
            )
        self._refused_by = refused_by
        return not refused_by


class OpenAlerts(Struct, frozen=True, kw_only=True):
    """The alerts of an open store."""

    alerts: Alerts
    mutes: Mutes
    notifier: Notifier
    deliverer: Deliverer
    config: NotifyConfig
    inbound: InboundAcks
    duty: AlertDuty
    # Whether this process routes and delivers alerts.
    is_delivering: bool


def open_alerts(
    opened: OpenedStore,
    service: AppService,
    pipelines: PipelineService,
    clock: Clock,
    *,
    holder: str = SERVERS,
    commit: Commit | None = None,
    meters: AlertMeters | None = None,
) -> OpenAlerts:
    """Return the alerts of an open store, and subscribe them to events if this deployment delivers them.

    `holder` names the deployment. `commit` audits acknowledgements and mutes. `meters` counts deliveries. Raises
    `SettingsError`.
    """
    settings, store = opened.settings, opened.store
    config = notify_config(settings)
    kept_seconds = 86_400 * settings.retention.alerts_days
    around = channel_dependencies(settings, store, clock, service.ids)
    channels = open_channels(config, around)
    commits: Commit = commit if commit is not None else (lambda writes, _change: store.transact(list(writes)))
    alerts = Alerts(store, clock, service.bus, commits, kept_seconds=kept_seconds)
    mutes = Mutes(store, clock, service.ids, commits)
    context = _AlertContext(pipelines)
    notifier = Notifier(
        store,
        clock,
        service.ids,
        service.bus,
        config,
        alerts,
        mutes,
        audience_of=context.audience_of,
        ended_by=context.ended_by,
    )
    deliverer = Deliverer(
        clock,
        service.ids,
        service.bus,
        alerts,
        channels,
        link_prefix=config.link_prefix,
        public_url=settings.public_url or "",
        observer=meters,
    )
    inbound = InboundAcks(
        store,
        clock,
        alerts,
        slack={
            name: inbound_secret(name, "signing_secret", spec.signing_secret, around)
            for name, spec in config.channels.items()
            if isinstance(spec, SlackSpec) and spec.signing_secret
        },
        pagerduty={
            name: inbound_secret(name, "webhook_secret", spec.webhook_secret, around)
            for name, spec in config.channels.items()
            if isinstance(spec, PagerDutySpec) and spec.webhook_secret
        },
    )
    duty = AlertDuty(settings, DeliveryLeases(store, clock, config, holder=holder))
    # Functions take the lease when they deliver: most of their processes never do.
    is_delivering = duty.is_wanted if holder == FUNCTIONS else duty.take()
    if is_delivering:
        register(service.app, notifier, deliverer, list(channels), config.routes)
    return OpenAlerts(
        alerts=alerts,
        mutes=mutes,
        notifier=notifier,
        deliverer=deliverer,
        config=config,
        inbound=inbound,
        duty=duty,
        is_delivering=is_delivering,
    )


def subscribe_incidents(app: App, alerting: OpenAlerts, health: HealthService, clock: Clock) -> None:
    """Subscribe alerts to incidents, and incidents to acknowledgements of alerts."""
    listener = IncidentAlerts(health, alerting.notifier, alerting.alerts, clock)
    if alerting.is_delivering:
        app.on_event(*incident_alerts.TYPES, name="headgate.loop.incidents", retry=_RETRY)(listener.on_incident)
    app.on_event(*incident_alerts.ACKNOWLEDGED_TYPES, name="headgate.loop.acknowledgements", retry=_RETRY)(
        listener.on_acknowledged
    )


def channel_dependencies(settings: Settings, store: Store, clock: Clock, ids: IdMaker) -> ChannelDependencies:
    """Return what channels need besides their own settings."""
    forward = settings.forward
    return ChannelDependencies(
        store=store,
        clock=clock,
        ids=ids,
        home=settings.home,
        threads_kept_seconds=86_400 * settings.retention.alerts_days,
        destinations=Destinations(forward.private_hosts, forward.private_networks, forward.plain_http),
        aws_region=settings.store.aws_region,
        aws_endpoint_url=settings.store.aws_endpoint_url,
    )


class _AlertContext:
    """What the notifier needs to know about pipelines."""

    def __init__(self, pipelines: PipelineService) -> None:
        self._pipelines = pipelines

    def audience_of(self, pipeline_id: str) -> Audience:
        try:
            pipeline = self._pipelines.known.find(pipeline_id)
        except TransientError:
            return NO_AUDIENCE
        if pipeline is None:
            return NO_AUDIENCE
        return Audience(
            owner=pipeline.owner,
            team=pipeline.labels.get("team", pipeline.owner),
            tier=f"TIER_{pipeline.tier}",
            labels=pipeline.labels,
            channels=pipeline.alerts.channels,
            mute=pipeline.alerts.mute,
        )

    def ended_by(self, notice: Notice) -> str:
        if event_name := self._pipelines.stuck.ended_by(notice) or self._pipelines.fanout_alerts.ended_by(notice):
            return event_name
        # The watchdog may report a missed period after a run has already completed it.
        if notice.event not in CATALOGUE[EventName.PIPELINE_COMPLETED].resolves:
            return ""
        log = self._pipelines.stores.runs.log(Slot(notice.pipeline_id, notice.schedule_id, notice.date))
        return EventName.PIPELINE_COMPLETED.value if log is not None and log.status.is_done else ""


def notify_config(settings: Settings) -> NotifyConfig:
    """Return the alert configuration: `[notify]` of the settings, or notify.toml in the home folder.

    Without either, warnings and critical alerts go to the console. Raises `SettingsError` with the file and the field.
    """
    file, table = settings.home / NOTIFY_FILE, settings.notify
    if not file.exists():
        return parse_config(table.value, table.source)
    if table.source:
        raise SettingsError(f"alerts are configured twice, in {table.source} and in {file}; remove one of them")
    return read_notify_file(file)


def read_notify_file(file: Path) -> NotifyConfig:
    """Return the alert configuration of a file. Raises `SettingsError` with the file and the field."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"{file}: cannot be read: {exc.strerror}; make it readable") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{file}: not TOML: {exc}; correct that line") from exc
    # The same text as in headgate.toml, with or without the name of the section.
    inner = content.get(NOTIFY)
    return parse_config(inner if list(content) == [NOTIFY] and isinstance(inner, dict) else content, str(file))


def audited(change: AlertAudit) -> AuditEntry:
    """Return the audit entry of a change to an alert or mute."""
    return AuditEntry(change.actor, change.action, change.entity, None, None, reason=change.reason)
