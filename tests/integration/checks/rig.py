"""Checks of a project folder on one store, with health and pipelines as bootstrap puts them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from headgate.bootstrap.checks import OpenChecks, open_check_basis, open_checks
from headgate.bootstrap.health import open_health
from headgate.bootstrap.pipelines import OpenPipelines, open_pipelines
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.checks.definitions import load_check_text
from headgate.clock import VirtualClock
from headgate.durable.sdk.app import App
from headgate.health.evidence.rows import Evidence, Result, Validation
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import ANY_VERSION, Metrics, Signal, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.health.model.volume_counts import HOUR_MS, VolumeHour
from headgate.health.results.model import ReportedResult
from headgate.health.service import HealthService
from headgate.health.signals.volumes import hour_put
from headgate.settings import Settings
from tests.stores import lay_database

# 2026-03-03 06:30 UTC, a Tuesday.
START_SECONDS = 1_772_519_400.0


class CheckRig:
    """The checks of one dataset."""

    def __init__(self, folder: Path, clock: VirtualClock, health: HealthService, pipelines: OpenPipelines) -> None:
        self.folder = folder
        self.clock = clock
        self.health = health
        self.pipelines = pipelines
        assert pipelines.checks is not None
        self.checks: OpenChecks = pipelines.checks
        self.urn = ""

    def load(self, text: str) -> None:
        """Load a check file as the project folder would."""
        loaded = load_check_text(text, "checks/orders.yaml")
        assert not loaded.problems, [each.text() for each in loaded.problems]
        self.checks.catalog.replace(loaded.files)
        self.urn = self.checks.recorder.registered(loaded.files[0].file.dataset)

    def second_process(self) -> OpenChecks:
        """Return the checks of another process on the same store."""
        made = open_checks(
            open_check_basis(self.health, self.health.store, self.clock),
            App("other"),
            self.pipelines.service,
            self.health,
            self.pipelines.probes.runner,
            self.pipelines.calendars,
            self.clock,
            name="other",
        )
        made.catalog.replace(self.checks.catalog.files())
        return made

    def advance(self, seconds: int) -> None:
        """Let time pass second by second, with the poller at work."""
        for _ in range(seconds):
            self.checks.poller.tick()
            self.clock.advance(1)
        self.checks.poller.tick()

    def results(self) -> dict[str, ReportedResult]:
        return {each.test_id: each for each in self.health.results.of(self.urn)}

    def result(self, check_id: str) -> ReportedResult:
        return self.results()[check_id]

    def states(self) -> dict[str, SignalState]:
        return {name: each.state for name, each in self.results().items()}

    def signal(self, signal_type: str) -> Signal:
        found = self.health.signals.get(self.urn, signal_type, consistent=True)
        assert found is not None, f"no signal {signal_type}"
        return found

    def report_volumes(self, counts: Mapping[int, float]) -> None:
        """Store the hourly volumes of a dataset, as its reports would."""
        urn = self.checks.recorder.registered("urn:dp:orders:created")
        for hour, count in counts.items():
            stored = VolumeHour(instant(hour * HOUR_MS)[:13], ((HOUR_MS, int(count)),))
            self.health.store.transact([hour_put(urn, stored)])

    def report_window(self, state: SignalState, count: int) -> None:
        """Report a VOLUME window that ends now, as a monitor would."""
        now_ms = int(self.clock.seconds() * 1000)
        value = SignalValue(
            state=state,
            score=1.0,
            window_start=instant(now_ms - 300_000),
            window_end=instant(now_ms),
            metrics=Metrics(evidence_count=count),
        )
        update = SignalUpdate(dataset_urn=self.urn, signal_type="VOLUME", value=value, expected_version=ANY_VERSION)
        assert self.health.update_signal(update).is_success

    def report_signal(self, signal_type: str, state: SignalState) -> None:
        """Report a signal of the last minute, as a tool would."""
        now_ms = int(self.clock.seconds() * 1000)
        value = SignalValue(state=state, score=1.0, window_start=instant(now_ms - 60_000), window_end=instant(now_ms))
        update = SignalUpdate(dataset_urn=self.urn, signal_type=signal_type, value=value, expected_version=ANY_VERSION)
        assert self.health.update_signal(update).is_success

    def report_evidence(self, hour: int, reason: str, count: int) -> None:
        """Report failures of records in an hour."""
        for number in range(count):
            self.health.evidence.put(
                Evidence(
                    dataset_urn=self.urn,
                    created_at=instant(hour * HOUR_MS + 60_000 + number),
                    validation=Validation(result=Result.FAIL, failed_gates=("contract",), reason_codes=(reason,)),
                )
            )


@contextmanager
def check_rig(folder: Path) -> Iterator[CheckRig]:
    """Open a store in a folder, which is the project as well."""
    clock = VirtualClock(START_SECONDS)
    settings = Settings(home=folder / ".headgate", project=folder)
    lay_database(settings.home)
    opened = open_store(settings, clock)
    service = AppService(App("headgate"), opened, clock)
    with closing(opened.store), closing(open_cache(settings, clock)) as cache:
        health = open_health(opened, cache, clock, service)
        pipelines = open_pipelines(service, opened, clock, environ={}, health=health)
        yield CheckRig(folder, clock, health, pipelines)
        health.close()
