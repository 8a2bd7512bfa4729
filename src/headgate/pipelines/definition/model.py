"""Pipeline model: the structs of a definition as written in YAML.

Times are seconds, given as numbers or as texts such as "5m". `authoring.loader` decodes files and reports problems.
"""

from __future__ import annotations

import enum
from typing import Any, Final, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec import field as _field

from headgate.durable.model.duration import Seconds
from headgate.pipelines.enums import CatchUp, FailureCategory, OnUnknown, SensorPeriod, Severity

WINDOW_SECONDS: Final = 3_600.0
INTERVAL_SECONDS: Final = 300.0
JOB_CHECK_SECONDS: Final = 30.0
# Longest interval between two polls of a job, unless the definition sets a longer one.
JOB_CHECK_SECONDS_MAX: Final = 300.0
POLL_WINDOW_SECONDS: Final = 3_600.0
MONITORING_SECONDS: Final = 7_200.0
SENSOR_TIMEOUT_SECONDS: Final = 7_200.0

# Any JSON value of a user.
Json: TypeAlias = Any


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a definition. Unknown fields are refused."""


class Period(enum.StrEnum):
    """The granularity of runs. CUSTOM is a length of time (`every`)."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    CUSTOM = "custom"


# When.


class Exclusions(_Part, frozen=True, kw_only=True):
    """Days on which the pipeline does not run. They add up."""

    weekends: bool = False
    # A country of the holidays library ("DE", "US"), with a subdivision ("DE-BY"), or a financial market ("NYSE").
    holidays: str | None = None
    days: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    # A named calendar.
    calendar: str | None = None


class Inclusions(_Part, frozen=True, kw_only=True):
    """The only days on which the pipeline is due."""

    dates: tuple[str, ...] = ()
    # "1", "-1", "5": the first, the last, the fifth business day of a month.
    business_days: tuple[int, ...] = ()


class SensorTrigger(_Part, frozen=True, kw_only=True):
    """A sensor whose arrival starts a run, if it meets a condition."""

    key: str
    check: str = "exists"
    field: str | None = None
    value: Json = None
    # "HH:MM", or ":MM" of the hour after the period: the latest time for a start.
    deadline: str | None = None
    # How long to wait for further updates before the start.
    settle: Seconds = Seconds(0)


class Upstream(_Part, frozen=True, kw_only=True):
    """A pipeline whose runs start a run of this one, or are waited for."""

    pipeline: str
    schedule: str | None = None
    # Which of its periods: the same, the previous, or all within ours ("all 24 hours").
    periods: str = "same"
    # How many of those may be missing.
    missing_max: int = 0


class Schedule(_Part, frozen=True, kw_only=True):
    """One schedule of a pipeline, with its own lock, run log, SLA and verdicts."""

    name: str = ""
    cron: str | None = None
    timezone: str | None = None
    catch_up: CatchUp = CatchUp.LATEST
    # "HH:MM": earliest start and evaluation deadline, in the zone of the schedule.
    after: str | None = None
    deadline: str | None = None
    sensor: SensorTrigger | None = None
    upstream: tuple[Upstream, ...] = ()
    # A type of event on the bus.
    event: str | None = None
    exclude: Exclusions = Exclusions()
    include: Inclusions = Inclusions()


# Readiness.


class Rule(_Part, frozen=True, kw_only=True):
    """A comparison on a sensor, or a combination of rules.

    One of `key`, `all`, `any`, `n_of`, `not`, `upstream`, `dataset` and `trait` is given.
    """

    key: str | None = None
    check: str = "exists"
    field: str | None = None
    value: Json = None
    # Of which period the sensor is read. By default the run's own; any for a check of its age, which is a limit itself.
    period: SensorPeriod | None = None
    # Compares with another sensor instead of a value: "key.field".
    other: str | None = None
    # Compares with the values of earlier periods: {"periods": 7, "within": 0.2} or {"periods": 7, "z_score": 3}.
    history: History | None = None
    all: tuple[Rule, ...] | None = None
    any: tuple[Rule, ...] | None = None
    n_of: NOf | None = None
    # In documents its name is "not", a Python keyword.
    not_: Rule | None = _field(default=None, name="not")
    upstream: Upstream | None = None
    # A dataset that must be healthy enough to read.
    dataset: str | None = None
    trait: str | None = None
    name: str = ""
    severity: Severity = Severity.BLOCK
    on_unknown: OnUnknown = OnUnknown.WAIT
    # It counts only after this many consecutive passes.
    stable_for: int = 1
    # Timestamps further ahead of the clock than this are rejected.
    future_max: Seconds = Seconds(300)


class NOf(_Part, frozen=True, kw_only=True):
    """At least n of these rules."""

    n: int
    rules: tuple[Rule, ...]


class History(_Part, frozen=True, kw_only=True):
    """Comparison with the same field of earlier periods."""

    periods: int = 7
    # As a fraction of their mean: 0.2 is 20 % either way.
    within: float | None = None
    z_score: float | None = None
    periods_min: int = 1


class Trait(_Part, frozen=True, kw_only=True):
    """One named check, evaluated or pushed."""

    # "builtin:NAME", "http(s)://…", "command:…" (argv), or "push".
    evaluator: str
    config: dict[str, Json] = {}
    ttl: Seconds = Seconds(300)
    timeout: Seconds = Seconds(30)
    required: bool = True


class Readiness(_Part, frozen=True, kw_only=True):
    """When a run may start."""

    rules: tuple[Rule, ...] = ()
    # ALL or ANY of the rules.
    mode: str = "ALL"
    traits: dict[str, Trait] = {}
    # all-required-pass or majority-pass, and its threshold.
    trait_rule: str = "all-required-pass"
    threshold: int | None = None
    window: Seconds = Seconds(WINDOW_SECONDS)
    interval: Seconds = Seconds(INTERVAL_SECONDS)
    # A hard limit, counted from the start of the run.
    timeout: Seconds | None = None


# The job.


class TriggerSpec(_Part, frozen=True, kw_only=True):
    """What starts the job. The type of trigger defines `config`."""

    type: str
    config: dict[str, Json] = {}
    # How often and for how long the job is polled.
    check_interval: Seconds = Seconds(JOB_CHECK_SECONDS)
    poll_window: Seconds = Seconds(POLL_WINDOW_SECONDS)
    # Whether the job reports its own end, and how long it may be silent.
    callback: bool = False
    heartbeat: Seconds | None = None


class RetryPolicy(_Part, frozen=True, kw_only=True):
    """How a failed job is retried."""

    # Total number of attempts.
    attempts: int = 3
    backoff: Seconds = Seconds(30)
    multiplier: float = 2.0
    backoff_max: Seconds = Seconds(3_600)
    categories: tuple[FailureCategory, ...] = (FailureCategory.TRANSIENT, FailureCategory.TIMEOUT)
    # Further attempts after a permanent failure.
    permanent_retries: int = 0


class Budgets(_Part, frozen=True, kw_only=True):
    """How many reruns a period may have, by reason."""

    drift: int = 1
    manual: int = 1
    # Consecutive failures, over all periods, after which the pipeline is stopped; 0: never.
    breaker: int = 0


# Expectations.


class Sla(_Part, frozen=True, kw_only=True):
    """Deadlines. They are reported, never enforced."""

    # "HH:MM" of the day (day_offset later), or ":MM" of the hour after the period.
    deadline: str | None = None
    # The same for the evaluation alone.
    evaluation_deadline: str | None = None
    day_offset: int | UnsetType = UNSET
    # Counted from the first sensor, or from the start of the run.
    max_duration: Seconds | None = None
    expected_duration: Seconds | None = None
    # Lead time of the warning, if no expected duration is given.
    at_risk: Seconds | None = None
    timezone: str | None = None
    critical: bool = False


class Monitoring(_Part, frozen=True, kw_only=True):
    """Whether traits are evaluated again after the run, and for how long."""

    enabled: bool = False
    duration: Seconds = Seconds(MONITORING_SECONDS)
    interval: Seconds = Seconds(60)


class PostRun(_Part, frozen=True, kw_only=True):
    """Checks after the job has succeeded."""

    rules: tuple[Rule, ...] = ()
    drift_field: str = "sensor_count"
    drift_threshold: float = 0.0
    # How long the post-run sensor may take to arrive; 0: none is expected.
    sensor_timeout: Seconds = Seconds(SENSOR_TIMEOUT_SECONDS)
    monitoring: Monitoring = Monitoring()


class Cascade(_Part, frozen=True, kw_only=True):
    """Whether and how dependent pipelines are started."""

    enabled: bool = True
    delay_between: Seconds = Seconds(0)


class Quarantine(_Part, frozen=True, kw_only=True):
    """Whether quarantined records of the job block later runs."""

    blocking: bool = False


class Alerts(_Part, frozen=True, kw_only=True):
    """Alert channels of this pipeline, in addition to the default routes."""

    channels: tuple[str, ...] = ()
    mute: tuple[str, ...] = ()


class WatchdogSpec(_Part, frozen=True, kw_only=True):
    """Thresholds of the watchdog for this pipeline; None: those of the settings."""

    # How long a run may show no activity, beyond what its job and its readiness allow.
    stuck: Seconds | None = None
    # How long after its slot a period must have started, unless the schedule has a deadline.
    schedule_grace: Seconds | None = None
    # How long after a failure or an arrival the watchdog starts what was not started.
    recovery_grace: Seconds | None = None
    # How long after its last change a run or lock without an execution is lost.
    lost: Seconds | None = None
    # How long a failure or an arrival is retried while the pipeline may not run.
    patience: Seconds | None = None


class Pipeline(_Part, frozen=True, kw_only=True):
    """A pipeline."""

    id: str
    owner: str = ""
    description: str = ""
    # 1 is critical.
    tier: int = 3
    period: Period = Period.DAILY
    every: Seconds | None = None
    timezone: str = "UTC"
    archetype: str | None = None
    schedules: tuple[Schedule, ...] = ()
    readiness: Readiness = Readiness()
    trigger: TriggerSpec | None = None
    retry: RetryPolicy = RetryPolicy()
    budgets: Budgets = Budgets()
    sla: Sla | None = None
    post_run: PostRun = PostRun()
    cascade: Cascade = Cascade()
    quarantine: Quarantine = Quarantine()
    alerts: Alerts = Alerts()
    watchdog: WatchdogSpec = WatchdogSpec()
    # How many of its runs may be active at once, over all periods.
    concurrency: int = 0
    # A pool of the settings whose slots its runs need, and how many each run takes.
    pool: str = ""
    slots: int = 1
    # Datasets that it reads and writes, for health.
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    dry_run: bool = False
    # Evaluated and reported, never blocked by its rules.
    shadow: bool = False
    labels: dict[str, str] = {}

    def schedule(self, name: str) -> Schedule | None:
        """Return the schedule of this name."""
        return next((schedule for schedule in self.schedules if schedule.name == name), None)
