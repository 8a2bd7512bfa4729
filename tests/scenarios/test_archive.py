"""Histories of executions that ended long ago: moved to a blob, read as before, and joined by what comes later."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.durable.model.archive import ARCHIVED
from headgate.durable.model.history import Turn
from headgate.errors import NotFoundError
from headgate.store.catalogue.tables import INBOXES, TURNS
from headgate.store.model.requests import Query
from headgate.testing import replay
from tests.scenarios.conftest import OpenEnvironment

app = hg.App("archive")


@app.activity
def step(number: int) -> int:
    return number


@app.workflow(retention="1h")
async def counting(count: int) -> int:
    total = 0
    for number in range(count):
        total += await step(number)
    more: int = await hg.wait_signal("more", type=int)
    return total + more


def rows(env: hg.testing.Environment, execution_id: str) -> int:
    tables = (TURNS, INBOXES)
    return sum(len(env.service.store.query(Query(table=t, partition=execution_id)).items) for t in tables)


def shown(turns: list[Turn]) -> list[tuple[int, int, int]]:
    return [(turn.turn, len(turn.events), len(turn.commands)) for turn in turns]


def test_archive__retention_has_passed__history_reads_as_before_without_rows(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = env.start(counting, 5, id="c-1")
    handle.signal("more", 10, id="once")
    assert env.result(handle) == 20
    before = list(env.service.client.history("c-1"))
    env.advance("50m")
    assert handle.describe().archive is None
    env.advance("15m")
    row = handle.describe()
    assert row.archive is not None
    assert row.ready_pk == ARCHIVED
    assert rows(env, "c-1") == 0
    after = list(env.service.client.history("c-1"))
    assert after == before
    assert shown(list(env.service.client.history("c-1", after=3))) == shown(before[3:])
    replay(counting, "c-1", after)
    assert handle.result(0) == 20


def test_archive__of_an_id_that_is_used_again__keeps_both_lives(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first = env.start(counting, 2, id="c-2")
    first.signal("more", 1)
    assert env.result(first) == 2
    env.advance("2h")
    again = env.start(counting, 3, id="c-2", reuse="closed")
    assert shown(list(env.service.client.history("c-2")))[0][0] == 1
    again.signal("more", 1)
    assert env.result(again) == 4
    turns = list(env.service.client.history("c-2"))
    assert [turn.turn for turn in turns] == list(range(1, len(turns) + 1))
    env.advance("2h")
    assert rows(env, "c-2") == 0
    assert list(env.service.client.history("c-2")) == turns
    replay(counting, "c-2", turns)


def test_archive__started_again_before_it_was_due__is_left_alone(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first = env.start(counting, 1, id="c-3")
    first.signal("more", 1)
    env.result(first)
    env.advance("30m")
    again = env.start(counting, 1, id="c-3", reuse="closed")
    env.advance("2h")
    assert again.status() is hg.Status.RUNNING
    assert again.describe().archive is None
    again.signal("more", 5)
    assert env.result(again) == 5


def test_archive__kept_for_a_year__is_forgotten_and_its_id_free(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first = env.start(counting, 1, id="c-4")
    first.signal("more", 1)
    assert env.result(first) == 1
    env.advance("2h")
    env.advance("364d")
    assert first.result(0) == 1
    env.advance("1d")
    with pytest.raises(NotFoundError, match="c-4: there is none of this id"):
        first.describe()
    again = env.start(counting, 2, id="c-4")
    again.signal("more", 1)
    assert env.result(again) == 2
    assert next(turn.turn for turn in env.service.client.history("c-4")) == 1
