"""The shop of the demo: its project folder, its producers, and the validation of what they send."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.demo.server import Api

RAW: Final = "urn:dp:shop:orders:raw"
SCORED: Final = "urn:dp:shop:orders:scored"
REPORT: Final = "urn:dp:shop:revenue:report"
RATES: Final = "urn:dp:shop:fx:rates"
CHAIN: Final = ("orders-load", "orders-score", "revenue-report", "dashboard")
SIGNATURE: Final = "MISSING_FIELD:amount"
PERIOD_SECONDS: Final = 60
_EVIDENCE: Final = 3


class Shop(Struct, frozen=True):
    """The shop, with periods of a minute and `orders` orders in each."""

    folder: Path
    api: Api
    clock: Clock
    orders: int

    @staticmethod
    def write(folder: Path, orders: int) -> None:
        """Write the project of a shop: the app, the jobs and the pipelines. Existing data stays."""
        source = files("headgate.demo") / "project"
        values = {"ORDERS": str(orders)}
        (folder / "pipelines").mkdir(parents=True, exist_ok=True)
        for name in ("shop_app.py", "shop_jobs.py"):
            (folder / name).write_text((source / name).read_text())
        for each in (source / "pipelines").iterdir():
            text = Template(each.read_text()).safe_substitute(values)
            (folder / "pipelines" / each.name).write_text(text)

    def register(self) -> None:
        """Register the datasets with their tiers and teams."""
        for urn, tier, team, name in (
            (RAW, "TIER_2", "shop-data", "Orders as the shop exports them"),
            (SCORED, "TIER_1", "shop-data", "Orders with their fraud score"),
            (REPORT, "TIER_1", "finance", "Revenue"),
            (RATES, "TIER_2", "finance", "Exchange rates of the bank"),
        ):
            config = {"dataset_urn": urn, "tier": tier, "owner_team": team, "display_name": name}
            self.api.create("/datasets", config)

    def period(self, back: int = 0) -> str:
        """Return the text of the latest complete period, or of one `back`; -1 is the current one."""
        start = self.clock.now().replace(second=0, microsecond=0) - timedelta(seconds=PERIOD_SECONDS * (1 + back))
        return start.strftime("%Y-%m-%dT%H:%M")

    def export(self, period: str, *, is_broken: bool = False) -> None:
        """Write the export of a period and report it. In a broken one, some orders have `total` for `amount`."""
        rng = random.Random(period)
        orders = []
        for number in range(self.orders):
            country = rng.choice(["DE", "FR", "IT"])
            # The bad release is out in one country.
            name = "total" if is_broken and country == "IT" else "amount"
            orders.append({"id": f"{period}-{number}", "country": country, name: round(rng.uniform(5, 90), 2)})
        path = self.folder / "lake" / "exports" / f"{period}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(orders))
        draft.replace(path)
        data = {"status": "complete", "count": self.orders}
        self.api.post("/pipelines/orders-load/sensors/orders-export", {"period": period, "data": data})

    def send_rates(self, period: str) -> None:
        """Send the exchange rates of a period."""
        data = {"EUR": 1.0, "USD": 1.08}
        self.api.post("/pipelines/fx-rates/sensors/rates", {"period": period, "data": data})

    def validate(self, period: str, *, is_broken: bool = False, version: str = "v41") -> None:
        """Report what the validation of the shop found in the orders of a period: evidence, and the signal."""
        result = "FAIL" if is_broken else "PASS"
        failed = {"failed_gates": ["G4_CONTRACT"], "reason_codes": [SIGNATURE]} if is_broken else {}
        now, before = self._instant(), self._instant(-PERIOD_SECONDS)
        ids = [_evidence_id(period, result, number) for number in range(_EVIDENCE)]
        for number, evidence_id in enumerate(ids):
            evidence: dict[str, Any] = {
                "evidence_id": evidence_id,
                "dataset_urn": RAW,
                "created_at": now,
                "producer": {"producer_id": "shop-api", "version": version, "confidence": "HIGH"},
                "source": {"topic": "shop.orders", "partition": 0, "offset": number},
                "validation": {"result": result, **failed},
            }
            self.api.create("/evidence", evidence)
        signal: dict[str, Any] = {
            "state": "CRITICAL" if is_broken else "OK",
            "score": 0.0 if is_broken else 1.0,
            "window_start": before,
            "window_end": now,
        }
        if is_broken:
            signal |= {"failure_signature": SIGNATURE, "evidence_sample": ids}
        self.api.put(f"/datasets/{RAW}/signals/CONTRACT_COMPLIANCE", signal)

    def _instant(self, seconds: float = 0.0) -> str:
        moment = self.clock.now() + timedelta(seconds=seconds)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _evidence_id(period: str, result: str, number: int) -> str:
    """Return the same id for the same record, so that a repeated report is one."""
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    rng = random.Random(f"{period}/{result}/{number}")
    return "evd-0" + "".join(rng.choice(alphabet) for _ in range(25))
