"""A schedule with several slots in one period is refused: only the first of them would run."""

from __future__ import annotations

import pytest

from headgate.errors import CorruptionError
from headgate.pipelines.authoring.loader import Known, load_text
from headgate.pipelines.catalog.rows import stored_of
from headgate.pipelines.definition.problems import Problem


def problems(period: str, schedule: str, *, is_stored: bool = False) -> list[Problem]:
    text = (
        f"id: orders\n{period}\nschedules:\n  - {schedule}\ntrigger: {{type: workflow, config: {{workflow: load}}}}\n"
    )
    return list(load_text(text, "orders.yaml", Known(is_stored=is_stored)).problems)


@pytest.mark.parametrize(
    ("period", "schedule", "field", "remedy"),
    [
        ("period: daily", "{cron: '*/15 * * * *'}", "cron", 'set period: custom and every: "15m"'),
        ("", "{cron: '*/15 * * * *'}", "cron", 'set period: custom and every: "15m"'),
        ("", "{cron: 'every 15m'}", "cron", 'set period: custom and every: "15m"'),
        ("", "{cron: '5 * * * *'}", "cron", "set period: hourly"),
        ("", "{cron: '0 6,18 * * *', timezone: Europe/Berlin}", "cron", "set period: hourly"),
        ("period: hourly", "{cron: '*/30 * * * *'}", "cron", 'set period: custom and every: "30m"'),
        ("period: weekly", "{cron: '0 6 * * MON-FRI'}", "cron", "set period: daily"),
        ("period: monthly", "{cron: '0 6 1,15 * *'}", "cron", "set period: weekly"),
        ("period: monthly", "{cron: '0 6 * * *', include: {business_days: [3, -1]}}", "cron", "set period: weekly"),
        ("period: monthly", "{include: {business_days: [3, -1]}}", "include", "set period: weekly"),
        ("period: weekly", "{include: {dates: [2031-12-23, 2031-12-24]}}", "include", "set period: daily"),
        ("period: custom\nevery: 6h", "{cron: '0 * * * *'}", "cron", "set period: hourly"),
    ],
)
def test_load_text__several_slots_in_a_period__is_refused_with_the_remedy(
    period: str, schedule: str, field: str, remedy: str
) -> None:
    (problem,) = problems(period, schedule)
    assert (problem.field, problem.is_warning) == (f"schedules[0].{field}", False)
    assert problem.allowed.startswith(remedy)


@pytest.mark.parametrize(
    ("period", "schedule"),
    [
        ("", "{cron: '0 6 * * *'}"),
        ("", "{cron: '30 2 * * *', timezone: Europe/Berlin}"),
        ("", "{cron: '0 6 * * *', include: {business_days: [3, -1]}}"),
        ("period: hourly", "{cron: '5 * * * *'}"),
        ("period: hourly", "{cron: '0 6 * * *'}"),
        ("period: weekly", "{cron: '0 6 * * MON'}"),
        ("period: weekly", "{cron: '0 6 1 * *'}"),
        ("period: monthly", "{cron: '0 6 * * *', include: {business_days: [3]}}"),
        ("period: monthly", "{include: {business_days: [-1]}}"),
        ("period: monthly", "{cron: '0 6 LW * *'}"),
        ("period: custom\nevery: 15m", "{cron: '*/15 * * * *'}"),
        ("period: monthly", "{exclude: {weekends: true}}"),
        ("", "{sensor: {key: landed}}"),
    ],
)
def test_load_text__one_slot_in_each_period__is_accepted(period: str, schedule: str) -> None:
    assert problems(period, schedule) == []


def test_load_text__the_first_open_day_of_several__is_a_warning() -> None:
    (problem,) = problems("period: monthly", "{cron: '0 6 1-5 * *', exclude: {weekends: true}}")
    assert problem.is_warning


def test_load_text__a_definition_that_is_in_use__is_a_warning() -> None:
    (problem,) = problems("", "{cron: '*/15 * * * *'}", is_stored=True)
    assert problem.is_warning


def test_stored_of__a_row_of_another_program_with_several_slots_in_a_period__is_read() -> None:
    row = {"PK": "PIPELINE#orders", "SK": "CONFIG", "config": {"id": "orders", "schedules": [{"cron": "*/15 * * * *"}]}}
    assert stored_of(row).pipeline.schedules[0].cron == "*/15 * * * *"
    with pytest.raises(CorruptionError):
        stored_of({**row, "config": {"id": "orders", "schedules": [{"cron": "*/15"}]}})
