"""Rules of pipelines: how many are evaluated in a second."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from time import process_time

from bench.measure import ROUNDS, Figure
from headgate.pipelines.definition.model import Rule
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_rules, evaluate
from headgate.pipelines.sensors import Sensor

GOAL_PER_SECOND = 100_000
_EVALUATIONS = 2_000
_NOW = datetime(2026, 3, 3, 7, tzinfo=UTC)
_DATA = {"count": 12, "state": "ok", "updatedAt": "2026-03-03T06:30:00Z"}
# One of each operator that compares with a value.
_RULES = (
    Rule(key="s0", field="count"),
    Rule(key="s1", check="gte", field="count", value=10),
    Rule(key="s2", check="equals", field="state", value="ok"),
    Rule(key="s3", check="lt", field="count", value=100),
    Rule(key="s4", check="between", field="count", value=[1, 50]),
    Rule(key="s5", check="in", field="state", value=["ok", "done"]),
    Rule(key="s6", check="regex", field="state", value="^o"),
    Rule(key="s7", check="age_lt", field="updatedAt", value="1h"),
    Rule(key="s8", check="not_equals", field="count", value=5),
    Rule(key="s9", check="gt", field="count", value=30),
)


def figures() -> list[Figure]:
    compiled = compile_rules(_RULES)
    sensors = {f"s{n}": Sensor(key=f"s{n}", data=_DATA, changed_at_ms=1, pushed_at_ms=1) for n in range(len(_RULES))}
    facts = Facts(sensors=sensors)
    assert evaluate(compiled, facts, _NOW).passed_count == len(_RULES) - 1, "all hold but the last"
    rates = []
    for _ in range(ROUNDS):
        # Of the processor and not of the clock on the wall: nothing here waits, so others who compute do not count.
        used = process_time()
        for _ in range(_EVALUATIONS):
            evaluate(compiled, facts, _NOW)
        rates.append(_EVALUATIONS * len(_RULES) / (process_time() - used))
    found = statistics.median(rates)
    return [
        Figure(
            "rules evaluated in a second of a core",
            f"{found:,.0f}",
            f">= {GOAL_PER_SECOND:,}",
            found >= GOAL_PER_SECOND,
            f"{_EVALUATIONS * len(_RULES):,} rules, {ROUNDS} rounds",
            f"rounds {min(rates):,.0f} to {max(rates):,.0f}",
            rates,
        )
    ]
