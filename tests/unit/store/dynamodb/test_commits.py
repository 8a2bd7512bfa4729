"""Generations of commits on DynamoDB: own commits count at once, those of others are assumed."""

from __future__ import annotations

from headgate.store.catalogue.tables import CONTROL, INBOXES, WORKERS
from headgate.store.dynamodb.commits import BUSY_SECONDS, IDLE_SECONDS, CommitGenerations
from headgate.store.topics import ANYTHING, Topic


class Time:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _assumed_within(generations: CommitGenerations, time: Time, seconds: float) -> int:
    """Return how many commits of others are assumed in some seconds."""
    before = generations.generation(ANYTHING, others=True)
    for _ in range(round(10 * seconds)):
        time.now += 0.1
        generations.generation(ANYTHING, others=True)
    return generations.generation(ANYTHING, others=True) - before


def test_generation__own_commit__counts_for_its_topic_and_not_for_others() -> None:
    generations = CommitGenerations(Time())

    generations.on_committed(int(Topic.PIPELINES), [CONTROL])

    assert generations.generation(int(Topic.PIPELINES), others=False) == 1
    assert generations.generation(int(Topic.CHUNKS), others=False) == 0
    assert generations.generation(ANYTHING, others=True) == 0


def test_generation__process_without_work__assumes_commits_of_others_ever_less_often() -> None:
    time = Time()
    generations = CommitGenerations(time)

    first, later = _assumed_within(generations, time, 10), _assumed_within(generations, time, 60)
    idle = _assumed_within(generations, time, 80)

    assert 10 / BUSY_SECONDS > first >= 4
    assert later < 6 * first
    assert 80 / IDLE_SECONDS - 2 <= idle <= 80 / IDLE_SECONDS + 1


def test_generation__commit_of_work__assumes_commits_of_others_every_second_again() -> None:
    time = Time()
    generations = CommitGenerations(time)
    _assumed_within(generations, time, 120)

    generations.on_committed(ANYTHING, [WORKERS])
    assert _assumed_within(generations, time, 3) <= 1
    generations.on_committed(ANYTHING, [INBOXES])

    assert _assumed_within(generations, time, 3) >= 2


def test_wait__generation_has_changed__returns_at_once() -> None:
    generations = CommitGenerations(Time())
    seen = generations.generation(ANYTHING, others=False)

    generations.on_committed(int(Topic.DURABLE), [INBOXES])

    assert generations.wait(seen, 60.0, ANYTHING, others=False) == seen + 1


def test_wake__nothing_committed__changes_every_generation() -> None:
    generations = CommitGenerations(Time())
    seen = generations.generation(ANYTHING, others=True)

    generations.wake()

    assert generations.wait(seen, 60.0, ANYTHING, others=True) != seen
