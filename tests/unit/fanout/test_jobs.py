"""Jobs: messages between a worker and its children arrive whole, in order, and are refused if they are nonsense."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.fanout.jobs import Answer, Channel, Done, Failed, Job, Progress, Ready, Unusable, packed

JOB = Job(1, "r", "chunk-0000000", "g", "main", 1, 0, 2, "{}", "k", input='["a","\u6f22"]', each=True)
ANSWERS: list[Answer] = [
    Ready(), Unusable("no such module"), Progress(1, 5), Done(1, 7, 30, output="[1]", item_errors={3: "bad"}),
    Failed(2, 7, "ValueError", "boom", True, {4: "bad"}), Done(3, 0, 0, deferred=[1, 2]),
]  # fmt: skip


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """A worker's end, a child's end, and the child's bare socket."""
    ours, theirs = socket.socketpair()
    yield Channel(ours), Channel(theirs), theirs
    ours.close()
    theirs.close()


def heard(channel: Channel, count: int) -> list[Answer]:
    found: list[Answer] = []
    while len(found) < count:
        found += channel.answers()
    return found


def test_channel__every_kind_of_message__arrives_as_it_was(ends: tuple[Channel, Channel, socket.socket]) -> None:
    worker, child, _ = ends
    child.send(*ANSWERS)
    worker.send(JOB)

    assert heard(worker, len(ANSWERS)) == ANSWERS
    assert child.jobs() == [JOB]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=200))
def test_channel__cut_anywhere_on_the_way__arrives_whole(
    ends: tuple[Channel, Channel, socket.socket], cuts: list[int]
) -> None:
    worker, _, wire = ends
    text = b"".join(map(packed, ANSWERS))
    found: list[Answer] = []
    at = 0
    for cut in cuts:
        if part := text[at : at + cut]:
            wire.sendall(part)
            found += worker.answers()
        at += cut
    if text[at:]:
        wire.sendall(text[at:])
        found += heard(worker, len(ANSWERS) - len(found))

    assert found == ANSWERS


def test_channel__a_message_of_megabytes__arrives_whole(ends: tuple[Channel, Channel, socket.socket]) -> None:
    worker, child, _ = ends
    large = msgspec.structs.replace(JOB, input="x" * 20_000_000)
    sender = threading.Thread(target=worker.send, args=(large, JOB))
    sender.start()
    found: list[Job] = []
    while len(found) < 2:
        found += child.jobs()
    sender.join(10)

    assert found == [large, JOB]


@pytest.mark.timeout(30)
def test_post__to_one_that_does_not_read__never_waits(ends: tuple[Channel, Channel, socket.socket]) -> None:
    """A child that hangs, or is still importing its handler, must not hold up the worker and all other children."""
    worker, child, _ = ends
    large = msgspec.structs.replace(JOB, input="x" * 300_000)
    worker.post(*[large] * 30)
    assert worker.is_full
    worker.flush()

    found: list[Job] = []

    def read() -> None:
        while len(found) < 30:
            found.extend(child.jobs())

    reader = threading.Thread(target=read)
    reader.start()
    while worker.is_full:
        worker.flush()
    reader.join(20)
    assert found == [large] * 30


def test_send__from_several_threads_at_once__no_message_is_cut_by_another(
    ends: tuple[Channel, Channel, socket.socket],
) -> None:
    worker, child, _ = ends

    def speak(number: int) -> None:
        for place in range(20):
            child.send(Failed(number, place, "E", chr(ord("a") + number) * 50_000))

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    found = heard(worker, 80)
    for thread in threads:
        thread.join(10)

    assert sorted((answer.key, answer.duration_ms) for answer in found if isinstance(answer, Failed)) == [
        (number, place) for number in range(4) for place in range(20)
    ]


def test_channel__the_other_end_is_gone__what_it_had_said_is_heard_first(
    ends: tuple[Channel, Channel, socket.socket],
) -> None:
    worker, child, wire = ends
    child.send(Done(1, 2, 3))
    wire.close()

    assert worker.answers() == [Done(1, 2, 3)]
    with pytest.raises(EOFError):
        worker.answers()
    with pytest.raises(BrokenPipeError):
        for _ in range(10):
            worker.send(JOB)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"type":"done"}', b'{"type":"stranger"}', b"\xff", b'{"type":"done","key":"x"}']
)
def test_answers__nonsense__is_an_error_that_can_be_told(
    ends: tuple[Channel, Channel, socket.socket], body: bytes
) -> None:
    worker, _, wire = ends
    wire.sendall(struct.pack("!I", len(body)) + body)

    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        worker.answers()
