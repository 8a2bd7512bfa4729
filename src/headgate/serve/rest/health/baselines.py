"""Baseline and alert quota API: metric baselines of datasets, and hourly alert quotas of teams."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from headgate.auth import rules
from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.health.alert_quotas import PER_HOUR, AlertQuota
from headgate.health.model.signals import ANY_VERSION
from headgate.health.service import HealthService
from headgate.health.signals.baselines import Baseline
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem

_OF_DATASET: Final = "/datasets/{dataset_urn}/baselines"
_QUOTA: Final = "/alert-quotas/{team}"

PerHour = Annotated[int, Meta(ge=1, le=100_000)]


class BaselineBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The baseline of a metric."""

    baseline_value: float
    stddev: Annotated[float, Meta(ge=0)]
    sample_count: Annotated[int, Meta(ge=1)]
    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None


class BaselineList(Struct, frozen=True):
    """Baselines of a dataset."""

    baselines: list[Baseline]


class QuotaQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Hourly alert limit of a team."""

    per_hour: PerHour = PER_HOUR


class Acquire(Struct, forbid_unknown_fields=True, kw_only=True):
    """Number of alerts about to be sent, and the hourly limit."""

    alerts: PerHour = 1
    per_hour: PerHour = PER_HOUR


def baseline_operations(health: HealthService) -> list[Operation]:
    """Return the operations on baselines and quotas."""
    return _Baselines(health).operations()


class _Baselines:
    def __init__(self, health: HealthService) -> None:
        self._baselines = health.baselines
        self._quotas = health.alert_quotas

    def operations(self) -> list[Operation]:
        reads = rules.named(Permission.SIGNAL_READ, "path.dataset_urn")
        writes = rules.named(Permission.SIGNAL_WRITE, "path.dataset_urn")
        one = f"{_OF_DATASET}/{{metric}}"
        return [
            Operation("GET", _OF_DATASET, "List baselines of a dataset", self.ls, {200: BaselineList}, rule=reads),
            Operation("GET", one, "Show the baseline of a metric", self.show, {200: Baseline}, rule=reads),
            Operation(
                "PUT",
                one,
                "Set the baseline of a metric",
                self.put,
                {200: Baseline, 409: Problem, 412: Problem},
                body=BaselineBody,
                rule=writes,
            ),
            Operation(
                "GET",
                _QUOTA,
                "Show the alert quota of a team",
                self.quota,
                {200: AlertQuota},
                query=QuotaQuery,
                rule=Rule(Permission.INCIDENT_READ),
            ),
            Operation(
                "POST",
                f"{_QUOTA}/acquire",
                "Acquire alert quota of a team",
                self.acquire,
                {200: AlertQuota},
                body=Acquire,
                rule=Rule(Permission.INCIDENT_WRITE),
                repeatable=True,
            ),
        ]

    def ls(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(BaselineList(self._baselines.of(call.path["dataset_urn"])))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return _shown(self._baselines.get(call.path["dataset_urn"], call.path["metric"]))

    def put(self, call: Call[BaselineBody, NoQuery]) -> Answer:
        body = call.body

        def change(version: int | None) -> Baseline:
            return self._baselines.put(
                call.path["dataset_urn"],
                call.path["metric"],
                baseline_value=body.baseline_value,
                stddev=body.stddev,
                sample_count=body.sample_count,
                expected_version=ANY_VERSION if version is None else version,
            )

        return _shown(matching(call.headers, body.expected_version, change))

    def quota(self, call: Call[None, QuotaQuery]) -> Answer:
        return Answer(self._quotas.show(call.path["team"], per_hour=call.query.per_hour))

    def acquire(self, call: Call[Acquire, NoQuery]) -> Answer:
        return Answer(self._quotas.acquire(call.path["team"], alerts=call.body.alerts, per_hour=call.body.per_hour))


def _shown(baseline: Baseline) -> Answer:
    return Answer(baseline, headers=etag(baseline.version))
