"""Generations of commits on DynamoDB: own commits count at once, those of others are assumed."""

from __future__ import annotations

from headgate.store.catalogue.tables import CONTROL, INBOXES, WORKERS
from headgate.store.dynamodb.commits import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    NOTICE_SECONDS,
    NOTICED_SECONDS,
    QUIET_SECONDS,
    CommitGenerations,
)
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


class Mailbox:
    """Notices of another process, read by a thread that waits."""

    def __init__(self) -> None:
        self.answer: bool | None = False
        self.reads = 0

    def receive(self) -> bool | None:
        self.reads += 1
        answer = self.answer
        self.answer = False if answer else answer
        return answer


def _waited(generations: CommitGenerations, time: Time, seconds: float) -> int:
    """Wait as a poller does, a tenth of a second at a time. Returns how many commits of others are assumed."""
    before = generations.generation(ANYTHING, others=True)
    for _ in range(round(10 * seconds)):
        time.now += 0.1
        generations.wait(generations.generation(ANYTHING, others=True), 0, ANYTHING, others=True)
    return generations.generation(ANYTHING, others=True) - before


def test_wait__idle_process_that_reads_notices__assumes_commits_of_others_seldom() -> None:
    time, mailbox = Time(), Mailbox()
    generations = CommitGenerations(time, mailbox)
    _waited(generations, time, 180)
    mailbox.reads = 0

    assert _waited(generations, time, 120) <= 120 / QUIET_SECONDS + 1
    assert 120 / NOTICE_SECONDS * 0.8 <= mailbox.reads <= 120 / NOTICE_SECONDS


def test_wait__notice_of_another_process__is_seen_within_a_second_and_covers_the_commits_after_it() -> None:
    time, mailbox = Time(), Mailbox()
    generations = CommitGenerations(time, mailbox)
    _waited(generations, time, 180)

    mailbox.answer = True

    assert _waited(generations, time, 1.2) >= 1
    # The sender says nothing of the other commits of its second.
    assert _waited(generations, time, NOTICED_SECONDS) >= 2


def test_wait__notices_cannot_be_read__assumes_commits_as_often_as_without() -> None:
    time, mailbox = Time(), Mailbox()
    generations = CommitGenerations(time, mailbox)
    _waited(generations, time, 180)

    mailbox.answer = None
    _waited(generations, time, 10)

    assert _waited(generations, time, 80) >= 80 / IDLE_SECONDS - 1


def test_committed__work__sends_a_notice_at_most_once_a_second() -> None:
    time = Time()
    generations = CommitGenerations(time, Mailbox())

    def commit() -> bool:
        return generations.on_committed(ANYTHING, [INBOXES])

    sent = [commit(), commit()]
    time.now += NOTICE_SECONDS

    assert [*sent, commit(), generations.on_committed(ANYTHING, [WORKERS])] == [True, False, True, False]


def test_committed__store_without_notices__sends_none() -> None:
    assert CommitGenerations(Time()).on_committed(ANYTHING, [INBOXES]) is False
