"""Two weeks of a shop, written in virtual time: definitions, runs, signals, evidence and lineage of the past.

A home that a server opens afterwards has pages with history, which a server that has just started could not have.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headgate.bootstrap.project_folder import apply_folder
from headgate.pipelines.enums import JobEvent, RunStatus
from headgate.settings import PipelineSettings, Settings
from tests.integration.serve.health_rig import done
from tests.integration.serve.pages.test_pages_pipelines import PipelineSite

RAW: Final = "urn:dp:shop:orders:raw"
SCORED: Final = "urn:dp:shop:orders:scored"
REPORT: Final = "urn:dp:shop:revenue:report"
RATES: Final = "urn:dp:shop:fx:rates"
PROFILE: Final = "urn:dp:shop:customers:profile"
POOLS: Final = {"warehouse": 2, "docks": 100}
DAYS: Final = 14
_DATASETS: Final = (
    (RAW, "TIER_2", "shop-data", "Orders as the shop exports them"),
    (SCORED, "TIER_1", "shop-data", "Orders with their fraud score"),
    (REPORT, "TIER_1", "finance", "Revenue"),
    (RATES, "TIER_2", "finance", "Exchange rates of the bank"),
    (PROFILE, "TIER_3", "crm", "Customer profiles"),
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
    for each in _SOURCE.glob("*.py"):
        shutil.copy(each, folder)
    for each in (_SOURCE / "pipelines").glob("*.yaml"):
        text = each.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        (folder / "pipelines" / each.name).write_text(text)


def write_history(home: Path, project: Path, now: datetime) -> None:
    """Write two weeks of history into a new home."""
    past = History(home, now)
    try:
        past.tell(project)
    finally:
        past.is_stopping = True
        past.close()


class History(PipelineSite):
    """The shop's server in the past."""

    def __init__(self, home: Path, now: datetime) -> None:
        super().__init__(home, settings=Settings(home=home, pipelines=PipelineSettings(pools=POOLS)))
        self._now = now
        self._go_to(now - timedelta(days=DAYS))

    def tell(self, project: Path) -> None:
        """Write the past, day by day."""
        for urn, tier, team, name in _DATASETS:
            slos = {"freshness": {"max_delay_seconds": 86_400}, "contract_compliance": {"min_compliance_rate": 0.99}}
            config = {"dataset_urn": urn, "tier": tier, "owner_team": team, "display_name": name, "slos": slos}
            done(self.post("/datasets", config), 201)
        apply_folder(self.pipelines, project / "pipelines")
        self._lineage()
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
