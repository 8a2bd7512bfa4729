"""Two weeks of a shop, written in virtual time: definitions, runs, signals, evidence and lineage of the past.

A home that a server opens afterwards has pages with history, which a server that has just started could not have.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headgate.bootstrap.project_folder import apply_folder
from headgate.health.model.timestamps import instant
from headgate.health.model.volume_counts import HOUR_MS, VolumeHour
from headgate.health.signals.volumes import hour_put
from headgate.pipelines.enums import JobEvent, RunStatus
from headgate.settings import PipelineSettings, Settings
from tests.integration.serve.health_rig import done
from tests.integration.serve.pages.test_pages_pipelines import PipelineSite

RAW: Final = "urn:dp:shop:orders:raw"
SCORED: Final = "urn:dp:shop:orders:scored"
REPORT: Final = "urn:dp:shop:revenue:report"
RATES: Final = "urn:dp:shop:fx:rates"
PROFILE: Final = "urn:dp:shop:customers:profile"
# A dataset with checks, whose last whole hour has too few rows.
PAYMENTS: Final = "urn:dp:shop:payments:v1"
POOLS: Final = {"warehouse": 2, "docks": 100}
DAYS: Final = 14
_DATASETS: Final = (
    (RAW, "TIER_2", "shop-data", "Orders as the shop exports them"),
    (SCORED, "TIER_1", "shop-data", "Orders with their fraud score"),
    (REPORT, "TIER_1", "finance", "Revenue"),
    (RATES, "TIER_2", "finance", "Exchange rates of the bank"),
    (PROFILE, "TIER_3", "crm", "Customer profiles"),
    (PAYMENTS, "TIER_3", "finance", "Payments"),
)
# Minutes that a run takes, from one day to the next.
_MINUTES: Final = (6, 7, 6, 9, 8, 7, 12)
# Every day before today.
_DAILY: Final = (
    "orders-load", "orders-score", "fx-rates", "revenue-report", "dashboard", "customer-360", "price-list",
    "warehouse-vacuum", "ledger-export", "supplier-prices", "stock-sync", "loyalty-points",
)  # fmt: skip
# So many of them are due at the first slot of the day.
_AT_SLOT: Final = 5
# Weeks of hourly payments that are stored as volumes, and days of them that are rows of a table.
_WEEKS: Final = 8
_TABLE_DAYS: Final = 5
_SOURCE: Final = Path(__file__).parent / "shop"


def write_project(folder: Path, now: datetime, *, orders: int) -> None:
    """Write the shop's code and definitions. What is due today was due before now, but not yesterday."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    slot = max(midnight + timedelta(minutes=1), now - timedelta(hours=2))
    deadline = max(midnight + timedelta(minutes=2), now - timedelta(minutes=50))
    later = max(midnight + timedelta(minutes=1), now - timedelta(minutes=20))
    values = {
        "@SLOT@": f"{slot.minute} {slot.hour} * * *",
        "@SLOT_TIME@": f"{slot:%H:%M}",
        "@DEADLINE@": f"{deadline:%H:%M}",
        "@LATER@": f"{later.minute} {later.hour} * * *",
        "@ORDERS@": str(orders),
        "@FOLDER@": str(folder),
    }
    (folder / "pipelines").mkdir(parents=True)
    shutil.copytree(_SOURCE / "checks", folder / "checks")
    _write_payments(folder / "shop.db", now)
    for each in _SOURCE.glob("*.py"):
        shutil.copy(each, folder)
    for each in (_SOURCE / "pipelines").glob("*.yaml"):
        text = each.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        (folder / "pipelines" / each.name).write_text(text)


def _payments_of(hour: int, last_hour: int) -> int:
    """Return the payments of an hour since the epoch: more by day than by night, and few in the last two hours."""
    at = datetime.fromtimestamp(hour * 3600, UTC)
    usual = 220 + 120 * (8 <= at.hour < 20) - 60 * (at.weekday() >= 5) + random.Random(hour).randint(-12, 12)
    return usual // 4 if hour > last_hour - 2 else usual


def _write_payments(path: Path, now: datetime) -> None:
    last_hour = int(now.timestamp()) // 3600 - 1
    rows = [
        (f"{hour}-{number}", None if number % 40 == 0 else f"customer-{number}", f"{moment:%Y-%m-%d %H:%M:%S}")
        for hour in range(last_hour - _TABLE_DAYS * 24, last_hour + 2)
        for number in range(_payments_of(hour, last_hour))
        for moment in [datetime.fromtimestamp(hour * 3600 + 5 * number, UTC)]
        if moment < now
    ]
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE payments (payment_id TEXT, customer_id TEXT, paid_at TIMESTAMP)")
        database.executemany("INSERT INTO payments VALUES (?, ?, ?)", rows)
    database.close()


def write_history(home: Path, project: Path, now: datetime) -> None:
    """Write two weeks of history into a new home."""
    past = History(home, project, now)
    try:
        past.tell(project)
    finally:
        past.is_stopping = True
        past.close()


class History(PipelineSite):
    """The shop's server in the past."""

    def __init__(self, home: Path, project: Path, now: datetime) -> None:
        settings = Settings(home=home, project=project, pipelines=PipelineSettings(pools=POOLS))
        super().__init__(home, settings=settings)
        self._now = now
        self._go_to(now - timedelta(days=DAYS))

    def tell(self, project: Path) -> None:
        """Write the past, day by day."""
        for urn, tier, team, name in _DATASETS:
            slos = {"freshness": {"max_delay_seconds": 86_400}, "contract_compliance": {"min_compliance_rate": 0.99}}
            config = {"dataset_urn": urn, "tier": tier, "owner_team": team, "display_name": name, "slos": slos}
            if urn == PAYMENTS:
                # Its checks alone judge it.
                del config["slos"]
                config["contract_binding"] = {"contract_id": "payments", "required_fields": ["payment_id"]}
            done(self.post("/datasets", config), 201)
        apply_folder(self.pipelines, project / "pipelines")
        self.checks.catalog.load(project / "checks")
        self._lineage()
        self._volumes()
        for back in range(DAYS, 0, -1):
            self._day(self._now - timedelta(days=back), back)
        self._today()

    def _day(self, moment: datetime, back: int) -> None:
        for number, name in enumerate(_DAILY):
            # Within the grace of their slots.
            back_minutes = 119.5 if number < _AT_SLOT else 19.5
            self._go_to(moment - timedelta(minutes=back_minutes, seconds=-2 * number))
            self._complete(name, moment, _MINUTES[(back + number) % 7])
        if back <= 7:
            for hours in range(0, 24, 4):
                self._go_to(moment + timedelta(hours=hours))
                for urn in (RAW, SCORED, REPORT):
                    is_bad = urn == RAW and back in (3, 5)
                    self._signal(urn, "CONTRACT_COMPLIANCE", 0.97 if is_bad else 1.0, "WARNING" if is_bad else "OK")
                    self._signal(urn, "FRESHNESS", 0.97 + 0.005 * (back % 5))
                if back <= _TABLE_DAYS - 1:
                    self._run_checks()

    def _today(self) -> None:
        self._go_to(self._now - timedelta(minutes=45))
        for name in ("customer-360", "stock-sync"):
            self._complete(name, self._now, 3)
        done(self.post("/pipelines/loyalty-points/pause", {"reason": "the programme moves to another system"}), 200)
        held = f"/pipelines/price-list/periods/{self._now:%Y-%m-%d}/hold"
        done(self.post(held, {"reason": "prices of the sale are checked by hand"}), 200)

    def _complete(self, name: str, moment: datetime, minutes: float) -> None:
        run = self.start(name, f"{moment:%Y-%m-%d}")
        self.clock.advance(60 * minutes)
        self.end(run, RunStatus.COMPLETED, event=JobEvent.SUCCESS)

    def _signal(self, urn: str, kind: str, score: float, state: str = "OK") -> None:
        metrics = {
            "evidence_count": 1_240,
            "pass_count": round(1_240 * score),
            "fail_count": round(1_240 * (1 - score)),
        }
        self.signal(state, urn, kind, score=score, metrics=metrics)

    def _volumes(self) -> None:
        last_hour = int(self._now.timestamp()) // 3600 - 1
        counts = {hour: _payments_of(hour, last_hour) for hour in range(last_hour - _WEEKS * 168 - 24, last_hour)}
        hours = (VolumeHour(instant(hour * HOUR_MS)[:13], ((HOUR_MS, count),)) for hour, count in counts.items())
        assert not any(self.store.transact_many([[hour_put(PAYMENTS, each)] for each in hours]))

    def _run_checks(self) -> None:
        """Run the checks that are due. The first time they are planned, and due within two seconds."""
        self.checks.poller.tick()
        self.clock.advance(3)
        self.checks.poller.tick()

    def _lineage(self) -> None:
        # The lineage of pipelines follows from their definitions.
        for job, reads in (("fraud-model", [SCORED]), ("board-slides", [REPORT])):
            entity = {"entity_id": f"job:{job}", "entity_name": job, "entity_type": "JOB"}
            spec = self.spec(
                spec_id=f"lspec:{job}:git:0a1b2c3",
                dataset_reads=[{"dataset_urn": urn, **entity} for urn in reads],
                dataset_writes=[],
            )
            done(self.put(f"/lineage/specs/{quote(spec['spec_id'], safe='')}", spec), 200)

    def _go_to(self, moment: datetime) -> None:
        self.clock.step(moment.timestamp() - self.clock.seconds())
