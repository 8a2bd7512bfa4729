"""Tracebacks and log lines of activities, attempt by attempt."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.durable.engine.activity_store import ATTEMPTS_KEPT_MAX
from headgate.errors import WorkflowViolationError
from tests.scenarios.conftest import OpenEnvironment

SECRET = "hunter2"


def charge_card(attempt: int) -> None:
    password = SECRET
    if attempt:
        raise ValueError(f"card refused in attempt {attempt}, after {len(password)} characters")


def app_with(attempts: int, *, is_caught: bool = False) -> hg.App:
    mine = hg.App("mine")

    @mine.activity(retry=hg.Retry(attempts=attempts, first=1.0, factor=1.0, jitter=0))
    def charge() -> None:
        hg.log(f"attempt {hg.activity().attempt}", level="warning")
        charge_card(hg.activity().attempt)

    @mine.workflow
    async def pay() -> str:
        try:
            await charge()
        except ValueError:
            if not is_caught:
                raise
        await hg.wait_signal("done")
        return "caught"

    return mine


def test_failures__activity_waits_for_its_next_attempt__has_every_traceback_newest_first(
    open_env: OpenEnvironment,
) -> None:
    mine = app_with(5)
    env = open_env(mine)
    handle = env.start(mine.workflows["pay"])
    env.run()
    env.advance("1.5s")

    failures = env.service.client.failures(handle.id)

    assert [(each.activity, each.attempt, each.is_final) for each in failures] == [
        ("charge", 2, False),
        ("charge", 1, False),
    ]
    for each in failures:
        assert "in charge_card" in each.error.trace
        assert "raise ValueError" in each.error.trace
        assert each.worker == env.worker.worker_id
    # Source lines are shown, values of variables never.
    assert SECRET not in str(failures)


def test_failures__activity_failed_for_good_and_was_caught__are_in_the_history(open_env: OpenEnvironment) -> None:
    mine = app_with(3, is_caught=True)
    env = open_env(mine)
    handle = env.start(mine.workflows["pay"])
    env.run()
    env.advance("1m")

    failures = env.service.client.failures(handle.id)

    assert [(each.attempt, each.is_final) for each in failures] == [(3, True), (2, False), (1, False)]
    assert [each.error.message[:25] for each in failures] == [f"card refused in attempt {n}" for n in (3, 2, 1)]
    assert all("in charge_card" in each.error.trace for each in failures)
    assert [each.attempt for each in env.service.client.failures(handle.id, limit=1)] == [3]


def test_failures__of_many_attempts__the_last_ones_are_kept(open_env: OpenEnvironment) -> None:
    mine = app_with(12)
    env = open_env(mine)
    handle = env.start(mine.workflows["pay"])
    env.run()
    env.advance("5m")

    failures = env.service.client.failures(handle.id)

    assert [each.attempt for each in failures] == [*range(12, 12 - ATTEMPTS_KEPT_MAX - 1, -1)]


def test_log__in_attempts_that_fail__every_line_is_kept_once(open_env: OpenEnvironment) -> None:
    mine = app_with(3)
    env = open_env(mine)
    handle = env.start(mine.workflows["pay"])
    env.run()
    env.advance("1m")

    found = [(note.level, note.source, note.text) for note in env.service.client.logs(handle.id)]

    assert found == [("WARNING", "charge", f"attempt {number}") for number in (1, 2, 3)]


def test_log__activity_waits_for_its_next_attempt__its_lines_are_on_the_last_page(open_env: OpenEnvironment) -> None:
    mine = app_with(5)
    env = open_env(mine)
    handle = env.start(mine.workflows["pay"])
    env.run()

    page = env.service.client.log_page(handle.id)

    assert ([note.text for note in page.notes], page.cursor) == (["attempt 1"], None)
    env.advance("1m")
    page = env.service.client.log_page(handle.id, limit=2)
    assert [note.text for note in page.notes] == ["attempt 1", "attempt 2"]
    rest = env.service.client.log_page(handle.id, cursor=page.cursor)
    assert [note.text for note in rest.notes] == ["attempt 3", "attempt 4", "attempt 5"]


def test_log__outside_of_workflow_and_activity__names_what_to_use() -> None:
    with pytest.raises(WorkflowViolationError, match="elsewhere use logging"):
        hg.log("nowhere")
