"""Checks: a thousand a minute on DuckDB, and the processor time of the process, with the queries in it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time, sleep

import duckdb

from bench.measure import Figure
from headgate.bootstrap.health import open_health
from headgate.bootstrap.pipelines import open_pipelines
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.checks.definitions import LoadedFile
from headgate.checks.model import Check, CheckFile, NullShareCheck, Source, SqlCheck, SqlSource, UniqueCheck
from headgate.checks.poller import CheckThread
from headgate.clock import SystemClock
from headgate.durable.model.duration import Seconds
from headgate.durable.sdk.app import App
from headgate.health.model.enums import SignalState
from headgate.settings import Settings

CHECKS = 1_000
DATASETS = 100
SECONDS = 60.0
GOAL_SHARE = 0.30


def run() -> list[Figure]:
    """Return every figure of this group."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "shop.duckdb"
        with duckdb.connect(str(path)) as database:
            database.execute("CREATE TABLE orders AS SELECT range AS order_id, 'c' AS customer_id FROM range(1000)")
        used, done, unknown = _checked(folder)
    share = used / SECONDS
    return [
        Figure(
            f"{CHECKS:,} checks a minute on DuckDB, with the queries",
            f"{share:.1%} of a core",
            f"< {GOAL_SHARE:.0%}",
            share < GOAL_SHARE and done >= CHECKS * 0.95 and not unknown,
            counted=f"{done:,} checks in {SECONDS:g} s, {unknown} UNKNOWN",
            notes=f"{used / max(1, done) * 1000:.1f} ms a check",
        )
    ]


def _checked(folder: Path) -> tuple[float, int, int]:
    """Run the checks for a minute, and return processor seconds, checks done, and how many were UNKNOWN."""
    clock = SystemClock()
    settings = Settings(home=folder / ".headgate", project=folder)
    opened = open_store(settings, clock)
    service = AppService(App("headgate"), opened, clock)
    with closing(opened.store), closing(open_cache(settings, clock)) as cache:
        health = open_health(opened, cache, clock, service)
        checks = open_pipelines(service, opened, clock, environ={}, health=health).checks
        assert checks is not None
        checks.catalog.replace([_file(number) for number in range(DATASETS)])
        thread = CheckThread(checks.poller)
        thread.start()
        # The first runs come early, and each check then takes its place in the interval.
        sleep(SECONDS + 10)
        before = _runs(checks.service)
        used = process_time()
        sleep(SECONDS)
        used = process_time() - used
        after = _runs(checks.service)
        thread.stop()
        health.close()
    done = sum(after[key][0] != before.get(key, (0, None))[0] for key in after)
    unknown = sum(state is SignalState.UNKNOWN for _, state in after.values())
    return used, done, unknown


def _runs(service: object) -> dict[str, tuple[int, SignalState | None]]:
    from headgate.checks.service import CheckService

    assert isinstance(service, CheckService)
    return {
        str(each.known.key): (each.state.last_at_ms, each.state.last_state)
        for each in service.ls()
        if each.state is not None
    }


def _file(number: int) -> LoadedFile:
    kinds = (
        {"null_share": NullShareCheck(column="customer_id")},
        {"unique": UniqueCheck(columns=("order_id",))},
        {"sql": SqlCheck(query="SELECT count(*) FROM orders", check="gte", value=1)},
    )
    checks = tuple(Check(id=f"check-{index:02d}", **kinds[index % 3]) for index in range(CHECKS // DATASETS))
    source = Source(sql=SqlSource(url="duckdb:///shop.duckdb", table="orders"))
    file = CheckFile(dataset=f"urn:dp:bench:orders{number:03d}", source=source, every=Seconds(SECONDS), checks=checks)
    return LoadedFile(file=file, source="checks/bench.yaml", line=1)
